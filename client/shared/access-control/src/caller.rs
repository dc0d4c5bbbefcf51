//! The authenticated caller of a request, for handlers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use fence_protocol::{Code, LeaseId, LockName, SessionId};
use service_kit::clock::Clock;
use service_kit::problem::Reject;

use crate::audit::{Line, Recorder};
use crate::file::AccessFile;
use crate::ledger::{Full, Key, Ledger, Life};
use crate::list::Principal;
use crate::rights::{Scope, Verb};
use crate::secret::Credential;

/// Most notes of a handler in the audit log.
const NOTES_MAX: usize = 8;

/// Caller of a request. Extract it in a handler before the body.
///
/// Without an access file callers are not distinguished, and every check succeeds.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub(crate) known: Option<Arc<KnownCaller>>,
    /// Session to which requested leases are bound.
    session: Option<SessionId>,
    /// `None` without a gate, and so without an audit log.
    notes: Option<Arc<Notes>>,
    /// As `notes`.
    pub(crate) act: Option<Arc<Act>>,
}

/// Act of administration that a handler begins, because only the body asks for it.
#[derive(Debug)]
pub(crate) struct Act {
    pub(crate) recorder: Recorder,
    pub(crate) line: Line,
    /// Set once the act has begun.
    pub(crate) verb: OnceLock<Verb>,
}

/// Notes of handlers for the line of the audit log.
type Notes = Mutex<BTreeMap<&'static str, String>>;

/// Caller that the access file names.
#[derive(Debug)]
pub(crate) struct KnownCaller {
    pub(crate) principal: Arc<Principal>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) file: AccessFile,
    pub(crate) credential: Credential,
}

impl Caller {
    pub(crate) fn known(known: KnownCaller) -> Self {
        Self { known: Some(Arc::new(known)), ..Self::unknown() }
    }

    /// Creates a caller that was admitted without a bearer token.
    pub(crate) fn unknown() -> Self {
        Self { notes: Some(Arc::default()), ..Self::default() }
    }

    /// The name in the access file; `None` without one.
    pub fn name(&self) -> Option<&str> {
        self.known.as_ref().map(|known| known.principal.name.as_str())
    }

    /// Rights in the access file, as they are written there; none without one.
    pub fn rights(&self) -> Vec<String> {
        let grants = self.known.iter().flat_map(|known| &known.principal.grants);
        grants.map(ToString::to_string).collect()
    }

    /// Binds the leases that the caller requests to its own `session`: they count while it lives.
    #[must_use]
    pub fn within(self, session: Option<SessionId>) -> Self {
        Self { session, ..self }
    }

