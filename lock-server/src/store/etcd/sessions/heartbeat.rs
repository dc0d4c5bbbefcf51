//! Sessions get their time again.

use fence_protocol::SessionId;

use super::super::store_error;
use super::super::txn::{Compare, On, Op, Txn};
use super::Sessions;
use super::record::{Deadline, Seen, Stored};
use crate::store::StoreError;

impl Sessions {
    /// Gives a session its time again, and reads it; none where it does not serve any more.
    pub(super) async fn beat(
        &self,
        id: SessionId,
        stored: &Stored,
    ) -> Result<Option<Seen>, StoreError> {
        let inner = &self.inner;
        // Counted from before etcd counts, so that etcd never ends it first.
        let at_ms = inner.clock.monotonic_ms().saturating_add(stored.ttl_ms.ms());
        // Before it is said that the session has its time again.
        let (lives, after) = tokio::join!(
            inner.gateway.lease_keepalive(stored.lease),
            inner.gateway.lease_keepalive(stored.lease_after),
        );
        let (lives, after) = (lives.map_err(store_error)?, after.map_err(store_error)?);
        let key = inner.keys.session(id);
        let mut success = vec![Op::put(&key, &inner.server_id, On::Lease(stored.lease))];
        success.extend(self.reading(id));
        let txn = Txn { compare: vec![Compare::exists(&key)], success, failure: Vec::new() };
        let reply = match inner.gateway.write(&txn).await {
            Ok(reply) if reply.succeeded => reply,
            Ok(_) => return Ok(None),
            Err(error) if error.is_no_lease() => return Ok(None),
            Err(error) => return Err(store_error(error)),
        };
        // The answer of a leader that is none any more gives nothing its time again.
        let term = reply.header.raft_term;
        let both = tokio::try_join!(
            inner.gateway.alive_in(term, stored.lease, Ok(lives)),
            inner.gateway.alive_in(term, stored.lease_after, Ok(after)),
        );
        let (is_there, _) = both.map_err(|error| {
            StoreError::Unknown(format!(
                "whether session {id} has its time again is not known ({error}); repeat it"
            ))
        })?;
        if !is_there {
            return Ok(None);
        }
        inner.watched.heard(id, Deadline { at_ms, beat: reply.header.revision });
        Seen::read(reply)
    }

    /// The session with a time that can be told to whoever relies on it. Another server that heard
    /// the last heartbeat ends it by its own watch, which nobody here can read: etcd's lease may be
    /// longer by far. So a heartbeat is made here, unless the session takes none.
    ///
    /// # Errors
    /// Why it does not serve any more; where etcd cannot be used.
    pub(super) async fn heard_here(&self, id: SessionId, seen: Seen) -> Result<Seen, StoreError> {
        if seen.serves.is_none() || self.deadline_ms(id, &seen).is_some() {
            return Ok(seen);
        }
        match self.beat(id, &seen.stored).await? {
            Some(seen) => Ok(seen),
            None => Err(self.refusal(id).await),
        }
    }
}
