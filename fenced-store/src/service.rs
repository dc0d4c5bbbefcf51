//! What the handlers call: passes an operation to the store and keeps account of what it said.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use fence_protocol::wire::fence::{Front, Guarantee, Mode, StoreLine, StoresReply};
use fence_protocol::{Code, LockName, Token};
use http::HeaderMap;
use service_kit::Kit;
use service_kit::problem::Reject;

use crate::counters::Counters;
use crate::fencing::{FencingPolicy, Intent};
use crate::key::ObjectKey;
use crate::observe::Observer;
use crate::refusals::{Refusals, Refused};
use crate::report::Reporter;
use crate::rules::Protection;
use crate::store::{
    Effect, FenceStore, Fences, First, Once, Operation, Outcome, StoreError, StoreReport,
};
use crate::verdict::{Fence, Mark};

pub use crate::failure::{Failure, RequestSummary, UNKNOWN_HINT, failure};

/// The guard: rules, store, and the account of what was refused. Shared by all requests.
#[derive(Debug)]
pub struct Guard {
    /// Who may reach what.
    pub fencing: FencingPolicy,
    /// The marks; of the objects' store, or of the lanes before an opaque upstream.
    pub fences: Arc<dyn Fences>,
    /// The objects, where this guard keeps some.
    pub objects: Option<Arc<dyn FenceStore>>,
    /// What was refused.
    pub refusals: Refusals,
    /// Who tells a lock server of it, by option.
    pub reporter: Option<Reporter>,
    /// What is counted.
    pub counters: Counters,
    /// What observe mode lets pass.
    pub observer: Observer,
    /// The front doors, as they were opened.
    pub fronts: Mutex<Vec<Front>>,
    /// Clock and tasks.
    pub kit: Kit,
}

/// An operation that was applied.
#[derive(Debug)]
pub struct Applied {
    /// What it did, now or when it was sent first.
    pub effect: Effect,
    /// The lock's mark now; `None` without a fence.
    pub mark: Option<Token>,
    /// It was done before, under its name; of a write also the tag that it gave the object then.
    pub repeated: Option<First>,
}

impl Applied {
    fn now(effect: Effect, mark: Option<Token>) -> Self {
        Self { effect, mark, repeated: None }
    }

    /// What became of it when it was sent first, where that was a success.
    fn before(first: &First, mark: Option<Token>) -> Option<Self> {
        let effect = match first {
            First::Stored { created, .. } => Effect::Stored { created: *created },
            First::Deleted { existed: true } => Effect::Deleted,
            First::Deleted { existed: false } => Effect::Absent,
            First::PreconditionFailed { .. } => return None,
        };
        Some(Self { effect, mark, repeated: Some(first.clone()) })
    }
}

impl Guard {
    /// What the guard guarantees; nothing in observe mode.
    pub fn guarantee(&self) -> Guarantee {
        match self.observer.mode() {
            Mode::Enforce => self.fences.guarantee(),
            Mode::Observe => Guarantee::Observe,
        }
    }

    /// The fence that an operation on `key` has to pass; `None` where it needs none, and where it
    /// shows no good token and observe mode lets it pass.
    ///
    /// # Errors
    /// As [`FencingPolicy::to_object`].
    pub fn fence(
        &self,
        key: &ObjectKey,
        headers: &HeaderMap,
        intent: Intent,
    ) -> Result<Option<Fence>, Reject> {
        match self.fencing.to_object(key, headers, intent) {
            Err(reject) if self.passes(reject.code(), key, &reject.problem().detail) => Ok(None),
            other => other,
        }
    }

    fn passes(&self, code: Code, key: &ObjectKey, detail: &str) -> bool {
        self.observer.passes(code, self.fencing.rules.label(key.as_str().as_bytes()), detail)
    }

    /// Observe mode: counts what the fence (or its store) would have refused, and returns the mark
    /// to tell.
    pub(crate) fn let_pass(
        &self,
        asked: &RequestSummary,
        key: &ObjectKey,
        outcome: &Result<Outcome, StoreError>,
    ) -> Option<Token> {
        if let Ok(outcome) = outcome
            && outcome.mark().is_some()
        {
            return outcome.mark();
        }
        let rule = self.fencing.rules.label(key.as_str().as_bytes());
        self.would_refuse(asked, rule, outcome.clone());
        refused_by(outcome).map(|mark| mark.token)
    }

