//! The attempts of one acquire.

use fence_protocol::wire::lock::{AcquireRequest, LeaseReply, RenewRequest};
use fence_protocol::{LeaseId, LockName};
use tokio::runtime::Handle;

use super::plan::{Knowledge, Plan, Step, knowledge};
use super::{Spec, Takeover};
use crate::clock::{self, Moment};
use crate::timing::Window;
use crate::transport::{Effect, Failure};
use crate::{Client, Error, ErrorKind, ids};

/// Acquires what `spec` says: the grant, and for how long it may be trusted.
pub(crate) async fn obtain(client: &Client, spec: &Spec) -> Result<(LeaseReply, Window), Error> {
    let mut plan = Plan::new(clock::now(), spec.wait, spec.patience);
    let mut claim = Claim::new(client, &spec.lock);
    loop {
        let failure = match attempt(client, spec, &plan, &mut claim).await {
            Ok(granted) => {
                claim.settle();
                return Ok(granted);
            }
            Err(failure) => failure,
        };
        match plan.after(&failure, clock::now(), ids::random()) {
            Step::Repeat(pause) => {
                let (lock, lease_id, reason) = (&spec.lock, claim.lease_id, failure.reason());
                tracing::debug!(%lock, %lease_id, "repeating the acquire: {reason}");
                tokio::time::sleep(pause).await;
            }
            Step::Fresh => claim.renew_id(),
            Step::GiveUp => {
                return Err(failure.into_error(&format!("acquire {}", spec.lock), Effect::Changes));
            }
        }
    }
}

/// One attempt. The window counts from before this very attempt was sent: the time to live in its
/// reply is what remained when the server handled it.
async fn attempt(
    client: &Client,
    spec: &Spec,
    plan: &Plan,
    claim: &mut Claim<'_>,
) -> Result<(LeaseReply, Window), Failure> {
    let sent_at = clock::now();
    let request = AcquireRequest {
        ttl_ms: spec.ttl,
        wait_ms: plan.wait_ms(sent_at),
        owner: spec.owner.clone(),
        lease_id: Some(claim.lease_id),
        metadata: spec.metadata.clone(),
        min_token: spec.min_token,
        session_id: spec.session,
        // Always, so that a later life of this owner can take the lock over.
        incarnation: Some(client.incarnation().clone()),
        takeover: spec.takeover == Takeover::EarlierSelf,
        takeover_of: match spec.takeover {
            Takeover::Of(lease_id) => Some(lease_id),
            Takeover::Never | Takeover::EarlierSelf => None,
        },
        ..AcquireRequest::default()
    };
    let before = std::mem::replace(&mut claim.maybe_granted, true);
    let result = client.locks().acquire(&spec.lock, &request).await;
    let reply = result.inspect_err(|failure| {
        claim.maybe_granted = before || knowledge(failure) == Knowledge::Unknown;
    })?;
    let window = window_of(sent_at, &reply, spec);
    // A lease of a session is trusted for as long as the session is.
    if spec.session.is_none() && window.is_worn(clock::now()) {
        confirm(client, spec, reply).await
    } else {
        Ok((reply, window))
    }
}

/// Renews a grant whose window is worn before anybody relies on it: the acquire waited in the
/// queue, and how much of that time passed before the grant is not known here.
async fn confirm(
    client: &Client,
    spec: &Spec,
    granted: LeaseReply,
) -> Result<(LeaseReply, Window), Failure> {
    let sent_at = clock::now();
    let request = RenewRequest { lease_id: granted.lease_id, ttl_ms: None };
    let timeout = crate::locks::CALL_TIMEOUT.min(spec.ttl.duration() * 2);
    let renewed = client.locks().renew_once(&spec.lock, &request, timeout).await?;
    let window = window_of(sent_at, &renewed, spec);
    if !window.is_live(clock::now()) {
        let message = format!(
            "a lease of {} is over before its grant arrives here; ask for a longer time to live",
            spec.ttl
        );
        return Err(Failure::Unusable(Error::new(ErrorKind::Invalid, message)));
    }
    Ok((LeaseReply { waited_ms: granted.waited_ms, ..renewed }, window))
}

/// A server that answers with more time than was asked for is not believed.
fn window_of(sent_at: Moment, reply: &LeaseReply, spec: &Spec) -> Window {
    Window::new(sent_at, reply.ttl_ms.min(spec.ttl.ms()))
}

/// A lease id that may have been granted. Dropping it without [`settle`](Claim::settle) gives the
/// grant back in the background, so that an acquire that failed or was dropped does not keep the
/// lock until it expires. The release may arrive before the acquire: then the server remembers the
/// id as ended.
struct Claim<'a> {
    client: &'a Client,
    lock: &'a LockName,
    lease_id: LeaseId,
    maybe_granted: bool,
    runtime: Handle,
}

impl<'a> Claim<'a> {
    fn new(client: &'a Client, lock: &'a LockName) -> Self {
        let runtime = Handle::current();
        Self { client, lock, lease_id: ids::lease_id(), maybe_granted: false, runtime }
    }

    fn renew_id(&mut self) {
        self.lease_id = ids::lease_id();
        self.maybe_granted = false;
    }

    fn settle(&mut self) {
        self.maybe_granted = false;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.maybe_granted {
            let (locks, lock, lease_id) =
                (self.client.locks().clone(), self.lock.clone(), self.lease_id);
            self.client.background().spawn_on(&self.runtime, async move {
                if let Err(error) = locks.release(&lock, lease_id).await {
                    tracing::debug!(%lock, %lease_id, %error, "an undelivered grant was not given back");
                }
            });
        }
    }
}
