//! `/v1/sessions`: a heartbeat keeps every lease that is bound to a session.
//!
//! With an access file, a session belongs to the principal that began it: no other principal
//! heartbeats, ends or uses it. The store keeps the principal, so that every server on the store
//! knows it, also after a restart. It never changes while the session lives, so each server reads
//! it once and caches it for the life of the session: a heartbeat stays one operation of the store.

use std::sync::Arc;

use access_control::{Caller, Verb};
use axum::Json;
use axum::extract::State;
use fence_protocol::wire::session::{
    BlockRequest, SessionEndedReply, SessionPage, SessionReply, SessionRequest,
};
use fence_protocol::{Code, SessionId};
use serde::Deserialize;
use service_kit::problem::{ApiJson, ApiPath, ApiQuery, Reject};

use super::{Service, error, inspect, metadata};
use crate::counters::Operation;
use crate::store::{NewSession, NoSession, SessionRefusal, StoreError};

/// Begins a session. A retry with the same `session_id` is idempotent.
pub(super) async fn create(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiJson(request): ApiJson<SessionRequest>,
) -> Result<Json<SessionReply>, Reject> {
    service.check_ttl(request.ttl_ms)?;
    let new = NewSession {
        session_id: request.session_id.unwrap_or_else(service_kit::ids::session_id),
        owner: request.owner,
        ttl: request.ttl_ms,
        metadata: metadata::bounded(request.metadata.as_ref())?,
        principal: caller.name().map(ToOwned::to_owned),
    };
    let id = new.session_id;
    let is_new = caller.begin_session(id, new.ttl.ms())?;
    let result = service.store.create_session(new).await;
    let is_certain = !matches!(result, Err(StoreError::Unknown(_)));
    if result.is_err() && is_new && is_certain {
        caller.ended_session(id);
    }
    if let Err(StoreError::Session(SessionRefusal { why: NoSession::OtherOwner(_), .. })) = &result
    {
        // The owner's name is shown to its principal alone.
        own(&service, &caller, id).await?;
    }
    let reply = finish(&service, Operation::CreateSession, result)?;
    mine(&caller, &reply)?;
    Ok(reply)
}

/// Renews the session and every lease of it.
pub(super) async fn heartbeat(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(session): ApiPath<SessionId>,
) -> Result<Json<SessionReply>, Reject> {
    own(&service, &caller, session).await?;
    let result = service.store.heartbeat(session).await;
    forget_ended(&caller, &result);
    let reply = finish(&service, Operation::Heartbeat, result)?;
    mine(&caller, &reply)?;
    Ok(reply)
}

/// Ends the session and its leases.
pub(super) async fn end(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(session): ApiPath<SessionId>,
) -> Result<Json<SessionEndedReply>, Reject> {
    own(&service, &caller, session).await?;
    let result = service.store.end_session(session).await;
    if result.is_ok() {
        caller.ended_session(session);
    }
    forget_ended(&caller, &result);
    finish(&service, Operation::EndSession, result)
}

/// Refuses a session of another principal. One that is not live passes: the store will refuse it.
pub(super) async fn own(service: &Service, caller: &Caller, id: SessionId) -> Result<(), Reject> {
    if caller.owns_session(id) {
        return Ok(());
    }
    match service.store.look_session(id).await {
        Ok(session) => mine(caller, &session),
        Err(StoreError::Session(_)) => Ok(()),
        Err(error) => Err(reject(error)),
    }
}

/// Caches that a session is the caller's, and refuses the reply about another principal's.
pub(super) fn mine(caller: &Caller, session: &SessionReply) -> Result<(), Reject> {
    let id = session.session_id;
    let verdict = caller.is_session_of(id, session.principal.as_deref());
    match verdict {
        Ok(()) => caller.kept_session(id, session.expires_in_ms),
        Err(_) => caller.ended_session(id),
    }
    verdict
}

fn forget_ended<T>(caller: &Caller, result: &Result<T, StoreError>) {
    if let Err(StoreError::Session(SessionRefusal { session_id, why })) = result
        && matches!(why, NoSession::Unknown | NoSession::Ended(_))
    {
        caller.ended_session(*session_id);
    }
}

/// Refuses heartbeats from now on, and records the reason. The session keeps its leases until its
/// time is over, so that no other client is granted a lock that the holder still believes it holds.
pub(super) async fn block(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(session): ApiPath<SessionId>,
    ApiJson(request): ApiJson<BlockRequest>,
) -> Result<Json<SessionReply>, Reject> {
    caller.record("reason", &request.reason);
    let result = service.store.block_session(session, request.reason.clone()).await;
    let reply = finish(&service, Operation::BlockSession, result)?;
    tracing::info!(
        target: "audit",
        session_id = %session,
        owner = %reply.owner,
        ends_in_ms = reply.expires_in_ms,
        reason = request.reason.as_str(),
        "a session was blocked"
    );
    Ok(reply)
}

/// One session with its leases, for the principal that began it and for those that may read all.
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(session): ApiPath<SessionId>,
) -> Result<Json<SessionReply>, Reject> {
    let shown = service.store.show_session(session).await.map_err(reject)?;
    if caller.may_all(Verb::Read).is_err() {
        mine(&caller, &shown)?;
    }
    Ok(Json(shown))
}

/// The query of a listing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Page {
    after: Option<SessionId>,
    limit: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self { after: None, limit: 100 }
    }
}

/// Live sessions, a page at a time.
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    ApiQuery(page): ApiQuery<Page>,
) -> Result<Json<SessionPage>, Reject> {
    inspect::check_limit(page.limit)?;
    service.store.list_sessions(page.after, page.limit).await.map(Json).map_err(reject)
}

fn finish<T>(
    service: &Service,
    operation: Operation,
    result: Result<T, StoreError>,
) -> Result<Json<T>, Reject> {
    service.counted(operation, result.map_err(reject)).map(Json)
}

/// The problem for a store's refusal.
pub(super) fn reject(refusal: StoreError) -> Reject {
    match refusal {
        StoreError::Session(refusal) => error::session_problem(refusal),
        StoreError::Limit { what, limit } => {
            Reject::new(Code::LimitReached, format!("{what}: the limit is {limit}")).retry_after(1)
        }
        StoreError::Unknown(reason) => Reject::new(
            Code::OutcomeUnknown,
            format!("the outcome of the request for the session is unknown: {reason}"),
        )
        .hint("Retry with the same session_id: the request is idempotent.")
        .with("outcome", "unknown"),
        refusal @ StoreError::NotOffered { .. } => error::not_offered(&refusal),
        other => Reject::new(Code::StoreUnavailable, other.to_string()).retry_after(1),
    }
}