    /// The mark that refuses an operation which passes all the same, in observe mode.
    fn passed_mark(
        &self,
        asked: &RequestSummary,
        rule: &str,
        outcome: &Result<Outcome, StoreError>,
    ) -> Option<Token> {
        let mark = refused_by(outcome)?;
        self.would_refuse(asked, rule, outcome.clone()).then_some(mark.token)
    }

    /// Counts what would be refused; whether it passes.
    fn would_refuse(
        &self,
        asked: &RequestSummary,
        rule: &str,
        outcome: Result<Outcome, StoreError>,
    ) -> bool {
        if self.observer.mode() == Mode::Enforce {
            return false;
        }
        let failure = failure(asked, outcome);
        let reject = failure.reject();
        self.observer.passes(reject.code(), rule, &reject.problem().detail)
    }

    /// A front door was opened here.
    pub fn opened(&self, kind: &str, listen: SocketAddr) {
        let front = Front { kind: kind.to_owned(), listen: listen.to_string() };
        self.fronts.lock().unwrap_or_else(PoisonError::into_inner).push(front);
    }

    /// What the guard stands before, as it is told to whoever asks.
    pub fn stores(&self) -> StoresReply {
        let StoreReport { kind, target, guarantee, probe, gaps } = self.fences.report();
        let line = StoreLine {
            kind: kind.to_owned(),
            target,
            fronts: self.fronts.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            guarantee: self.guarantee(),
            store_guarantee: guarantee,
            probe,
            gaps,
        };
        StoresReply {
            namespace: self.fencing.namespace.clone(),
            mode: self.observer.mode(),
            stores: vec![line],
            would_refuse: self.observer.lines(),
        }
    }

