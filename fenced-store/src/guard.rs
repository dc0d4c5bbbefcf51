//! The guard that handlers call: passes operations to the store, and counts and logs their
//! outcomes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use fence_protocol::wire::fence::{
    Front, Guarantee, Mode, StoreLine, StoresReply, WriteOutcome as WireOutcome,
};
use fence_protocol::{Code, LeaseId, LockName, Token};
use http::HeaderMap;
use service_kit::problem::Reject;
use service_kit::{Kit, clock, trace};

use crate::counters::Counters;
use crate::fencing::FencingPolicy;
use crate::key::ObjectKey;
use crate::observe::Observer;
use crate::refusals::{Refusals, Refused};
use crate::report::Reporter;
use crate::rules::{Intent, Protection, Resource};
use crate::stores::contract::{
    Effect, FenceOutcome, FenceStore, Fences, First, Once, Operation, StoreError,
};
use crate::stores::report::StoreReport;
use crate::verdict::{Fence, Mark};

pub use crate::failure::{Failure, RequestSummary, UNKNOWN_HINT, failure};

/// The guard: rules, store, and the account of what was refused. Shared by all requests.
#[derive(Debug)]
pub struct Guard {
    /// Header, signature and lock checks of requests.
    pub fencing: FencingPolicy,
    /// Marks: of the objects' store, or of the lanes before an opaque upstream.
    pub fences: Arc<dyn Fences>,
    /// Objects, if this guard stores any.
    pub objects: Option<Arc<dyn FenceStore>>,
    /// Refusals of this process, by lock.
    pub refusals: Refusals,
    /// Reports of refusals to a lock server, with `--report-to`.
    pub reporter: Option<Reporter>,
    /// Metrics.
    pub counters: Counters,
    /// Record of what observe mode lets pass.
    pub observer: Observer,
    /// Front doors and their addresses.
    pub fronts: Mutex<Vec<Front>>,
    /// Clock and tasks.
    pub kit: Kit,
}

/// An operation that was applied.
#[derive(Debug)]
pub struct Applied {
    /// Effect, now or of the first attempt.
    pub effect: Effect,
    /// The lock's mark now; `None` without a fence.
    pub mark: Option<Token>,
    /// Set if an earlier attempt under this name was applied; for a write with the tag that it gave
    /// the object then.
    pub repeated: Option<First>,
}

impl Applied {
    fn now(effect: Effect, mark: Option<Token>) -> Self {
        Self { effect, mark, repeated: None }
    }

    /// Makes the result of a retry from the first attempt; `None` if that did not succeed.
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
    /// Returns the guarantee of the guard; none in observe mode.
    pub fn guarantee(&self) -> Guarantee {
        match self.observer.mode() {
            Mode::Enforce => self.fences.guarantee(),
            Mode::Observe => Guarantee::Observe,
        }
    }

