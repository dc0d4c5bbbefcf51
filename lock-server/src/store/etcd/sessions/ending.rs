//! How sessions end: by their client's word, by their time, and by whoever finds one half ended.

use std::time::Duration;

use fence_protocol::SessionId;
use fence_protocol::wire::session::SessionEndReason;

use super::super::txn::{Compare, On, Op, Txn};
use super::super::{EtcdStore, store_error};
use super::Sessions;
use super::record::Seen;
use crate::store::StoreError;

/// Before what etcd did not let us end is tried again.
const PAUSE_MS: u64 = 250;

impl Sessions {
    /// Whether a session that is there must not be: its time has passed by this server's watch and
    /// nobody heard a later heartbeat, or somebody began to end it.
    pub(super) fn must_end(&self, id: SessionId, seen: &Seen) -> bool {
        let until_ms = self.inner.watched.deadlines().of(id, seen.last_beat());
        let is_over = until_ms.is_some_and(|at_ms| at_ms <= self.inner.clock.monotonic_ms());
        seen.is_half_ended() || (seen.is_there && is_over)
    }

    /// Ends what [`must_end`](Self::must_end).
    ///
    /// # Errors
    /// Where etcd cannot be used; whoever looks next tries again.
    pub(super) async fn carry_out(&self, id: SessionId, seen: &Seen) -> Result<(), StoreError> {
        if seen.is_half_ended() {
            let gateway = &self.inner.gateway;
            return gateway.lease_revoke(seen.stored.lease).await.map_err(store_error);
        }
        self.close(id, seen, seen.stored.natural_end()).await.map(|_| ())
    }

    /// Ends a live session as it was seen, and gives how many bonds it had; `None` where it has
    /// changed since. The record says so first: from then on it takes neither heartbeats nor leases.
    /// Then everything that is bound to it ends in one step.
    pub(super) async fn close(
        &self,
        id: SessionId,
        seen: &Seen,
        reason: SessionEndReason,
    ) -> Result<Option<usize>, StoreError> {
        let (keys, mut stored) = (&self.inner.keys, seen.stored.clone());
        stored.ended = Some(reason);
        let beat = seen.serves.map_or(0, |beat| beat.revision);
        let mut compare = vec![
            Compare::exists(&keys.session_lives(id)),
            Compare::unchanged(&keys.session_record(id), seen.stored_revision),
        ];
        if reason != SessionEndReason::Ended {
            // A heartbeat that came in between keeps it.
            compare.push(Compare::unchanged(&keys.session(id), beat));
        }
        let txn = Txn {
            compare,
            success: vec![
                Op::put(&keys.session_record(id), &stored.text(), On::TheSame),
                Op::delete(&keys.session(id)),
                Op::count(&keys.bonds(id)),
            ],
            failure: Vec::new(),
        };
        let reply = self.inner.gateway.write(&txn).await.map_err(store_error)?;
        if !reply.succeeded {
            return Ok(None);
        }
        let count = reply.ranges().next().unwrap_or_default().count;
        let revoked = self.inner.gateway.lease_revoke(stored.lease).await;
        // It is ended for itself; its leases end as soon as etcd answers again, or by its time.
        revoked.map_err(|error| StoreError::Unknown(error.to_string()))?;
        self.inner.watched.deadlines().forget(id);
        Ok(Some(usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// Ends the session if its time has passed; forgets it where another server watches it.
    async fn expire(&self, id: SessionId) {
        match self.look(id).await {
            // It has ended, or another server heard of it later than this one.
            Ok(_) => {
                self.inner.watched.deadlines().forget_passed(id, self.inner.clock.monotonic_ms())
            }
            Err(error) => {
                tracing::debug!(%id, %error, "a session whose time has passed is ended later");
                let at_ms = self.inner.clock.monotonic_ms() + PAUSE_MS;
                self.inner.watched.deadlines().postpone(id, at_ms);
            }
        }
    }
}

/// Ends every session whose last heartbeat was heard here, when its time has passed.
pub(in crate::store::etcd) async fn run(store: EtcdStore) {
    let sessions = store.sessions();
    let shutdown = sessions.inner.tasks.shutdown_token();
    loop {
        let now_ms = sessions.inner.clock.monotonic_ms();
        let first = sessions.inner.watched.deadlines().first();
        match first {
            Some((at_ms, id)) if at_ms <= now_ms => {
                let ended = shutdown.run_until_cancelled(sessions.expire(id)).await;
                if ended.is_none() {
                    return;
                }
            }
            _ => {
                let wait_ms = first.map_or(PAUSE_MS * 40, |(at_ms, _)| at_ms - now_ms);
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                    () = sessions.inner.watched.changed.notified() => {}
                    () = shutdown.cancelled() => return,
                }
            }
        }
    }
}
