//! The lock server's API, one method a call, for tools. Programs that hold a lock use
//! [`Client::lock`](crate::Client::lock).

use std::time::Duration;

use fence_protocol::wire::lock::{
    AcquireRequest, EndReason, EndedReply, LeaseReply, LockFilter, LockOrder, LockPage, LockQuery,
    LockReply, ReleaseRequest, RenewRequest, RevokeRequest, RevokedReply,
};
use fence_protocol::wire::lock_set::{AcquireAllRequest, LeasesReply};
use fence_protocol::{Code, Invalid, LeaseId, LockName, Owner, Ttl};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::end_reason;
use crate::transport::{Effect, Endpoint, Failure};
use crate::{Error, ErrorKind, sent_change};

/// Time-out of a call that does not wait in a queue.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out of a revocation: the server gives each guard 2 s, and may start over a few times.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a release is retried; after it the lease expires by itself.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// Characters that are percent-encoded: all but the unreserved ones of RFC 3986.
pub(crate) const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The lock server's API, one method a call; see [`Client::locks`](crate::Client::locks).
///
/// It neither renews in the background nor watches a deadline. Every future may be dropped at any
/// time; the outcome of a change is then unknown.
#[derive(Clone, Debug)]
pub struct Locks {
    endpoint: Endpoint,
}

impl Locks {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends one acquire without retries; times out after `timeout`.
    pub(crate) async fn acquire(
        &self,
        lock: &LockName,
        request: &AcquireRequest,
        timeout: Duration,
    ) -> Result<LeaseReply, Failure> {
        let reply: LeaseReply =
            self.endpoint.post(&path(lock, "/acquire"), request, timeout).await?;
        let is_same = Some(reply.lease_id) == request.lease_id && reply.mode == request.mode;
        if !is_same || reply.lock != *lock {
            return Err(mixed_up(lock, &reply));
        }
        Ok(reply)
    }

    /// Sends one acquire of several locks without retries; times out as [`acquire`](Self::acquire).
    pub(crate) async fn acquire_all(
        &self,
        request: &AcquireAllRequest,
        timeout: Duration,
    ) -> Result<LeasesReply, Failure> {
        let reply: LeasesReply = self.endpoint.post("/v1/acquire", request, timeout).await?;
        check_all(request, &reply)?;
        Ok(reply)
    }

    /// Sends one renewal without retries; times out after `timeout`.
    pub(crate) async fn renew_once(
        &self,
        lock: &LockName,
        request: &RenewRequest,
        timeout: Duration,
    ) -> Result<LeaseReply, Failure> {
        let reply: LeaseReply = self.endpoint.post(&path(lock, "/renew"), request, timeout).await?;
        if reply.lease_id != request.lease_id || reply.lock != *lock {
            return Err(mixed_up(lock, &reply));
        }
        Ok(reply)
    }

    /// Renews a lease, for `ttl` or for its own time to live. Not retried.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if it has ended: a renewal never revives a lease.
    pub async fn renew(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<LeaseReply, Error> {
        self.renew_once(lock, &RenewRequest { lease_id, ttl_ms: ttl }, CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error(&format!("renew {lock}"), Effect::Changes))
    }

    /// Releases a lease; retries for up to 5 s if no reply arrives.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if it had ended before. If an attempt of this call whose reply was
    /// lost released the lease, that is a success. [`ErrorKind::OutcomeUnknown`] if one may have
    /// done so and no retry gets a reply.
    pub async fn release(&self, lock: &LockName, lease_id: LeaseId) -> Result<(), Error> {
        let path = path(lock, "/release");
        let request = ReleaseRequest { lease_id };
        let send = || self.endpoint.post::<EndedReply>(&path, &request, RELEASE_PATIENCE);
        let what = format!("release {lock}");
        sent_change::until_settled(&what, RELEASE_PATIENCE, send, was_released).await?;
        Ok(())
    }

    /// Returns the state of a lock: its holders, waiters and history.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server is unreachable.
    pub async fn show(&self, lock: &LockName) -> Result<LockReply, Error> {
        self.endpoint
            .get(&path(lock, ""), CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error(&format!("show {lock}"), Effect::Reads))
    }

    /// Returns a page of at most `limit` held locks whose names begin with `prefix` and follow
    /// `after`, ordered by name.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server is unreachable, [`ErrorKind::Invalid`] for a limit
    /// above the server's.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<LockPage, Error> {
        let prefix = prefix.to_owned();
        let after = after.cloned();
        self.list_by(&LockQuery { prefix, after, limit, ..LockQuery::default() }).await
    }

