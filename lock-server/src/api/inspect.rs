//! `GET /v1/locks/{lock}` and `GET /v1/locks`.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use fence_protocol::wire::event::ExplainedLock;
use fence_protocol::wire::lock::{
    HolderReply, LockFilter, LockLine, LockOrder, LockPage, LockQuery, LockReply,
};
use fence_protocol::{LeaseId, LockName, Owner};
use futures_util::future::try_join_all;
use serde::Deserialize;
use service_kit::problem::{ApiPath, ApiQuery, Reject};

use super::{Service, error};
use crate::store::{ListQuery, StoreError};

/// Largest number of locks, or of sessions, on a page.
const PAGE_MAX: usize = 1_000;
/// Largest number of locks with refusals on a page: each is read by itself, all at once.
const REFUSED_MAX: usize = 64;

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

/// A page of held locks, or of those with refusals, filtered and sorted by itself.
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    ApiQuery(query): ApiQuery<LockQuery>,
) -> Result<Json<LockPage>, Reject> {
    check_limit(query.limit)?;
    check_prefix(&query.prefix)?;
    let read = match query.filter {
        Some(LockFilter::Refused) => refused(&service, &query).await,
        _ => service.store.list(names(&query)).await,
    };
    let mut page = read.map_err(|refusal| {
        let detail = refusal.to_string();
        Reject::new(fence_protocol::Code::StoreUnavailable, detail).retry_after(1)
    })?;
    service.events.count_refusals(&mut page.locks);
    page.locks.retain(|line| is_wanted(line, &query));
    let held_ms = |line: &LockLine| line.holder.as_ref().map_or(0, |holder| holder.held_ms);
    match query.sort {
        None => {}
        Some(LockOrder::Queue) => page.locks.sort_by_key(|line| Reverse(line.queue_length)),
        Some(LockOrder::Age) => page.locks.sort_by_key(|line| Reverse(held_ms(line))),
        Some(LockOrder::Refusals) => page.locks.sort_by_key(|line| Reverse(line.refusals)),
    }
    Ok(Json(page))
}

fn names(query: &LockQuery) -> ListQuery {
    let LockQuery { prefix, after, limit, owner, .. } = query.clone();
    ListQuery { prefix, after, limit, owner }
}

fn is_wanted(line: &LockLine, query: &LockQuery) -> bool {
    let is_owner = |owner: &Owner| {
        let holder = line.holder.as_ref();
        holder.is_some_and(|holder| holder.owner.as_str().contains(owner.as_str()))
    };
    let is_of_kind = match query.filter {
        None => true,
        Some(LockFilter::Held) => line.lease_count > 0,
        Some(LockFilter::Waiting) => line.queue_length > 0,
        Some(LockFilter::Refused) => line.refusals > 0,
    };
    is_of_kind && query.owner.as_ref().is_none_or(is_owner)
}

/// A page of the locks with remembered refusals, held or not. They are known by the events, so no
/// other lock is read.
async fn refused(service: &Service, query: &LockQuery) -> Result<LockPage, StoreError> {
    let limit = query.limit.min(REFUSED_MAX);
    let (names, is_more) = service.events.refused(&query.prefix, query.after.as_ref(), limit);
    let shown = try_join_all(names.iter().map(|lock| service.store.show(lock))).await?;
    let locks = shown.into_iter().map(|lock| line(lock, query.owner.as_ref())).collect();
    Ok(LockPage { locks, next_after: names.last().filter(|_| is_more).cloned() })
}

fn line(lock: LockReply, owner: Option<&Owner>) -> LockLine {
    let mut holders: Vec<HolderReply> = lock.holder.into_iter().chain(lock.also_held).collect();
    let is_meant = |holder: &HolderReply| {
        owner.is_some_and(|owner| holder.info.owner.as_str().contains(owner.as_str()))
    };
    let at = holders.iter().position(is_meant).unwrap_or(0);
    let holder = (at < holders.len()).then(|| holders.swap_remove(at));
    LockLine {
        lock: lock.lock,
        queue_length: lock.queue_length,
        mode: holder.as_ref().map(|holder| holder.mode).unwrap_or_default(),
        holder: holder.map(|holder| holder.info),
        lease_count: lock.lease_count,
        size: lock.size,
        refusals: 0,
    }
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