    /// Returns the fence that an operation has to pass. `None` if it needs none, or if it
    /// lacks a valid token and observe mode lets it pass.
    ///
    /// # Errors
    /// As [`FencingPolicy::to_object`].
    pub fn fence<'a>(
        &self,
        resource: impl Into<Resource<'a>>,
        headers: &HeaderMap,
        intent: Intent,
    ) -> Result<Option<Fence>, Reject> {
        let resource = resource.into();
        match self.fencing.to_object(resource, headers, intent) {
            Err(reject) if self.passes(reject.code(), resource, &reject.problem().detail) => {
                Ok(None)
            }
            other => other,
        }
    }

    /// Returns the fence of a caller that names its lease and has no token: the mark, if it is of
    /// that lease. `None` as for [`fence`](Self::fence).
    ///
    /// # Errors
    /// 412 if the mark is of another lease, or there is none; 403 for a denied key.
    pub async fn fence_of_lease(
        &self,
        key: &ObjectKey,
        lease: LeaseId,
    ) -> Result<Option<Fence>, Failure> {
        let Some(lock) = self.fencing.lock_of(key)? else { return Ok(None) };
        let mark = self.fences.show(&lock).await.map_err(|error| {
            let text = format!("read the mark of lock {lock}");
            failure(&RequestSummary { fence: None, kind: "put", text, owner: None }, Err(error))
        })?;
        if let Some(presented) = mark.filter(|mark| mark.lease == lease) {
            return Ok(Some(Fence { lock, presented }));
        }
        let detail = match mark {
            Some(Mark { token, lease: owner }) => format!(
                "lease {lease} does not hold lock {lock}: the mark {token} is of lease {owner}"
            ),
            None => format!("lease {lease} is unknown here: lock {lock} has no mark"),
        };
        if self.passes(Code::StaleToken, key.into(), &detail) {
            return Ok(None);
        }
        self.counters.count("put", "stale");
        tracing::warn!(%lock, %lease, %key, "refused a state: {detail}");
        if let Some(Mark { token, .. }) = mark {
            let refused = Refused {
                token,
                lease,
                operation: format!("POST state {key}"),
                code: Code::StaleToken,
                mark: token,
                owner: None,
                at_ms: self.kit.clock.monotonic_ms(),
            };
            self.store_refusal(&lock, refused);
        }
        let reject = Reject::new(Code::StaleToken, detail)
            .with("lock", &lock)
            .with("outcome", WireOutcome::NotApplied);
        Err(match mark {
            Some(Mark { token, .. }) => reject.with("mark", token),
            None => reject,
        }
        .into())
    }

    fn passes(&self, code: Code, resource: Resource<'_>, detail: &str) -> bool {
        self.observer.passes(code, self.fencing.rules.label_of(resource), detail)
    }

    /// Counts, in observe mode, a refusal by the fence or its store, and returns the mark for the
    /// reply.
    pub(crate) fn let_pass(
        &self,
        summary: &RequestSummary,
        resource: Resource<'_>,
        outcome: &Result<FenceOutcome, StoreError>,
    ) -> Option<Token> {
        if let Ok(outcome) = outcome
            && outcome.mark().is_some()
        {
            return outcome.mark();
        }
        self.count_refusal(summary, resource, outcome);
        refused_by(outcome).map(|mark| mark.token)
    }

    /// Counts a refusal by the fence or its store under the rule of its key.
    pub(crate) fn count_refusal(
        &self,
        summary: &RequestSummary,
        resource: Resource<'_>,
        outcome: &Result<FenceOutcome, StoreError>,
    ) {
        let rule = self.fencing.rules.label_of(resource);
        self.passes_outcome(summary, rule, outcome.clone());
    }

    /// Returns the mark that refuses an operation which observe mode lets pass.
    fn passed_mark(
        &self,
        summary: &RequestSummary,
        rule: &str,
        outcome: &Result<FenceOutcome, StoreError>,
    ) -> Option<Token> {
        let mark = refused_by(outcome)?;
        self.passes_outcome(summary, rule, outcome.clone()).then_some(mark.token)
    }

    /// Counts a refusal; `true` if observe mode lets the operation pass.
    fn passes_outcome(
        &self,
        summary: &RequestSummary,
        rule: &str,
        outcome: Result<FenceOutcome, StoreError>,
    ) -> bool {
        let failure = failure(summary, outcome);
        let reject = failure.reject();
        self.observer.passes(reject.code(), rule, &reject.problem().detail)
    }

    /// Records an opened front door.
    pub fn opened(&self, kind: &str, listen: SocketAddr) {
        let front = Front { kind: kind.to_owned(), listen: listen.to_string() };
        self.fronts.lock().unwrap_or_else(PoisonError::into_inner).push(front);
    }

    /// Describes the store and the front doors, for `GET /v1/stores`.
    pub fn stores(&self) -> StoresReply {
        let StoreReport { kind, target, guarantee, probe, gaps } = self.fences.report();
        let line = StoreLine {
            kind: kind.to_owned(),
            target,
            fronts: self.fronts.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            guarantee: self.guarantee(),
            store_guarantee: guarantee,
            probe,
            gaps: [gaps.avoidable.clone(), gaps.inherent].concat(),
            avoidable: gaps.avoidable,
        };
        StoresReply {
            namespace: self.fencing.namespace.clone(),
            mode: self.observer.mode(),
            stores: vec![line],
            would_refuse: self.observer.lines(),
        }
    }

    /// Applies an operation to an object, in a task of its own: a client that disconnects cancels
    /// neither the operation nor its accounting.
    ///
    /// # Errors
    /// [`Failure`], ready to be sent.
    pub async fn apply(
        self: &Arc<Self>,
        summary: RequestSummary,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<Applied, Failure> {
        let Some(objects) = self.objects.clone() else {
            let detail = "this guard stands before an opaque upstream and keeps no objects";
            return Err(Reject::new(Code::NotOffered, detail).into());
        };
        let guard = Arc::clone(self);
        self.tracked(async move {
            let fence = summary.fence.clone();
            let begun = clock::now();
            let first = objects.apply_once(fence, operation.clone(), once.clone()).await;
            guard.counters.called(summary.kind, begun);
            let rule = guard.fencing.rules.label_of(operation.key().into());
            let Some(mark) = guard.passed_mark(&summary, rule, &first) else {
                return guard.account(&summary, first);
            };
            let outcome = objects.apply_once(None, operation, once).await;
            let applied = guard.account(&summary, outcome)?;
            Ok(Applied { mark: Some(mark), ..applied })
        })
        .await
    }

    /// Makes the operation name of `name`, scoped to the lock that protects the key.
    pub fn once(&self, name: &str, operation: &Operation) -> Once {
        let lock = match self.fencing.rules.protection(operation.key()) {
            Ok(Protection::Lock { lock, .. }) => Some(lock),
            Ok(Protection::Open | Protection::Deny) | Err(_) => None,
        };
        Once::new(lock.as_ref(), name, operation)
    }

    /// Raises a mark without touching data, in a task of its own.
    ///
    /// # Errors
    /// [`Failure`], ready to be sent.
    pub async fn seal(
        self: &Arc<Self>,
        summary: RequestSummary,
        fence: Fence,
    ) -> Result<Applied, Failure> {
        let guard = Arc::clone(self);
        self.tracked(async move {
            let begun_ms = guard.kit.clock.monotonic_ms();
            let outcome = match guard.observer.mode() {
                Mode::Enforce => guard.fences.seal(fence).await,
                Mode::Observe => guard.fences.record(fence).await,
            };
            let took_ms = guard.kit.clock.monotonic_ms().saturating_sub(begun_ms);
            guard.counters.seal_seconds.observe(took_ms as f64 / 1000.0);
            if let Some(mark) = guard.passed_mark(&summary, "seal", &outcome) {
                return Ok(Applied::now(Effect::Sealed, Some(mark)));
            }
            guard.account(&summary, outcome)
        })
        .await
    }

    async fn tracked(
        &self,
        work: impl Future<Output = Result<Applied, Failure>> + Send + 'static,
    ) -> Result<Applied, Failure> {
        self.kit.tasks.spawn(trace::carry(work)).await.unwrap_or_else(|error| {
            tracing::error!(%error, "an operation's task ended without a result");
            Err(Reject::new(Code::Internal, "the operation's task ended without a result").into())
        })
    }

    /// Counts an operation's outcome, records a refusal, and renders a failure.
    ///
    /// # Errors
    /// [`Failure`] for every outcome but success.
    pub fn account(
        &self,
        summary: &RequestSummary,
        outcome: Result<FenceOutcome, StoreError>,
    ) -> Result<Applied, Failure> {
        let verdict = verdict(&outcome);
        self.counters.count(summary.kind, verdict);
        let failed = match outcome {
            Ok(FenceOutcome::Applied { effect, mark }) => return Ok(Applied::now(effect, mark)),
            other => other,
        };
        if let Ok(FenceOutcome::Repeated { first, mark }) = &failed
            && let Some(applied) = Applied::before(first, *mark)
        {
            return Ok(applied);
        }
        if let (Some(fence), Some(mark)) = (&summary.fence, refused_by(&failed)) {
            self.record_refusal(summary, fence, mark, &failed);
        }
        Err(failure(summary, failed))
    }

    fn record_refusal(
        &self,
        summary: &RequestSummary,
        fence: &Fence,
        mark: Mark,
        outcome: &Result<FenceOutcome, StoreError>,
    ) {
        let Mark { token, lease } = fence.presented;
        let is_collision = matches!(outcome, Ok(FenceOutcome::Collision { .. }));
        let code = if is_collision { Code::TokenCollision } else { Code::StaleToken };
        let operation = summary.text.as_str();
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
            operation: summary.text.clone(),
            code,
            mark: mark.token,
            owner: summary.owner.clone(),
            at_ms: self.kit.clock.monotonic_ms(),
        };
        self.store_refusal(&fence.lock, refused);
    }

    /// Records the refusal of a script's command under each lock whose token its connection holds.
    /// Those tokens are not stale.
    pub(crate) fn record_denied_script(&self, held: &[Fence], summary: &str) {
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
            self.store_refusal(&fence.lock, refused);
        }
    }

    fn store_refusal(&self, lock: &LockName, refused: Refused) {
        if let Some(reporter) = &self.reporter {
            reporter.refused(lock, &refused);
        }
        self.refusals.record(lock, refused);
    }

    /// The lock's refusals so far.
    pub fn refused_total(&self, lock: &LockName) -> u64 {
        self.refusals.total(lock)
    }
}

