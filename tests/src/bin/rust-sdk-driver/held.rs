//! A lease of any kind.

use std::rc::Rc;

use fence_client::{Client, Error, ErrorKind, Lease, LostReason, SessionLease};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::failure::loss;
use crate::state::DriverState;
use crate::write;

/// A lease, with the task that reports its loss.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: AnyLease,
    pub(crate) client: Client,
    /// The name of its session.
    pub(crate) session: Option<String>,
    _watch: AbortOnDropHandle<()>,
}

#[derive(Debug)]
pub(crate) enum AnyLease {
    /// Renewed by itself.
    Alone(Box<Lease>),
    /// Renewed by its session.
    Bound(SessionLease),
}

/// Calls `$call` of the lease, whichever it is.
macro_rules! with {
    ($held:expr, $lease:ident => $call:expr) => {
        match &$held.lease {
            $crate::held::AnyLease::Alone($lease) => {
                let $lease = $lease.as_ref();
                $call
            }
            $crate::held::AnyLease::Bound($lease) => $call,
        }
    };
}
pub(crate) use with;

impl Held {
    /// Keeps a lease under a name, and reports its loss.
    pub(crate) fn keep(
        state: &DriverState,
        name: &str,
        client: &Client,
        lease: AnyLease,
        session: Option<String>,
    ) -> Rc<Self> {
        let watch = match &lease {
            AnyLease::Alone(lease) => {
                let lost = lease.lost();
                report(name, async move { Some(lost.await) })
            }
            AnyLease::Bound(lease) => {
                let lease = lease.clone();
                report(name, async move { reason_of(&lease.lost().await) })
            }
        };
        let held = Rc::new(Self { lease, client: client.clone(), session, _watch: watch });
        state.leases.borrow_mut().insert(name.to_owned(), Rc::clone(&held));
        held
    }

    /// The grant, as a reply.
    pub(crate) fn grant(&self, state: &DriverState) -> Value {
        let grant = with!(self, lease => lease.grant());
        json!({
            "token": grant.token, "lease_id": grant.lease_id, "lock": grant.lock,
            "fencing_token": grant.fencing_token, "fencing_credential": grant.fencing_credential,
            "remaining_ms": self.remaining_ms(state),
        })
    }

    /// Time for which the lease is trusted from now on.
    pub(crate) fn remaining_ms(&self, state: &DriverState) -> Option<u64> {
        let remaining = match &self.lease {
            AnyLease::Alone(lease) => lease.remaining(),
            AnyLease::Bound(_) => state.session_of(self.session.as_ref()?).ok()?.remaining(),
        };
        u64::try_from(remaining.as_millis()).ok()
    }
}

fn reason_of(error: &Error) -> Option<LostReason> {
    match error.kind() {
        ErrorKind::LeaseLost { reason } => Some(*reason),
        _ => None,
    }
}

fn report(
    name: &str,
    lost: impl Future<Output = Option<LostReason>> + 'static,
) -> AbortOnDropHandle<()> {
    let name = name.to_owned();
    AbortOnDropHandle::new(tokio::task::spawn_local(async move {
        let (reason, end) = lost.await.map(loss).unwrap_or_default();
        write(&json!({"event": "lost", "lease": name, "reason": reason, "end": end}));
    }))
}
