//! `POST /v1/locks/{lock}/revoke`.

use std::sync::Arc;

use access_control::Caller;
use axum::Json;
use axum::extract::State;
use fence_protocol::wire::lock::{GuardSeal, RevokeRequest, RevokedReply};
use fence_protocol::{Code, LockName};
use service_kit::problem::{ApiJson, ApiPath, Reject};

use super::{Service, error};
use crate::counters::Operation;
use crate::guards::revoke::{Done, Failed, Revocation, Unsealed, Why};
use crate::store::Revoke;

/// Seals the guards, ends every live lease or the one that is named, and records the reason.
pub(super) async fn revoke(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(lock): ApiPath<LockName>,
    ApiJson(request): ApiJson<RevokeRequest>,
) -> Result<Json<RevokedReply>, Reject> {
    let unsealed = service.revoke_unsealed;
    audited(&service, &caller, &lock, request, unsealed).await.map(Json)
}

/// Revokes, with notes for the audit log.
pub(super) async fn audited(
    service: &Service,
    caller: &Caller,
    lock: &LockName,
    request: RevokeRequest,
    unsealed: Unsealed,
) -> Result<RevokedReply, Reject> {
    caller.record("reason", &request.reason);
    let result = run(service, lock, request, unsealed).await;
    service.counters.count(Operation::Revoke, result.as_ref().err().map(Reject::code));
    let reply = result.inspect_err(|reject| {
        if let Some(guards) = reject.problem().extension::<Vec<GuardSeal>>("guards") {
            caller.record("guards", outcomes(&guards));
        }
    })?;
    if !reply.guards.is_empty() {
        caller.record("guards", outcomes(&reply.guards));
    }
    if let Some(ended) = &reply.ended {
        caller.record("lease_id", ended.lease_id);
        caller.record("token", ended.token);
    }
    if !reply.others.is_empty() {
        caller.record("other_leases", reply.others.len());
    }
    Ok(reply)
}

async fn run(
    service: &Service,
    lock: &LockName,
    request: RevokeRequest,
    unsealed: Unsealed,
) -> Result<RevokedReply, Reject> {
    let revocation = Revocation {
        store: &*service.store,
        sealer: &service.sealer,
        unsealed,
        lock,
        wish: Revoke { lease: request.lease_id, reason: Some(request.reason.clone()) },
    };
    let result = revocation.run().await;
    let done = match &result {
        Ok(done) | Err(Failed { done, .. }) => done,
    };
    account(service, lock, &request, done);
    match result {
        Ok(Done { ended, is_delay_lifted, guards }) => {
            let mut ended = ended.into_iter();
            let first = ended.next();
            let others = ended.collect();
            Ok(RevokedReply { ended: first, others, delay_lifted: is_delay_lifted, guards })
        }
        Err(failed) => Err(reject(lock, failed)),
    }
}

/// Records what was revoked, also when a later step failed.
fn account(service: &Service, lock: &LockName, request: &RevokeRequest, done: &Done) {
    let reason = &request.reason;
    let guards = outcomes(&done.guards);
    for ended in &done.ended {
        service.events.publish_end(ended, Some(reason.to_string()));
        let lease_id = ended.lease_id;
        let token = ended.token;
        let reason = reason.as_str();
        tracing::info!(target: "audit", %lock, %lease_id, %token, reason, guards, "a lease was revoked");
    }
    if done.is_delay_lifted {
        let reason = reason.as_str();
        tracing::info!(target: "audit", %lock, reason, guards, "a lock-delay was lifted");
    }
}

/// Outcome of each guard, as one line of text.
fn outcomes(guards: &[GuardSeal]) -> String {
    let line = |seal: &GuardSeal| match (seal.mark, &seal.problem) {
        (Some(mark), None) => format!("{} sealed at {mark}", seal.guard),
        (_, problem) => format!("{}: {}", seal.guard, problem.as_deref().unwrap_or("no answer")),
    };
    guards.iter().map(line).collect::<Vec<_>>().join("; ")
}

fn reject(lock: &LockName, Failed { why, done }: Failed) -> Reject {
    let reject = match why {
        Why::Store(refusal) => error::reject(lock, refusal),
        Why::Unsealed => {
            let detail = format!(
                "not every guard could be sealed, and --revoke-unsealed is refuse, so nothing of \
                 lock {lock} was revoked: {}",
                outcomes(&done.guards)
            );
            let hint = "Check the guards that the detail names, and revoke again; or block the \
                        session and wait for its end. Guards that were sealed already refuse the \
                        holder.";
            Reject::new(Code::GuardUnsealed, detail).hint(hint).retry_after(1)
        }
    };
    let reject = match done.ended.is_empty() {
        true => reject,
        false => reject.with("ended", &done.ended),
    };
    match done.guards.is_empty() {
        true => reject,
        false => reject.with("guards", &done.guards),
    }
}