    /// Adds a note, such as the reason of a revocation, to this request's line of the audit log.
    /// Notes after the eighth are dropped.
    pub fn record(&self, what: &'static str, text: impl ToString) {
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

    /// Checks the caller's right on a name from the request body.
    ///
    /// # Errors
    /// 403 without the right.
    pub fn may(&self, verb: Verb, name: &str) -> Result<(), Reject> {
        self.check(verb, Scope::Name(name.as_bytes()))
    }

    /// Checks the caller's right on all names.
    ///
    /// # Errors
    /// 403 without the right.
    pub fn may_all(&self, verb: Verb) -> Result<(), Reject> {
        self.check(verb, Scope::Under(b""))
    }

    /// Checks the caller's right to an act of administration which the route does not show, and
    /// writes its first line to the audit log; the last one follows with the reply.
    ///
    /// # Errors
    /// 403 without the right, 503 if the line cannot be written: then do nothing.
    pub fn begin(&self, verb: Verb, name: &str) -> Result<(), Reject> {
        self.may(verb, name)?;
        let Some(act) = &self.act else { return Ok(()) };
        let principal = self.name().map(ToOwned::to_owned);
        let verb_word = Some(verb.as_str());
        let line = Line { event: "admin", phase: "asked", principal, ..act.line.clone() };
        act.recorder.record(Line { verb: verb_word, ..line })?;
        let _ = act.verb.set(verb);
        Ok(())
    }

    /// Returns `true` if the current access file still gives the caller this right. For streamed
    /// replies, which a change of the file must end too.
    pub fn may_still(&self, verb: Verb, scope: Scope<'_>) -> bool {
        self.known.as_ref().is_none_or(|known| {
            known.file.find(&known.credential).is_ok_and(|(principal, _)| {
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
                // A right ends at a separator.
                let covered = prefix.rfind(['/', ':']).map_or("", |end| &prefix[..=end]);
                (format!("everything under {prefix:?}"), format!("{verb} {covered}*"))
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

    /// Reserves room for a lease before it is requested.
    ///
    /// Report the result by [`Hold::granted`] or [`Hold::refused`]. Without a report the request
    /// was dropped and the lease may be held: it counts for `ttl_ms` milliseconds, or while the
    /// session of [`Caller::within`] lives, unless `rolled_back` says that such a lease is rolled
    /// back. One that `takes_over` another of the caller's on this lock needs no room in addition.
    ///
    /// # Errors
    /// 429 with `Retry-After` if the caller has reached its limit of leases.
    pub fn hold(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl_ms: u64,
        rolled_back: bool,
        takes_over: bool,
    ) -> Result<Hold, Reject> {
        let Some(known) = self.limited() else { return Ok(Hold(None)) };
        let key = (lock.clone(), lease);
        let now_ms = known.clock.monotonic_ms();
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
            frees: is_new && rolled_back,
            is_new,
            takes_over,
        })))
    }

    /// Records that a lease was renewed for `ttl_ms` milliseconds.
    pub fn kept(&self, lock: &LockName, lease: LeaseId, ttl_ms: u64) {
        if let Some(known) = self.limited() {
            known.keep((lock.clone(), lease), ttl_ms);
        }
    }

    /// Records that a lease has ended.
    pub fn ended(&self, lock: &LockName, lease: LeaseId) {
        if let Some(known) = self.limited() {
            known.ledger.end(&(lock.clone(), lease));
        }
    }

    /// The caller, if its leases are limited.
    fn limited(&self) -> Option<&Arc<KnownCaller>> {
        self.known.as_ref().filter(|known| known.principal.limits.locks.is_some())
    }

    /// Counts the request as a waiter until the returned guard is dropped. The next request for a
    /// `lease` that waits for this lock, of several the first, is no second waiter.
    ///
    /// # Errors
    /// 429 with `Retry-After` if the caller has reached its limit of waiters.
    pub fn wait(&self, lock: &LockName, lease: LeaseId) -> Result<Waiting, Reject> {
        self.count(Some((lock.clone(), lease)))
    }

    /// Counts the request as a stream, which is limited as a waiter, until the returned guard is
    /// dropped.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn stream(&self) -> Result<Waiting, Reject> {
        self.count(None)
    }

    fn count(&self, key: Option<Key>) -> Result<Waiting, Reject> {
        let Some(known) = &self.known else { return Ok(Waiting(None)) };
        let limits = &known.principal.limits;
        let counted = match &key {
            Some(key) => known.ledger.wait(limits, key),
            None => known.ledger.stream(limits),
        };
        counted.map_err(|full| known.reject(full))?;
        Ok(Waiting(Some((Arc::clone(&known.ledger), key))))
    }
}

impl KnownCaller {
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

/// Guard that counts a waiter or a stream; dropping it ends the count.
#[derive(Debug)]
#[must_use]
pub struct Waiting(Option<(Arc<Ledger>, Option<Key>)>);

impl Drop for Waiting {
    fn drop(&mut self) {
        match &self.0 {
            Some((ledger, Some(key))) => ledger.waited(key),
            Some((ledger, None)) => ledger.streamed(),
            None => {}
        }
    }
}

/// Reserved room for a requested lease.
#[derive(Debug)]
#[must_use]
pub struct Hold(Option<Reserved>);

#[derive(Debug)]
struct Reserved {
    known: Arc<KnownCaller>,
    key: (LockName, LeaseId),
    /// `true` if the room is freed when no result is reported.
    frees: bool,
    is_new: bool,
    takes_over: bool,
}

impl Hold {
    /// Reports a grant for `ttl_ms` milliseconds.
    pub fn granted(mut self, ttl_ms: u64) {
        if let Some(reserved) = self.0.take() {
            if reserved.takes_over {
                reserved.known.ledger.end_others(&reserved.key);
            }
            reserved.known.keep(reserved.key, ttl_ms);
        }
    }

    /// Reports that certainly no new lease was granted.
    pub fn refused(mut self) {
        if let Some(reserved) = self.0.take().filter(|reserved| reserved.is_new) {
            reserved.known.ledger.end(&reserved.key);
        }
    }

    /// Reports that certainly no lease of that id is live, from this request or an earlier one.
    pub fn gone(mut self) {
        if let Some(reserved) = self.0.take() {
            reserved.known.ledger.end(&reserved.key);
        }
    }

    /// Reports an unknown outcome: the lease counts until it would have expired.
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
