//! The HTTP API: every route is here; a handler parses, calls the store, and renders its reply.

mod access;
mod acquire;
mod acquire_all;
mod error;
mod events;
mod finish;
mod floor;
mod found;
mod guards;
mod inspect;
mod metadata;
mod others;
mod principal;
mod release;
mod renew;
mod revoke;
mod sessions;
mod terraform;

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, get, post};
use fence_protocol::wire::lock::LeaseReply;
use fence_protocol::{LockName, Ttl, credential};
use service_kit::Kit;
use service_kit::http::described_by;
use service_kit::problem::Reject;
use tokio::sync::Semaphore;

pub(crate) use access::need;
use finish::FinishLayer;
pub(crate) use found::found;
pub(crate) use guards::READS_MAX as GUARD_READS_MAX;

use crate::counters::{Counters, Operation};
use crate::events::Events;
use crate::grants::Grants;
use crate::guards::revoke::Unsealed;
use crate::guards::sealer::Sealer;
use crate::prefixes::Prefixes;
use crate::signer::Signer;
use crate::store::{Grant, LockStore, StoreError};

/// Shared state of every handler.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) events: Events,
    pub(crate) signer: Signer,
    pub(crate) sealer: Sealer,
    pub(crate) grants: Arc<Grants>,
    pub(crate) revoke_unsealed: Unsealed,
    pub(crate) guard_reads: Semaphore,
    /// In milliseconds.
    pub(crate) lock_delays: Prefixes<u64>,
    pub(crate) ttl_range: (Ttl, Ttl),
    pub(crate) counters: Counters,
    pub(crate) kit: Kit,
}

/// Every route of the API.
pub(crate) fn router(service: Arc<Service>) -> Router {
    let finished = Router::new()
        .route("/v1/locks/{lock}/renew", post(renew::renew))
        .route("/v1/locks/{lock}/release", post(release::release))
        .route("/v1/locks/{lock}/revoke", post(revoke::revoke))
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{id}", get(sessions::show).delete(sessions::end))
        .route("/v1/sessions/{id}/heartbeat", post(sessions::heartbeat))
        .route("/v1/sessions/{id}/block", post(sessions::block))
        .route("/v1/terraform/{lock}", any(terraform::change))
        .route_layer(FinishLayer::new(&service.kit.tasks));
    Router::new()
        .route("/v1/acquire", post(acquire_all::acquire_all))
        .route("/v1/locks", get(inspect::list))
        .route("/v1/locks/{lock}", get(inspect::show))
        .route("/v1/locks/{lock}/acquire", post(acquire::acquire))
        .route("/v1/floor", post(floor::floor))
        .route("/v1/guards", get(guards::list))
        .route("/v1/principal", get(principal::show))
        .route("/v1/events", get(events::events))
        .route("/v1/refusals", post(events::refusals))
        .route("/openapi.json", described_by(include_str!("api/openapi.json")))
        .merge(finished)
        .with_state(service)
}

impl Service {
    /// A time to live within this server's range.
    fn check_ttl(&self, ttl: Ttl) -> Result<(), Reject> {
        let (min, max) = self.ttl_range;
        if (min..=max).contains(&ttl) {
            return Ok(());
        }
        Err(error::invalid(format!(
            "ttl_ms {} is out of range: this server takes {} to {}",
            ttl.ms(),
            min.ms(),
            max.ms()
        )))
    }

    fn lease_reply(&self, lock: LockName, grant: Grant) -> LeaseReply {
        let Grant { lease_id, token, owner, remaining_ms, waited_ms, mode, .. } = grant;
        let fencing_token = self.signer.sign(token, lock.clone(), lease_id).to_string();
        LeaseReply {
            lock,
            lease_id,
            mode: mode.wire(),
            token,
            ttl_ms: remaining_ms,
            owner,
            waited_ms,
            fencing_credential: credential::of_header(&fencing_token),
            fencing_token,
        }
    }

    /// Lock-delay in milliseconds after a lease that its holder did not release; 0 for none.
    fn lock_delay_ms(&self, lock: &LockName) -> u64 {
        self.lock_delays.value_for(lock).unwrap_or(0)
    }

    /// Counts the outcome and turns a refusal into its problem.
    fn finish<T>(
        &self,
        operation: Operation,
        lock: &LockName,
        result: Result<T, StoreError>,
    ) -> Result<T, Reject> {
        self.counted(operation, result.map_err(|refusal| error::reject(lock, refusal)))
    }

    /// Counts the operation by its outcome.
    fn counted<T>(&self, operation: Operation, result: Result<T, Reject>) -> Result<T, Reject> {
        self.counters.count(operation, result.as_ref().err().map(Reject::code));
        result
    }
}