/// Returns the mark that refused an operation.
fn refused_by(outcome: &Result<FenceOutcome, StoreError>) -> Option<Mark> {
    match outcome {
        Ok(
            FenceOutcome::Stale { mark }
            | FenceOutcome::Collision { mark }
            | FenceOutcome::StaleRepeat { mark, .. },
        ) => Some(*mark),
        _ => None,
    }
}

fn verdict(outcome: &Result<FenceOutcome, StoreError>) -> &'static str {
    match outcome {
        Ok(FenceOutcome::Applied { .. }) => "applied",
        Ok(FenceOutcome::Repeated { .. }) => "repeated",
        Ok(FenceOutcome::NameTaken { .. }) => "op-id-reused",
        Ok(FenceOutcome::Stale { .. } | FenceOutcome::StaleRepeat { .. }) => "stale",
        Ok(FenceOutcome::Collision { .. }) => "collision",
        Ok(FenceOutcome::PreconditionFailed { .. }) => "precondition-failed",
        Err(StoreError::Unavailable(_)) => "unavailable",
        Err(StoreError::Unknown(_)) => "unknown",
        Err(StoreError::LimitReached(_)) => "limit-reached",
        Err(StoreError::Draining { .. }) => "draining",
        Err(StoreError::NotLeader { .. }) => "not-leader",
        Err(StoreError::Quarantined { .. }) => "quarantined",
    }
}
