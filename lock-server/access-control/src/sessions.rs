//! Whose a session is, and how many a principal has.

use fence_protocol::{Code, SessionId};
use service_kit::problem::Reject;

use crate::Caller;

impl Caller {
    /// Whether a session is known to be the caller's without asking the store; always where nobody
    /// is told from anybody.
    pub fn owns_session(&self, id: SessionId) -> bool {
        self.known.as_ref().is_none_or(|known| {
            let now_ms = known.clock.monotonic_ms();
            known.ledger.owns_session(id, now_ms)
        })
    }

    /// Whether a session that began as `principal`'s is the caller's. One that began where there was
    /// no access file is nobody's.
    ///
    /// # Errors
    /// 403. Nothing is told of whose it is.
    pub fn is_session_of(&self, id: SessionId, principal: Option<&str>) -> Result<(), Reject> {
        let Some(name) = self.name().filter(|name| principal != Some(name)) else { return Ok(()) };
        let hint = "Create a session with the bearer token that uses it; an operator may block this \
                    one.";
        let detail = format!("session {id} was not created by {name}");
        Err(Reject::new(Code::Forbidden, detail).with("session_id", id).hint(hint))
    }

    /// Makes room for a session that is about to be asked for; whether it is a new one. It counts
    /// for `ttl_ms`, unless something else is said.
    ///
    /// # Errors
    /// 429 with `Retry-After` where the caller has as many sessions as it may.
    pub fn begin_session(&self, id: SessionId, ttl_ms: u64) -> Result<bool, Reject> {
        let Some(known) = &self.known else { return Ok(false) };
        let now_ms = known.clock.monotonic_ms();
        let until_ms = now_ms.saturating_add(ttl_ms);
        let reserved = known.ledger.reserve_session(&known.principal.limits, id, now_ms, until_ms);
        reserved.map_err(|full| known.reject(full))
    }

    /// The store said that a session is the caller's and lives for another `ttl_ms`.
    pub fn kept_session(&self, id: SessionId, ttl_ms: u64) {
        if let Some(known) = &self.known {
            let now_ms = known.clock.monotonic_ms();
            known.ledger.keep_session(id, now_ms, now_ms.saturating_add(ttl_ms));
        }
    }

    /// A session has ended, or is not the caller's.
    pub fn ended_session(&self, id: SessionId) {
        if let Some(known) = &self.known {
            known.ledger.end_session(id);
        }
    }
}
