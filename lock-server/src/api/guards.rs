//! `GET /v1/guards`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use fence_protocol::wire::guards::GuardsReply;
use fence_protocol::{Code, LockName};
use serde::Deserialize;
use service_kit::problem::{ApiQuery, Reject};

use super::{Service, error, inspect};
use crate::guards::overview::{self, Part};

/// Most reads at the same time: each calls every guard.
pub(crate) const READS_MAX: usize = 4;

/// The query: one lock, or the marks under a prefix.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Query {
    lock: Option<LockName>,
    prefix: String,
}

/// Every guard with its stores and marks, or with the mark of one lock.
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    ApiQuery(query): ApiQuery<Query>,
) -> Result<Json<GuardsReply>, Reject> {
    let part = match query.lock {
        Some(_) if !query.prefix.is_empty() => {
            return Err(error::invalid("prefix and lock exclude each other: name one of them"));
        }
        Some(lock) => Part::Lock(lock),
        None => inspect::check_prefix(&query.prefix).map(|()| Part::Stores(query.prefix))?,
    };
    let _read = service.guard_reads.try_acquire().map_err(|_| {
        let detail = format!("reads of the guards: the limit is {READS_MAX} at a time");
        Reject::new(Code::LimitReached, detail).retry_after(1)
    })?;
    let guards = overview::read(service.sealer.http(), service.sealer.urls(), &part).await;
    Ok(Json(GuardsReply { guards }))
}
