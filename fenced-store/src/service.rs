//! What the handlers call: passes an operation to the store and keeps account of what it said.

use std::sync::Arc;

use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{Code, LockName, Owner, Token};
use service_kit::Kit;
use service_kit::problem::Reject;

use crate::access::Access;
use crate::counters::Counters;
use crate::guard::{Fence, Mark};
use crate::refusals::{Refusals, Refused};
use crate::store::{Effect, FenceStore, Fences, Operation, Outcome, StoreError};

mod failure;
pub use failure::{Failure, UNKNOWN_HINT, failure};

/// The guard: rules, store, and the account of what was refused. Shared by all requests.
#[derive(Debug)]
pub struct Guard {
    /// Who may reach what.
    pub access: Access,
    /// The marks; of the objects' store, or of the lanes before an opaque upstream.
    pub fences: Arc<dyn Fences>,
    /// The objects, where this guard keeps some.
    pub objects: Option<Arc<dyn FenceStore>>,
    /// What was refused.
    pub refusals: Refusals,
    /// What is counted.
    pub counters: Counters,
    /// Clock and tasks.
    pub kit: Kit,
}

/// An operation that was applied.
#[derive(Debug)]
pub struct Applied {
    /// What it did.
    pub effect: Effect,
    /// The lock's mark now; `None` without a fence.
    pub mark: Option<Token>,
}

/// What the account of a request needs to know about it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The fence it presented.
    pub fence: Option<Fence>,
    /// `put`, `get`, `delete`, `seal`, `forward`.
    pub kind: &'static str,
    /// Method and key.
    pub text: String,
    /// Who, where the caller said so.
    pub owner: Option<Owner>,
}

impl Guard {
    /// What the guard guarantees.
    pub fn guarantee(&self) -> Guarantee {
        self.fences.guarantee()
    }

    /// Does an operation on an object. It runs in a task of its own: a client that hangs up
    /// cancels neither it nor the account of it.
    ///
    /// # Errors
    /// [`Failure`], ready to be sent.
    pub async fn apply(
        self: &Arc<Self>,
        asked: Asked,
        operation: Operation,
    ) -> Result<Applied, Failure> {
        let Some(objects) = self.objects.clone() else {
            let detail = "this guard stands before an opaque upstream and keeps no objects";
            return Err(Reject::new(Code::NotOffered, detail).into());
        };
        let guard = Arc::clone(self);
        self.tracked(async move {
            let outcome = objects.apply(asked.fence.clone(), operation).await;
            guard.account(&asked, outcome)
        })
        .await
    }

    /// Raises a mark without touching data, in a task of its own as above.
    ///
    /// # Errors
    /// [`Failure`], ready to be sent.
    pub async fn seal(self: &Arc<Self>, asked: Asked, fence: Fence) -> Result<Applied, Failure> {
        let guard = Arc::clone(self);
        self.tracked(async move {
            let begun_ms = guard.kit.clock.monotonic_ms();
            let outcome = guard.fences.seal(fence).await;
            let took_ms = guard.kit.clock.monotonic_ms().saturating_sub(begun_ms);
            guard.counters.seal_seconds.observe(took_ms as f64 / 1000.0);
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
        asked: &Asked,
        outcome: Result<Outcome, StoreError>,
    ) -> Result<Applied, Failure> {
        let verdict = verdict(&outcome);
        self.counters.count(asked.kind, verdict);
        let failed = match outcome {
            Ok(Outcome::Applied { effect, mark }) => return Ok(Applied { effect, mark }),
            other => other,
        };
        if let (Some(fence), Ok(Outcome::Stale { mark } | Outcome::Collision { mark })) =
            (&asked.fence, &failed)
        {
            self.note_refusal(asked, fence, *mark, &failed);
        }
        Err(failure(asked, failed))
    }

    fn note_refusal(
        &self,
        asked: &Asked,
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
        self.refusals.note(&fence.lock, refused);
    }

    /// The lock's refusals so far.
    pub fn refused_total(&self, lock: &LockName) -> u64 {
        self.refusals.total(lock)
    }
}

fn verdict(outcome: &Result<Outcome, StoreError>) -> &'static str {
    match outcome {
        Ok(Outcome::Applied { .. }) => "applied",
        Ok(Outcome::Stale { .. }) => "stale",
        Ok(Outcome::Collision { .. }) => "collision",
        Ok(Outcome::PreconditionFailed { .. }) => "precondition-failed",
        Err(StoreError::Unavailable(_)) => "unavailable",
        Err(StoreError::Unknown(_)) => "unknown",
        Err(StoreError::LimitReached(_)) => "limit-reached",
        Err(StoreError::Draining { .. }) => "draining",
        Err(StoreError::Quarantined { .. }) => "quarantined",
    }
}
