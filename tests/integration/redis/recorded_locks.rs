//! Requests while Redis is replaced under its lock server, with a record of the grants.

use std::ops::Deref;

use fence_protocol::wire::lock::LeaseReply;
use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Locks, Reply};
use fence_tests::checks::{overlaps, tokens_rise};
use fence_tests::history::{Granted, History};
use fence_tests::redis_server::Redis;
use fence_tests::wait::{until, until_true};
use serde_json::json;

/// One lock server, with a record of the leases that it granted.
pub(super) struct RecordedLocks {
    locks: Locks,
    history: History,
}

impl Deref for RecordedLocks {
    type Target = Locks;

    fn deref(&self) -> &Locks {
        &self.locks
    }
}

impl RecordedLocks {
    pub(super) fn by(locks: Locks) -> Self {
        Self { locks, history: History::new() }
    }

    /// Asks once for a lease that is not given back.
    pub(super) async fn acquire_once(&self, lock: &str, ttl_ms: u64) -> Option<LeaseReply> {
        let invoked_ns = self.history.now_ns();
        let reply = self.locks.acquire(lock, json!({"ttl_ms": ttl_ms})).await;
        if reply.status != 200 {
            // 410: its time had passed before the server could reply.
            assert!([410, 423, 503, 504].contains(&reply.status), "{reply:?}");
            return None;
        }
        let lease = reply.lease();
        self.history.granted(Granted {
            lock: lock.to_owned(),
            lease: lease.lease_id,
            token: lease.token.get(),
            ttl_ms,
            span: self.history.since(invoked_ns),
            released_ns: None,
            kept_ns: None,
        });
        Some(lease)
    }

    /// Asks until it is granted.
    pub(super) async fn granted(&self, lock: &str, ttl_ms: u64) -> LeaseReply {
        until("a grant", || self.acquire_once(lock, ttl_ms)).await
    }

    /// Reply to a renewal, once Redis can be asked.
    pub(super) async fn renewed(&self, lock: &str, lease: LeaseId) -> Reply {
        until("an answer about the lease", || async {
            let reply = self.locks.renew(lock, lease).await;
            (!matches!(reply.status, 503 | 504)).then_some(reply)
        })
        .await
    }

    /// Checks that no client was granted a lock beside its holder, and that tokens rose.
    pub(super) fn is_sound(&self) {
        let grants = self.history.grants();
        assert_eq!(overlaps(&grants), Vec::<String>::new());
        assert_eq!(tokens_rise(&grants), Ok(()));
    }

    /// The clock of a new master is far ahead: it takes the lease for one that ended long ago, and
    /// has dropped it. No client is granted the lock while its holder may believe.
    pub(super) async fn is_forgotten_and_waited_for(&self, lock: &str, held: &LeaseReply) {
        self.renewed(lock, held.lease_id).await.problem(Code::LeaseLost);
        let next = self.granted(lock, 300).await;
        assert!(next.token > held.token, "{next:?} after {held:?}");
        self.is_sound();
    }

    /// The clock of a new master is another: the lease has the time that it was promised.
    pub(super) async fn keeps_its_time(&self, lock: &str, held: &LeaseReply) {
        assert_eq!(self.renewed(lock, held.lease_id).await.lease().token, held.token);
        // It ends by itself, and not with the clock of the new master.
        let next = self.granted(lock, 300).await;
        assert!(next.token > held.token, "{next:?} after {held:?}");
        self.is_sound();
    }
}

/// Waits until the replicas of a master have everything. Whether they show it depends on their
/// clocks.
pub(super) async fn has_all(master: &Redis, replicas: u64) {
    until_true("the replicas to have everything", || async {
        let mut connection = master.connect().await.unwrap();
        // WAIT is for what this connection has written, and a cluster takes only keys of its slots.
        // A replica that has just been copied to may not be asked for a second yet.
        let mut written = redis::pipe();
        written.cmd("SET").arg(&["{fence:default}:any", "thing"]).ignore();
        written.cmd("WAIT").arg(replicas).arg(100);
        let counted: Result<(u64,), _> = written.query_async(&mut connection).await;
        counted.is_ok_and(|(count,)| count >= replicas)
    })
    .await;
}
