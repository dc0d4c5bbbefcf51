//! All routes.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};

use super::body_budget::BodyBudget;
use super::{delete, floor, get as read, list, openapi, put as write, reply, seal, show, stores};
use crate::service::Guard;

/// What handlers share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shared {
    pub(super) guard: Arc<Guard>,
    pub(super) body_budget: BodyBudget,
    /// The memory for objects that are being sent.
    pub(super) reply_budget: BodyBudget,
    pub(super) max_object_bytes: usize,
}

impl Shared {
    /// Handlers of `guard`. An object has at most `max_object_bytes`; all bodies that are being
    /// received have at most `max_body_bytes_in_all` together, and so have those that are being sent.
    pub fn new(guard: Arc<Guard>, max_object_bytes: usize, max_body_bytes_in_all: usize) -> Self {
        let body_budget = BodyBudget::new(max_body_bytes_in_all, max_object_bytes);
        let reply_budget = BodyBudget::new(max_body_bytes_in_all, max_object_bytes);
        Self { guard, body_budget, reply_budget, max_object_bytes }
    }

    /// The guard.
    pub fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    /// The largest body, in bytes.
    pub fn max_object_bytes(&self) -> usize {
        self.max_object_bytes
    }
}

/// The routes of the guard; the operational ones come from service-kit.
pub fn routes(shared: Shared) -> Router {
    Router::new()
        .route("/v1/objects/{*key}", put(write::put).get(read::get).delete(delete::delete))
        .route("/v1/stores", get(stores::stores))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/floor", post(floor::floor))
        .route("/v1/fences", get(list::list))
        .route("/v1/fences/{*lock}", get(show::show).post(seal::seal))
        .layer(from_fn_with_state(shared.guard.guarantee(), reply::guarantee))
        .with_state(shared)
}
