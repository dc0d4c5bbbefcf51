//! The attempts of one acquire.

use std::time::Duration;

use fence_protocol::wire::lock::{AcquireRequest, LeaseReply, RenewRequest};
use fence_protocol::wire::lock_set::AcquireAllRequest;
use fence_protocol::{LeaseId, LockName, Ttl, duration};
use tokio::runtime::Handle;

use super::plan::{AcquireStep, GrantEvidence, Plan, evidence};
use super::turns;
use crate::clock;
use crate::lock_spec::{Spec, Takeover};
use crate::retries::WaitTimes;
use crate::sent_change::SentChange;
use crate::timing::Window;
use crate::transport::Failure;
use crate::{Client, Error, ErrorKind, ids};

/// Acquires the lock of `spec`; returns the grant and the window in which it is trusted.
pub(crate) async fn obtain(client: &Client, spec: &Spec) -> Result<(LeaseReply, Window), Error> {
    let plan = Plan::new(clock::now(), spec.times);
    let ttl = spec.session.is_none().then_some(spec.ttl);
    let claim = GrantClaim::new(client, vec![spec.lock.clone()], ttl);
    let mut tries = Tries::new(plan, claim);
    loop {
        match attempt(client, spec, &mut tries).await {
            Ok(granted) => {
                tries.claim.settle();
                return Ok(granted);
            }
            Err(failure) => tries.failed(failure).await?,
        }
    }
}

/// Request for several locks of a session, granted all in one step.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) request: AcquireAllRequest,
    pub(crate) times: WaitTimes,
}

/// Acquires all locks of `group` or none; returns the grants in the order of the request.
pub(crate) async fn obtain_all(client: &Client, group: &Group) -> Result<Vec<LeaseReply>, Error> {
    let plan = Plan::new(clock::now(), group.times);
    let locks = group.request.locks.iter().map(|wish| wish.lock.clone()).collect();
    let mut tries = Tries::new(plan, GrantClaim::new(client, locks, None));
    loop {
        let sent = tries.send(|lease_id, wait_ms, timeout| {
            let lease_id = Some(lease_id);
            let request = AcquireAllRequest { lease_id, wait_ms, ..group.request.clone() };
            async move { client.locks().acquire_all(&request, timeout).await }
        });
        match sent.await {
            Ok(reply) => {
                tries.claim.settle();
                return Ok(reply.leases);
            }
            Err(failure) => tries.failed(failure).await?,
        }
    }
}

/// The attempts of one call.
struct Tries<'a> {
    plan: Plan,
    claim: GrantClaim<'a>,
    /// A grant whose window was too short to be used; the next attempt renews it.
    unconfirmed: Option<LeaseReply>,
    /// Attempts under the present lease id.
    sent: SentChange,
}

impl<'a> Tries<'a> {
    fn new(plan: Plan, claim: GrantClaim<'a>) -> Self {
        Self { plan, claim, unconfirmed: None, sent: SentChange::default() }
    }

    /// Sends one attempt in turns; `send` gets the lease id, the wait in milliseconds and the
    /// time-out of each request.
    async fn send<T, F: Future<Output = Result<T, Failure>>>(
        &mut self,
        send: impl Fn(LeaseId, u64, Duration) -> F,
    ) -> Result<T, Failure> {
        let before = self.claim.begin_attempt();
        let result = turns::until_result(
            || self.plan.wait_ms(clock::now()),
            |wait_ms| send(self.claim.lease_id, wait_ms, self.plan.timeout(clock::now(), wait_ms)),
        );
        let result = result.await;
        result.inspect_err(|failure| self.claim.record_failure(before, failure))
    }

    /// Prepares the next attempt as the plan says, after a pause; the error if there is none.
    async fn failed(&mut self, failure: Failure) -> Result<(), Error> {
        match self.plan.after(&failure, clock::now(), ids::random()) {
            AcquireStep::Retry(pause) => {
                let lease_id = self.claim.lease_id;
                let reason = failure.reason();
                let what = self.claim.names();
                tracing::debug!(%lease_id, "retrying the acquire of {what}: {reason}");
                if !failure.is_held() {
                    let left = self.plan.unavailable_left(clock::now());
                    self.claim.client.observer().retrying(&reason, left);
                }
                self.sent.record(&failure);
                tokio::time::sleep(pause).await;
                Ok(())
            }
            AcquireStep::Restart(pause) => {
                self.unconfirmed = None;
                self.sent = SentChange::default();
                tokio::time::sleep(pause).await;
                self.claim.renew_id().await
            }
            AcquireStep::Fail => {
                let mut what = format!("acquire {}", self.claim.refusing(&failure));
                if failure.is_held() && !self.plan.wait.is_zero() {
                    what += &format!(", after a wait of {}", duration::show(self.plan.wait));
                }
                // The server replied that this lease id does not hold the lock.
                let sent = std::mem::take(&mut self.sent);
                let sent = if failure.is_held() { SentChange::default() } else { sent };
                Err(sent.error(&what, failure))
            }
        }
    }
}

