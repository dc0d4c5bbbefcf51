//! Lease of the leader: acquire, renew and release at the lock servers.

use std::time::Duration;

use bytes::Bytes;
use fence_protocol::wire::lock::{
    AcquireRequest, HolderInfo, LeaseReply, ReleaseRequest, RenewRequest,
};
use fence_protocol::{Code, LeaseId, Problem, Token, Ttl};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use service_kit::tls::ServerUrl;
use service_kit::{clock, ids};

use super::ElectionOptions;
use crate::lock_servers::{Caller, Failed, TIMEOUT};

/// Longest wait in the queue of one request.
const WAIT: Duration = Duration::from_secs(5);

/// A lease of this guard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) token: Token,
    /// End of the trust in it, as [`clock::boottime_ms`].
    pub(super) until_ms: u64,
}

/// Reply to an acquire.
#[derive(Debug)]
pub(super) enum Acquired {
    Granted(Lease),
    /// The owner that holds the lock.
    Held(String),
}

/// Failure of a renewal.
#[derive(Debug)]
pub(super) enum LeaseError {
    /// The lease has ended.
    Lost(String),
    /// A retry may succeed.
    Failed(String),
}

/// Calls of one guard, one at a time.
#[derive(Debug)]
pub(super) struct Leases {
    caller: Caller,
    options: ElectionOptions,
    /// Id of the next grant; a retry has the same.
    id: LeaseId,
}

impl Leases {
    pub(super) fn new(options: &ElectionOptions) -> Self {
        let caller = Caller::new(options.servers.clone());
        Self { caller, options: options.clone(), id: ids::lease_id() }
    }

    /// Acquires the lock; with `waits`, after a time in its queue.
    ///
    /// # Errors
    /// A sentence; the caller retries.
    pub(super) async fn acquire(
        &mut self,
        min_token: Option<Token>,
        waits: bool,
    ) -> Result<Acquired, String> {
        let wait = if waits { WAIT } else { Duration::ZERO };
        let request = AcquireRequest {
            ttl_ms: self.options.ttl,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(0),
            owner: Some(self.options.name.clone()),
            lease_id: Some(self.id),
            min_token,
            ..AcquireRequest::default()
        };
        let sent_ms = clock::boottime_ms();
        let problem = match self.post("acquire", &request, wait + TIMEOUT).await? {
            Reply::Live(reply) => {
                let until_ms = self.trusted_until(sent_ms, reply.ttl_ms);
                let lease = Lease { id: self.id, token: reply.token, until_ms };
                let renewed = if waits { self.renewed(lease).await } else { Ok(lease) };
                self.id = ids::lease_id();
                return renewed.map(Acquired::Granted);
            }
            Reply::Problem(problem) => problem,
            Reply::Ended => return Err("the lock server's reply is no lease".to_owned()),
        };
        if problem.code == Code::LockHeld {
            let holder: Option<HolderInfo> = problem.extension("holder");
            let owner = holder.map(|holder| holder.owner.to_string());
            return Ok(Acquired::Held(owner.unwrap_or_else(|| "another guard".to_owned())));
        }
        // An id that has ended is never granted again.
        self.id = ids::lease_id();
        Err(problem.detail)
    }

    /// Renews a lease that was granted in the queue: the trust in it counts from before the
    /// request, so little may be left.
    async fn renewed(&mut self, lease: Lease) -> Result<Lease, String> {
        let sent_ms = clock::boottime_ms();
        match self.renew(&lease, TIMEOUT).await {
            Ok(ttl_ms) => Ok(Lease { until_ms: self.trusted_until(sent_ms, ttl_ms), ..lease }),
            Err(LeaseError::Lost(why) | LeaseError::Failed(why)) => {
                self.release(lease.id).await;
                Err(why)
            }
        }
    }

    /// Releases the lease that was perhaps granted to an [`acquire`](Self::acquire) without a
    /// reply. The lock server then refuses a request that comes later.
    pub(super) async fn withdraw(&mut self) {
        self.release(self.id).await;
    }

    /// Returns the end of the trust in a lease, by the time before its request was sent.
    pub(super) fn trusted_until(&self, sent_ms: u64, ttl_ms: u64) -> u64 {
        sent_ms + Ttl::trusted_ms(ttl_ms.min(self.options.ttl.ms()))
    }

    /// Renews a lease; returns its time to live, in milliseconds.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub(super) async fn renew(
        &mut self,
        lease: &Lease,
        timeout: Duration,
    ) -> Result<u64, LeaseError> {
        let request = RenewRequest { lease_id: lease.id, ttl_ms: None };
        let timeout = timeout.clamp(Duration::from_millis(50), TIMEOUT);
        match self.post("renew", &request, timeout).await.map_err(LeaseError::Failed)? {
            Reply::Live(reply) if reply.token == lease.token => Ok(reply.ttl_ms),
            Reply::Live(reply) => {
                let token = reply.token;
                Err(LeaseError::Lost(format!("the lock server granted its lease anew, as {token}")))
            }
            Reply::Problem(problem) if problem.code == Code::LeaseLost => {
                Err(LeaseError::Lost(problem.detail))
            }
            Reply::Problem(problem) => Err(LeaseError::Failed(problem.detail)),
            Reply::Ended => Err(LeaseError::Failed("the reply is no lease".to_owned())),
        }
    }

    /// Ends a lease, so that the next guard need not wait for it. One that cannot be ended expires.
    pub(super) async fn release(&mut self, lease_id: LeaseId) {
        let request = ReleaseRequest { lease_id };
        if let Err(why) = self.post("release", &request, TIMEOUT).await {
            tracing::debug!("the leader's lease was not released: {why}");
        }
    }

    async fn post(
        &mut self,
        verb: &str,
        request: &impl Serialize,
        timeout: Duration,
    ) -> Result<Reply, String> {
        let lock = utf8_percent_encode(self.options.lock.as_str(), NON_ALPHANUMERIC);
        let path = format!("/v1/locks/{lock}/{verb}");
        let body = Bytes::from(serde_json::to_vec(request).unwrap_or_default());
        let replied = self.caller.post(&path, body, None, timeout, judge).await;
        replied.map_err(|(Failed::Refused(why) | Failed::Unreachable(why))| why)
    }
}

/// Reply of a lock server.
#[derive(Debug)]
enum Reply {
    Live(Box<LeaseReply>),
    Ended,
    Problem(Box<Problem>),
}

fn judge(url: &ServerUrl, status: u16, body: &[u8]) -> Result<Reply, Failed> {
    if let Ok(reply) = serde_json::from_slice(body) {
        return Ok(Reply::Live(reply));
    }
    match serde_json::from_slice::<Problem>(body) {
        // Another server may serve it.
        Ok(problem) if status >= 500 => {
            Err(Failed::Unreachable(format!("{url}: {}", problem.detail)))
        }
        Ok(problem) => Ok(Reply::Problem(Box::new(problem))),
        Err(_) if status == 200 => Ok(Reply::Ended),
        Err(_) => Err(Failed::Unreachable(format!("{url} answers {status}: is it a lock server?"))),
    }
}
