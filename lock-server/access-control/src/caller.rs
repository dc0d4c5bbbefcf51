//! Who a request came from, for handlers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use fence_protocol::{Code, LeaseId, LockName, SessionId};
use service_kit::clock::Clock;
use service_kit::problem::Reject;

use crate::file::AccessFile;
use crate::ledger::{Full, Ledger, Life};
use crate::list::Principal;
use crate::rights::{Scope, Verb};
use crate::secret::SecretHash;

/// How many notes a handler may leave.
const NOTES_MAX: usize = 8;

/// Who a request came from. Take it as an argument of a handler, before the body.
///
/// Without an access file everybody is the same and may do everything: all methods then let pass.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub(crate) known: Option<Arc<Known>>,
    /// Leases that are asked for live as long as this one.
    session: Option<SessionId>,
    /// Absent where there is no gate, and so no audit log.
    notes: Option<Arc<Notes>>,
}

/// What handlers want to stand in the line of the audit log.
type Notes = Mutex<BTreeMap<&'static str, String>>;

/// Somebody whom the access file names.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) principal: Arc<Principal>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) file: AccessFile,
    pub(crate) hash: SecretHash,
}

impl Caller {
    pub(crate) fn known(known: Known) -> Self {
        Self { known: Some(Arc::new(known)), ..Self::unknown() }
    }

    /// A caller that a gate let pass without a bearer token.
    pub(crate) fn unknown() -> Self {
        Self { notes: Some(Arc::default()), ..Self::default() }
    }

    /// The name in the access file; none without one.
    pub fn name(&self) -> Option<&str> {
        self.known.as_ref().map(|known| known.principal.name.as_str())
    }

    /// The same caller; the leases that it asks for are bound to `session`, which is its own, and
    /// count as long as that lives.
    #[must_use]
    pub fn within(self, session: Option<SessionId>) -> Self {
        Self { session, ..self }
    }

    /// Adds a word to the line of the audit log that this request may get, such as the reason of a
    /// revocation. Beyond eight, notes are dropped.
    pub fn note(&self, what: &'static str, text: impl ToString) {
        let Some(notes) = &self.notes else { return };
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX {
            notes.insert(what, text.to_string());
        }
    }

    pub(crate) fn take_notes(&self) -> BTreeMap<&'static str, String> {
        let Some(notes) = &self.notes else { return BTreeMap::new() };
        std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the caller may do this with a name that stood in the body.
    ///
    /// # Errors
    /// 403.
    pub fn may(&self, verb: Verb, name: &str) -> Result<(), Reject> {
        self.check(verb, Scope::Name(name.as_bytes()))
    }

    /// Whether the caller may do this with every name there is.
    ///
    /// # Errors
    /// 403.
    pub fn may_all(&self, verb: Verb) -> Result<(), Reject> {
        self.check(verb, Scope::Under(b""))
    }

    /// Whether the access file that is in force now still lets the caller do this. For replies that
    /// go on and on: a change of the file ends them too.
    pub fn may_still(&self, verb: Verb, scope: Scope<'_>) -> bool {
        self.known.as_ref().is_none_or(|known| {
            known.file.find(&known.hash).is_some_and(|(principal, _)| {
                let is_same = principal.name == known.principal.name;
                is_same && principal.may(verb, scope)
            })
        })
    }

    pub(crate) fn check(&self, verb: Verb, scope: Scope<'_>) -> Result<(), Reject> {
        let Some(known) = &self.known else { return Ok(()) };
        if known.principal.may(verb, scope) {
            return Ok(());
        }
        let (shown, wanted) = match scope {
            Scope::Name(name) => {
                let name = String::from_utf8_lossy(name).into_owned();
                (name.clone(), format!("{verb} {name}"))
            }
            Scope::Under([]) => ("all of this server".to_owned(), format!("{verb} *")),
            Scope::Under(prefix) => {
                let prefix = String::from_utf8_lossy(prefix);
                (format!("everything under {prefix:?}"), format!("{verb} {prefix}*"))
            }
            Scope::Somewhere => ("any name".to_owned(), format!("{verb} *")),
        };
        let detail = format!("{} has no right to {verb} {shown}", known.principal.name);
        let hint = format!("Ask an operator for the right \"{wanted}\" in the access file.");
        Err(Reject::new(Code::Forbidden, detail).hint(hint))
    }

    pub(crate) fn request(&self) -> Result<(), Reject> {
        let Some(known) = &self.known else { return Ok(()) };
        let now_ms = known.clock.monotonic_ms();
        known.ledger.request(&known.principal.limits, now_ms).map_err(|full| known.reject(full))
    }

