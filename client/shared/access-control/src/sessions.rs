//! Ownership of sessions, and the limit of sessions a principal.

use fence_protocol::{Code, SessionId};
use service_kit::problem::Reject;

use crate::Caller;

impl Caller {
    /// Returns `true` if the session is known to be the caller's without a query of the store;
    /// always `true` when access control is off.
    pub fn owns_session(&self, id: SessionId) -> bool {
        self.known.as_ref().is_none_or(|known| {
            let now_ms = known.clock.monotonic_ms();
            known.ledger.owns_session(id, now_ms)
        })
    }

    /// Checks that the caller is the principal that created the session. A session created without
    /// an access file belongs to no principal.
    ///
    /// # Errors
    /// 403, without the name of the session's principal.
    pub fn is_session_of(&self, id: SessionId, principal: Option<&str>) -> Result<(), Reject> {
        let Some(name) = self.name().filter(|name| principal != Some(name)) else { return Ok(()) };
        let hint = "Create a session with the bearer token that uses it; an operator may block this \
                    one.";
        let detail = format!("session {id} was not created by {name}");
        Err(Reject::new(Code::Forbidden, detail).with("session_id", id).hint(hint))
    }

    /// Reserves room for a session before it is requested; returns `true` if it is new. It counts
    /// for `ttl_ms` milliseconds, unless `kept_session` or `ended_session` is called.
    ///
    /// # Errors
    /// 429 with `Retry-After` if the caller has reached its limit of sessions.
    pub fn begin_session(&self, id: SessionId, ttl_ms: u64) -> Result<bool, Reject> {
        let Some(known) = &self.known else { return Ok(false) };
        let now_ms = known.clock.monotonic_ms();
        let until_ms = now_ms.saturating_add(ttl_ms);
        let reserved = known.ledger.reserve_session(&known.principal.limits, id, now_ms, until_ms);
        reserved.map_err(|full| known.reject(full))
    }

    /// Records the store's reply that a session is the caller's and lives for another `ttl_ms`
    /// milliseconds.
    pub fn kept_session(&self, id: SessionId, ttl_ms: u64) {
        if let Some(known) = &self.known {
            let now_ms = known.clock.monotonic_ms();
            known.ledger.keep_session(id, now_ms, now_ms.saturating_add(ttl_ms));
        }
    }

    /// Records that a session has ended or is not the caller's.
    pub fn ended_session(&self, id: SessionId) {
        if let Some(known) = &self.known {
            known.ledger.end_session(id);
        }
    }
}