/// Sends one attempt. The window counts from before this attempt was sent, because the time to live
/// in its reply is what remained when the server handled it.
async fn attempt(
    client: &Client,
    spec: &Spec,
    tries: &mut Tries<'_>,
) -> Result<(LeaseReply, Window), Failure> {
    if let Some(granted) = &tries.unconfirmed {
        return confirm(client, spec, granted).await;
    }
    let sent_at = clock::now();
    let request = AcquireRequest {
        ttl_ms: spec.ttl,
        wait_ms: 0,
        owner: spec.owner.clone(),
        lease_id: None,
        metadata: spec.metadata.clone(),
        min_token: spec.min_token,
        session_id: spec.session,
        // Always sent, so that a later incarnation of this owner can take the lock over.
        incarnation: Some(client.incarnation().clone()),
        takeover: spec.takeover == Takeover::EarlierSelf,
        takeover_of: match spec.takeover {
            Takeover::Lease(lease_id) => Some(lease_id),
            Takeover::Never | Takeover::EarlierSelf => None,
        },
        mode: spec.mode,
        size: spec.size,
    };
    let sent = tries.send(|lease_id, wait_ms, timeout| {
        let lease_id = Some(lease_id);
        let request = AcquireRequest { lease_id, wait_ms, ..request.clone() };
        async move { client.locks().acquire(&spec.lock, &request, timeout).await }
    });
    let reply = sent.await?;
    let window = Window::of_reply(sent_at, reply.ttl_ms, spec.ttl);
    // The trust in a lease of a session is the trust in its session.
    if spec.session.is_none() && window.is_worn(clock::now()) {
        confirm(client, spec, tries.unconfirmed.insert(reply)).await
    } else {
        Ok((reply, window))
    }
}

/// Renews a grant before it is used, because less than half of its window is left: the acquire
/// waited in the queue, and the client does not know how much of that time passed before the grant.
///
/// A renewal whose reply arrives too late to be trusted has still extended the lease at the server,
/// and the next attempt renews it again.
async fn confirm(
    client: &Client,
    spec: &Spec,
    granted: &LeaseReply,
) -> Result<(LeaseReply, Window), Failure> {
    let sent_at = clock::now();
    let request = RenewRequest { lease_id: granted.lease_id, ttl_ms: None };
    let timeout = crate::locks::CALL_TIMEOUT.min(spec.ttl.duration() * 2);
    let renewed = client.locks().renew_once(&spec.lock, &request, timeout).await?;
    let window = Window::of_reply(sent_at, renewed.ttl_ms, spec.ttl);
    if !window.is_live(clock::now()) {
        let message = format!(
            "replies take too long for a time to live of {}: the lease was granted and renewed, and \
             each time 0.8 of that had passed before the reply arrived; retry, or ask for a longer \
             time to live",
            spec.ttl
        );
        return Err(Failure::Unusable(Error::new(ErrorKind::Unavailable, message)));
    }
    Ok((LeaseReply { waited_ms: granted.waited_ms, ..renewed }, window))
}

/// A lease id that may have been granted. Dropping it without [`settle`](GrantClaim::settle)
/// releases the grants in the background, so that an acquire that failed or was dropped does not
/// hold the locks until they expire. If a release arrives before its acquire, the server records
/// the id as ended.
struct GrantClaim<'a> {
    client: &'a Client,
    locks: Vec<LockName>,
    lease_id: LeaseId,
    maybe_granted: bool,
    /// Life of a grant that is not renewed; `None` for one that lasts as long as its session.
    ttl: Option<Ttl>,
    runtime: Handle,
}

impl<'a> GrantClaim<'a> {
    fn new(client: &'a Client, locks: Vec<LockName>, ttl: Option<Ttl>) -> Self {
        let runtime = Handle::current();
        Self { client, locks, lease_id: ids::lease_id(), maybe_granted: false, ttl, runtime }
    }

    /// Records that a request is about to be sent; returns whether a grant was possible before it.
    fn begin_attempt(&mut self) -> bool {
        self.client.observer().acquiring(self.lease_id);
        std::mem::replace(&mut self.maybe_granted, true)
    }

    /// Records the failure of a request; `before` is the result of `begin_attempt`.
    fn record_failure(&mut self, before: bool, failure: &Failure) {
        self.maybe_granted = before || evidence(failure) == GrantEvidence::Unknown;
    }

    /// Replaces the lease id after it has ended on one of the locks. If the reply that granted
    /// several locks was lost, the leases on the others may be live, and would block the next
    /// request, which has another id: they are released first.
    async fn renew_id(&mut self) -> Result<(), Error> {
        if self.maybe_granted && self.locks.len() > 1 {
            for lock in &self.locks {
                match self.client.locks().release(lock, self.lease_id).await {
                    Err(error) if !matches!(error.kind(), ErrorKind::LeaseLost { .. }) => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
        }
        self.lease_id = ids::lease_id();
        self.maybe_granted = false;
        Ok(())
    }

    fn settle(&mut self) {
        self.maybe_granted = false;
    }

    /// Names of the locks for messages; at most three, and the number of the others.
    fn names(&self) -> String {
        match &self.locks[..] {
            [first, second, third, _, ..] => {
                format!("{first}, {second}, {third} and {} more", self.locks.len() - 3)
            }
            few => few.iter().map(LockName::as_str).collect::<Vec<_>>().join(", "),
        }
    }

    /// Name of the lock that was refused, if the server says which; otherwise all of them.
    fn refusing(&self, failure: &Failure) -> String {
        let lock: Option<LockName> =
            failure.problem().and_then(|problem| problem.extension("lock"));
        match lock {
            Some(lock) if self.locks.len() > 1 => format!("{lock} (one of {})", self.names()),
            _ => self.names(),
        }
    }
}

impl Drop for GrantClaim<'_> {
    fn drop(&mut self) {
        if !self.maybe_granted {
            return;
        }
        let ttl = self.ttl.map_or(Duration::from_millis(Ttl::MAX_MS), Ttl::duration);
        let expires_at = clock::now().plus(ttl);
        for lock in std::mem::take(&mut self.locks) {
            let locks = self.client.locks().clone();
            let lease_id = self.lease_id;
            self.client.background().release_on(&self.runtime, expires_at, async move {
                if let Err(error) = locks.release(&lock, lease_id).await {
                    tracing::debug!(%lock, %lease_id, %error, "an undelivered grant was not released");
                }
            });
        }
    }
}