    /// Returns a page of locks, filtered and sorted by itself: fewer than the limit may remain of
    /// the locks that the server read, and more may follow.
    ///
    /// # Errors
    /// As [`list`](Self::list); an older server refuses filters as [`ErrorKind::Invalid`].
    pub async fn list_by(&self, query: &LockQuery) -> Result<LockPage, Error> {
        let LockQuery { prefix, after, limit, filter, owner, sort } = query;
        let members = [
            ("prefix", Some(prefix.as_str()).filter(|prefix| !prefix.is_empty())),
            ("after", after.as_ref().map(LockName::as_str)),
            ("filter", filter.map(LockFilter::as_str)),
            ("owner", owner.as_ref().map(Owner::as_str)),
            ("sort", sort.map(LockOrder::as_str)),
        ];
        let mut path = format!("/v1/locks?limit={limit}");
        for (name, value) in members {
            if let Some(value) = value {
                path = format!("{path}&{name}={}", utf8_percent_encode(value, ENCODED));
            }
        }
        self.endpoint
            .get(&path, CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error("list locks", Effect::Reads))
    }

    /// Ends every live lease of a lock, and its lock-delay, for an operator. If the server knows
    /// guards, it seals them before the next grant, so that they refuse the former holders; the
    /// reply says which guards are sealed.
    ///
    /// The reason is for the holder and the audit log: 1 to 256 bytes without control characters.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no lease is live, and for a name or a reason that is not valid;
    /// [`ErrorKind::Unavailable`] also if a guard was not sealed and the server is configured to
    /// refuse the revocation then.
    pub async fn revoke(
        &self,
        lock: impl AsRef<str>,
        reason: impl AsRef<str>,
    ) -> Result<RevokedReply, Error> {
        self.end(lock.as_ref(), reason.as_ref(), None).await
    }

    /// Ends one lease of a lock, not the others that share it, for an operator.
    ///
    /// # Errors
    /// As [`revoke`](Self::revoke), and [`ErrorKind::LeaseLost`] if that lease is not live.
    pub async fn revoke_lease(
        &self,
        lock: impl AsRef<str>,
        lease_id: LeaseId,
        reason: impl AsRef<str>,
    ) -> Result<RevokedReply, Error> {
        self.end(lock.as_ref(), reason.as_ref(), Some(lease_id)).await
    }

    async fn end(
        &self,
        lock: &str,
        reason: &str,
        lease_id: Option<LeaseId>,
    ) -> Result<RevokedReply, Error> {
        let lock = LockName::new(lock)?;
        let rule = "must be 1 to 256 bytes without control characters";
        let reason = Owner::new(reason).map_err(|_| Invalid::new("reason", reason, rule))?;
        self.endpoint
            .post(&path(&lock, "/revoke"), &RevokeRequest { reason, lease_id }, REVOKE_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error(&format!("revoke {lock}"), Effect::Changes))
    }
}

/// Returns `true` if the lease has ended by a release.
fn was_released(failure: &Failure) -> bool {
    failure.problem().is_some_and(|problem| {
        problem.code == Code::LeaseLost && end_reason(problem) == EndReason::Released
    })
}