    /// Makes room for a lease that is about to be asked for.
    ///
    /// Say with [`Hold::granted`] or [`Hold::refused`] how it ended. Where neither is said, the
    /// request was given up and the lease may be held: it counts for `ttl_ms`, or as long as the
    /// session of [`Caller::within`], unless `taken_back` says that somebody ends such a lease.
    ///
    /// # Errors
    /// 429 with `Retry-After` where the caller holds as many locks as it may.
    pub fn hold(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl_ms: u64,
        taken_back: bool,
    ) -> Result<Hold, Reject> {
        self.reserve(lock, lease, ttl_ms, taken_back, false)
    }

    /// As [`hold`](Self::hold) for a lease that takes the place of another of the caller's on this
    /// lock: it needs no room beside that.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub fn hold_instead(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl_ms: u64,
        taken_back: bool,
    ) -> Result<Hold, Reject> {
        self.reserve(lock, lease, ttl_ms, taken_back, true)
    }

    fn reserve(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl_ms: u64,
        taken_back: bool,
        takes_over: bool,
    ) -> Result<Hold, Reject> {
        let Some(known) = self.limited() else { return Ok(Hold(None)) };
        let (key, now_ms) = ((lock.clone(), lease), known.clock.monotonic_ms());
        let until = Life::Until(now_ms.saturating_add(ttl_ms));
        let life = self.session.map_or(until, Life::Of);
        let limits = &known.principal.limits;
        let is_new = known
            .ledger
            .reserve(limits, key.clone(), now_ms, life, takes_over)
            .map_err(|full| known.reject(full))?;
        Ok(Hold(Some(Reserved {
            known: Arc::clone(known),
            key,
            frees: is_new && taken_back,
            is_new,
            takes_over,
        })))
    }

    /// A lease was renewed and lives for another `ttl_ms`.
    pub fn kept(&self, lock: &LockName, lease: LeaseId, ttl_ms: u64) {
        if let Some(known) = self.limited() {
            known.keep((lock.clone(), lease), ttl_ms);
        }
    }

    /// A lease has ended.
    pub fn ended(&self, lock: &LockName, lease: LeaseId) {
        if let Some(known) = self.limited() {
            known.ledger.end(&(lock.clone(), lease));
        }
    }

    /// The caller, where its locks are counted.
    fn limited(&self) -> Option<&Arc<Known>> {
        self.known.as_ref().filter(|known| known.principal.limits.locks.is_some())
    }

    /// Counts the request among those that wait, or that are answered for long, until what is returned is dropped.
    ///
    /// # Errors
    /// 429 with `Retry-After` where as many wait as may.
    pub fn wait(&self) -> Result<Waiting, Reject> {
        let Some(known) = &self.known else { return Ok(Waiting(None)) };
        known.ledger.wait(&known.principal.limits).map_err(|full| known.reject(full))?;
        Ok(Waiting(Some(Arc::clone(&known.ledger))))
    }
}

impl Known {
    fn keep(&self, key: (LockName, LeaseId), ttl_ms: u64) {
        let now_ms = self.clock.monotonic_ms();
        self.ledger.keep(&self.principal.limits, key, now_ms, now_ms.saturating_add(ttl_ms));
    }

    pub(crate) fn reject(&self, full: Full) -> Reject {
        let Full { what, limit, retry_after_ms } = full;
        let detail = format!("{}: {what}: the limit is {limit}", self.principal.name);
        Reject::new(Code::LimitReached, detail)
            .with("limit", limit)
            .retry_after(retry_after_ms.div_ceil(1_000).max(1))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// A request that waits; dropping it is the end of the waiting.
#[derive(Debug)]
#[must_use]
pub struct Waiting(Option<Arc<Ledger>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ledger) = &self.0 {
            ledger.waited();
        }
    }
}

/// Room for a lease that was asked for.
#[derive(Debug)]
#[must_use]
pub struct Hold(Option<Reserved>);

#[derive(Debug)]
struct Reserved {
    known: Arc<Known>,
    key: (LockName, LeaseId),
    /// Whether the room is free again when nothing is said.
    frees: bool,
    is_new: bool,
    takes_over: bool,
}

impl Hold {
    /// The lease lives for `ttl_ms`.
    pub fn granted(mut self, ttl_ms: u64) {
        if let Some(reserved) = self.0.take() {
            if reserved.takes_over {
                reserved.known.ledger.end_others(&reserved.key);
            }
            reserved.known.keep(reserved.key, ttl_ms);
        }
    }

    /// It is certain that there is no new lease.
    pub fn refused(mut self) {
        if let Some(reserved) = self.0.take().filter(|reserved| reserved.is_new) {
            reserved.known.ledger.end(&reserved.key);
        }
    }
}

impl Hold {
    /// It is certain that there is no lease of that id any more, whoever asked for it first.
    pub fn gone(mut self) {
        if let Some(reserved) = self.0.take() {
            reserved.known.ledger.end(&reserved.key);
        }
    }

    /// Nobody knows whether there is a lease: it counts until it would have expired.
    pub fn unknown(mut self) {
        self.0 = None;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(reserved) = self.0.take().filter(|reserved| reserved.frees) {
            reserved.known.ledger.end(&reserved.key);
        }
    }
}