    /// Does an operation on an object. It runs in a task of its own: a client that hangs up
    /// cancels neither it nor the account of it.
    ///
    /// # Errors
    /// [`Failure`], ready to be sent.
    pub async fn apply(
        self: &Arc<Self>,
        asked: RequestSummary,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<Applied, Failure> {
        let Some(objects) = self.objects.clone() else {
            let detail = "this guard stands before an opaque upstream and keeps no objects";
            return Err(Reject::new(Code::NotOffered, detail).into());
        };
        let guard = Arc::clone(self);
        self.tracked(async move {
            let fence = asked.fence.clone();
            let first = objects.apply_once(fence, operation.clone(), once.clone()).await;
            let rule = guard.fencing.rules.label(operation.key().as_str().as_bytes());
            let Some(mark) = guard.passed_mark(&asked, rule, &first) else {
                return guard.account(&asked, first);
            };
            let outcome = objects.apply_once(None, operation, once).await;
            let applied = guard.account(&asked, outcome)?;
            Ok(Applied { mark: Some(mark), ..applied })
        })
        .await
    }

    /// `name` as the sender's name for `operation`, among those of the lock that protects its key.
    pub fn once(&self, name: &str, operation: &Operation) -> Once {
        let lock = match self.fencing.rules.protection(operation.key()) {
            Ok(Protection::Lock { lock, .. }) => Some(lock),
            Ok(Protection::Open | Protection::Deny) | Err(_) => None,
        };
        Once::new(lock.as_ref(), name, operation)
    }

    /// Raises a mark without touching data, in a task of its own as above.
    ///
    /// # Errors
    /// [`Failure`], ready to be sent.
    pub async fn seal(
        self: &Arc<Self>,
        asked: RequestSummary,
        fence: Fence,
    ) -> Result<Applied, Failure> {
        let guard = Arc::clone(self);
        self.tracked(async move {
            let begun_ms = guard.kit.clock.monotonic_ms();
            let outcome = match guard.observer.mode() {
                Mode::Enforce => guard.fences.seal(fence).await,
                Mode::Observe => guard.fences.note(fence).await,
            };
            let took_ms = guard.kit.clock.monotonic_ms().saturating_sub(begun_ms);
            guard.counters.seal_seconds.observe(took_ms as f64 / 1000.0);
            if let Some(mark) = guard.passed_mark(&asked, "seal", &outcome) {
                return Ok(Applied::now(Effect::Sealed, Some(mark)));
            }
            guard.account(&asked, outcome)
        })
        .await
    }

    async fn tracked(
        &self,
        work: impl Future<Output = Result<Applied, Failure>> + Send + 'static,
    ) -> Result<Applied, Failure> {
        self.kit.tasks.spawn(work).await.unwrap_or_else(|error| {
            tracing::error!(%error, "an operation's task ended without a result");
            Err(Reject::new(Code::Internal, "the operation's task ended without a result").into())
        })
    }

    /// Counts what became of an operation, notes refusals, and renders failures.
    ///
    /// # Errors
    /// [`Failure`] for everything but success.
    pub fn account(
        &self,
        asked: &RequestSummary,
        outcome: Result<Outcome, StoreError>,
    ) -> Result<Applied, Failure> {
        let verdict = verdict(&outcome);
        self.counters.count(asked.kind, verdict);
        let failed = match outcome {
            Ok(Outcome::Applied { effect, mark }) => return Ok(Applied::now(effect, mark)),
            other => other,
        };
        if let Ok(Outcome::Repeated { first, mark }) = &failed
            && let Some(applied) = Applied::before(first, *mark)
        {
            return Ok(applied);
        }
        if let (Some(fence), Some(mark)) = (&asked.fence, refused_by(&failed)) {
            self.note_refusal(asked, fence, mark, &failed);
        }
        Err(failure(asked, failed))
    }

    fn note_refusal(
        &self,
        asked: &RequestSummary,
        fence: &Fence,
        mark: Mark,
        outcome: &Result<Outcome, StoreError>,
    ) {
        let Mark { token, lease } = fence.presented;
        let is_collision = matches!(outcome, Ok(Outcome::Collision { .. }));
        let code = if is_collision { Code::TokenCollision } else { Code::StaleToken };
        let operation = asked.text.as_str();
        if is_collision {
            tracing::error!(
                lock = %fence.lock, %token, %lease, owner_of_mark = %mark.lease, operation,
                "ALARM: two leases present the same token; the lock server issued it twice"
            );
        } else {
            tracing::warn!(
                lock = %fence.lock, %token, mark = %mark.token, %lease, operation,
                "refused a stale token"
            );
        }
        let refused = Refused {
            token,
            lease,
            operation: asked.text.clone(),
            code,
            mark: mark.token,
            owner: asked.owner.clone(),
            at_ms: self.kit.clock.monotonic_ms(),
        };
        self.keep_refusal(&fence.lock, refused);
    }

    /// Notes a script that was refused something, on the account of the locks whose tokens its
    /// connection holds. Those tokens are not stale.
    pub(crate) fn note_denied_script(&self, held: &[Fence], summary: &str) {
        let tokens: Vec<String> = held
            .iter()
            .map(|fence| format!("{} of {}", fence.presented.token, fence.lock))
            .collect();
        tracing::warn!(tokens = tokens.join(", "), "refused a script: {summary}");
        for fence in held {
            let refused = Refused {
                token: fence.presented.token,
                lease: fence.presented.lease,
                operation: summary.to_owned(),
                code: Code::Forbidden,
                // The connection is registered under the token, so this is the mark.
                mark: fence.presented.token,
                owner: None,
                at_ms: self.kit.clock.monotonic_ms(),
            };
            self.keep_refusal(&fence.lock, refused);
        }
    }

    fn keep_refusal(&self, lock: &LockName, refused: Refused) {
        if let Some(reporter) = &self.reporter {
            reporter.refused(lock, &refused);
        }
        self.refusals.note(lock, refused);
    }

    /// The lock's refusals so far.
    pub fn refused_total(&self, lock: &LockName) -> u64 {
        self.refusals.total(lock)
    }
}

/// The mark that an operation met, where the fence refused it.
fn refused_by(outcome: &Result<Outcome, StoreError>) -> Option<Mark> {
    match outcome {
        Ok(
            Outcome::Stale { mark }
            | Outcome::Collision { mark }
            | Outcome::StaleRepeat { mark, .. },
        ) => Some(*mark),
        _ => None,
    }
}

fn verdict(outcome: &Result<Outcome, StoreError>) -> &'static str {
    match outcome {
        Ok(Outcome::Applied { .. }) => "applied",
        Ok(Outcome::Repeated { .. }) => "repeated",
        Ok(Outcome::NameTaken { .. }) => "op-id-reused",
        Ok(Outcome::Stale { .. } | Outcome::StaleRepeat { .. }) => "stale",
        Ok(Outcome::Collision { .. }) => "collision",
        Ok(Outcome::PreconditionFailed { .. }) => "precondition-failed",
        Err(StoreError::Unavailable(_)) => "unavailable",
        Err(StoreError::Unknown(_)) => "unknown",
        Err(StoreError::LimitReached(_)) => "limit-reached",
        Err(StoreError::Draining { .. }) => "draining",
        Err(StoreError::Quarantined { .. }) => "quarantined",
    }
}