/// Checks that every lock was granted as requested, under the requested id, and with tokens that
/// rise in the order of the request.
fn check_all(request: &AcquireAllRequest, reply: &LeasesReply) -> Result<(), Failure> {
    let requested = request.locks.len();
    let granted = reply.leases.len();
    if requested != granted {
        let message = format!("the reply to a request for {requested} locks has {granted} leases");
        return Err(Failure::Unusable(Error::new(ErrorKind::Internal, message)));
    }
    for (wish, lease) in request.locks.iter().zip(&reply.leases) {
        let is_same = Some(lease.lease_id) == request.lease_id && lease.mode == wish.mode;
        if !is_same || lease.lock != wish.lock {
            return Err(mixed_up(&wish.lock, lease));
        }
    }
    match reply.leases.windows(2).find(|pair| pair[0].token >= pair[1].token) {
        None => Ok(()),
        Some(pair) => {
            let message = format!(
                "{} was granted token {}, which is not above the token {} of the lock before it in \
                 the same request",
                pair[1].lock, pair[1].token, pair[0].token
            );
            Err(Failure::Unusable(Error::new(ErrorKind::Internal, message)))
        }
    }
}

/// Failure of a reply about another lock, lease or mode than requested: nothing in it can be
/// trusted.
fn mixed_up(lock: &LockName, reply: &LeaseReply) -> Failure {
    let message = format!(
        "the reply to a request about {lock} is about {} {} ({})",
        reply.lock,
        reply.lease_id,
        reply.mode.as_str()
    );
    Failure::Unusable(Error::new(ErrorKind::Internal, message))
}

/// Path of a lock; slashes in its name are encoded.
pub(crate) fn path(lock: &LockName, verb: &str) -> String {
    format!("/v1/locks/{}{verb}", utf8_percent_encode(lock.as_str(), ENCODED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_of_a_name_are_encoded() {
        let lock = LockName::new("orders/42").unwrap();
        assert_eq!(path(&lock, "/acquire"), "/v1/locks/orders%2F42/acquire");
        assert_eq!(path(&LockName::new("a.b_c-d:e").unwrap(), ""), "/v1/locks/a.b_c-d%3Ae");
    }

    /// A reply to a request for `a` (shared) and `b`, as `change` makes it.
    fn check_reply(change: impl FnOnce(&mut serde_json::Value)) -> Result<(), Failure> {
        let id = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let lease = |lock: &str, token: u64| {
            serde_json::json!({"lock": lock, "lease_id": id, "token": token, "ttl_ms": 9,
                "owner": "me", "waited_ms": 0, "fencing_credential": "c", "fencing_token": "f"})
        };
        let mut reply = serde_json::json!({"leases": [lease("a", 3), lease("b", 4)]});
        reply["leases"][0]["mode"] = "shared".into();
        change(&mut reply["leases"]);
        let request = serde_json::json!({"locks": [{"lock": "a", "mode": "shared"}, {"lock": "b"}],
            "lease_id": id});
        let reply = serde_json::from_value(reply).unwrap();
        check_all(&serde_json::from_value(request).unwrap(), &reply)
    }

    #[test]
    fn a_reply_to_several_is_for_all_of_them_as_requested() {
        check_reply(|_| {}).unwrap();
        let other_id = "67e55044-10b1-426f-9247-bb680e5fe0c9";
        let wrong: [fn(&mut serde_json::Value); 5] = [
            |leases| drop(leases.as_array_mut().unwrap().pop()),
            |leases| leases[1]["lock"] = "c".into(),
            |leases| leases[1]["mode"] = "shared".into(),
            |leases| leases[1]["token"] = 3.into(),
            |leases| leases.as_array_mut().unwrap().reverse(),
        ];
        for change in wrong {
            assert!(matches!(check_reply(change), Err(Failure::Unusable(_))));
        }
        let foreign = check_reply(|leases| leases[1]["lease_id"] = other_id.into());
        assert!(matches!(foreign, Err(Failure::Unusable(_))));
    }
}
