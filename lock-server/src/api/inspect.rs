//! `GET /v1/locks/{lock}` and `GET /v1/locks`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use fence_protocol::wire::event::ExplainedLock;
use fence_protocol::wire::lock::LockPage;
use fence_protocol::{LeaseId, LockName};
use serde::Deserialize;
use service_kit::problem::{ApiPath, ApiQuery, Reject};

use super::{Service, error};
use crate::store::ListQuery;

/// Largest number of locks, or of sessions, on a page.
const PAGE_MAX: usize = 1_000;

/// The query of one lock.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Asker {
    lease_id: Option<LeaseId>,
}

/// One lock with its recent events, or those of one lease.
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    ApiPath(lock): ApiPath<LockName>,
    ApiQuery(asker): ApiQuery<Asker>,
) -> Result<Json<ExplainedLock>, Reject> {
    let now = service.store.show(&lock).await;
    let now = now.map_err(|refusal| error::reject(&lock, refusal))?;
    Ok(Json(ExplainedLock { now, recent: service.events.of_lock(&lock, asker.lease_id) }))
}

/// The query of a listing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Page {
    prefix: String,
    after: Option<LockName>,
    limit: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self { prefix: String::new(), after: None, limit: 100 }
    }
}

/// A page of held locks.
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    ApiQuery(page): ApiQuery<Page>,
) -> Result<Json<LockPage>, Reject> {
    check_limit(page.limit)?;
    check_prefix(&page.prefix)?;
    let query = ListQuery { prefix: page.prefix, after: page.after, limit: page.limit };
    service.store.list(query).await.map(Json).map_err(|refusal| {
        let detail = refusal.to_string();
        Reject::new(fence_protocol::Code::StoreUnavailable, detail).retry_after(1)
    })
}

/// Refuses a page of no entries, or of too many.
pub(super) fn check_limit(limit: usize) -> Result<(), Reject> {
    match limit {
        1..=PAGE_MAX => Ok(()),
        _ => Err(error::invalid(format!("limit {limit} is out of range: 1 to {PAGE_MAX}"))),
    }
}

/// Checks that a lock name can begin with `prefix`.
pub(super) fn check_prefix(prefix: &str) -> Result<(), Reject> {
    if prefix.len() <= LockName::MAX_BYTES && prefix.bytes().all(is_name_byte) {
        return Ok(());
    }
    Err(error::invalid(format!(
        "prefix {:?} cannot begin a lock name: only A-Z a-z 0-9 . _ : / - are allowed",
        prefix.chars().take(80).collect::<String>()
    )))
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte)
}
