//! All routes.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use service_kit::http::described_by;

use super::terraform::{pull, push};
use super::{delete, floor, get as read, lanes, list, put as write, reply, seal, show, stores};
use crate::doors::http::handler_state::HandlerState;

/// Makes the routes of the guard; the operational ones come from service-kit.
pub fn routes(shared: HandlerState) -> Router {
    Router::new()
        .route("/v1/objects/{*key}", put(write::put).get(read::get).delete(delete::delete))
        .route("/v1/terraform-states/{*key}", get(pull).post(push).put(push))
        .route("/v1/stores", get(stores::stores))
        .route("/openapi.json", described_by(include_str!("openapi.json")))
        .route("/v1/floor", post(floor::floor))
        .route("/v1/fences", get(list::list))
        .route("/v1/fences/{*lock}", get(show::show).post(seal::seal))
        .route("/v1/lanes", get(lanes::lanes))
        .route("/v1/lanes/{*lock}", post(lanes::quarantine))
        .layer(from_fn_with_state(shared.guard.guarantee(), reply::guarantee))
        .with_state(shared)
}
