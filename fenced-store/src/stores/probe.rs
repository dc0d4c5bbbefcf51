//! Start-up probe of the stores in this process: `atomic` is claimed only after it was just shown
//! (invariant G7).
//!
//! The rules are tried one by one; then many leases race to seal with one token, from tasks of
//! their own. Exactly one may win a round; if check and raise were two steps, two could. The probe
//! leaves marks and objects behind, so it runs on a store that is discarded afterwards.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fence_protocol::{LockName, Token};
use service_kit::{Kit, ids};

use super::contract::{Effect, FenceOutcome, FenceStore, Object, Operation};
use crate::etag::{Condition, ETag};
use crate::key::ObjectKey;
use crate::verdict::{Fence, Mark};

const RACERS: usize = 64;
const ROUNDS: u64 = 3;
/// Last token of the rules' check.
const LAST: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(10);

/// Probes handles of one store, which should be empty, and returns a description of the result.
///
/// # Errors
/// A sentence on the deviation.
pub(super) async fn probe(stores: &[Arc<dyn FenceStore>], kit: &Kit) -> Result<String, String> {
    let tried = async {
        let first = stores.first().ok_or("there is none")?;
        // A floor may be for all namespaces of a store.
        let floor = first.highest_mark().await.map_err(text)?.map_or(0, Token::get);
        rules_hold(&**first, floor).await?;
        races(stores, floor, kit).await
    };
    tokio::time::timeout(PATIENCE, tried)
        .await
        .unwrap_or_else(|_| Err("it did not finish within 10 s".to_owned()))
        .map_err(|reason| format!("the store failed the start-up probe: {reason}"))?;
    Ok(format!(
        "refused stale and colliding writes, and {ROUNDS} times one of {RACERS} racing leases won"
    ))
}

/// Checks that a store which passed still has its mark after it was opened again.
///
/// # Errors
/// A sentence on the deviation.
pub(super) async fn remembers(store: &dyn FenceStore) -> Result<(), String> {
    let expected = LAST + ROUNDS;
    match store.show(&lock()?).await {
        Ok(Some(mark)) if mark.token.get() == expected => Ok(()),
        other => Err(format!("after mark {expected} was answered and the file closed: {other:?}")),
    }
}

async fn rules_hold(store: &dyn FenceStore, floor: u64) -> Result<(), String> {
    let one = ids::lease_id();
    let two = ids::lease_id();
    for (token, lease, expected) in [
        (2, one, "applied"),
        (2, one, "applied"),
        (1, one, "stale"),
        (2, two, "collision"),
        (LAST, two, "applied"),
        (3, one, "stale"),
    ] {
        let fence = fence(floor + token, lease)?;
        let outcome = store.apply(Some(fence), write(token)?).await.map_err(text)?;
        if word(&outcome) != expected {
            return Err(format!("a write with token {token} gave {outcome:?}"));
        }
    }
    let key = ObjectKey::new("probe").map_err(text)?;
    let seen = store.apply(None, Operation::Get { key }).await.map_err(text)?;
    match seen {
        FenceOutcome::Applied { effect: Effect::Found(object), .. }
            if object.body == body(LAST) =>
        {
            Ok(())
        }
        other => Err(format!("a refused write changed the data: {other:?}")),
    }
}

async fn races(stores: &[Arc<dyn FenceStore>], floor: u64, kit: &Kit) -> Result<(), String> {
    for token in floor + LAST + 1..=floor + LAST + ROUNDS {
        let mut racers = Vec::with_capacity(RACERS);
        for store in stores.iter().cycle().take(RACERS) {
            let store = Arc::clone(store);
            let fence = fence(token, ids::lease_id())?;
            racers.push(kit.tasks.spawn(async move { store.seal(fence).await }));
        }
        let mut won = 0;
        let mut lost = 0;
        for racer in racers {
            match word(&racer.await.map_err(text)?.map_err(text)?) {
                "applied" => won += 1,
                "collision" => lost += 1,
                _ => {}
            }
        }
        if (won, lost) != (1, RACERS - 1) {
            return Err(format!("{won} of {RACERS} racers won token {token}, {lost} were refused"));
        }
    }
    Ok(())
}

/// Returns the verdict of the fence.
pub(super) fn word(outcome: &FenceOutcome) -> &'static str {
    match outcome {
        FenceOutcome::Applied { .. } => "applied",
        FenceOutcome::Stale { .. } => "stale",
        FenceOutcome::Collision { .. } => "collision",
        _ => "something else",
    }
}

fn lock() -> Result<LockName, String> {
    LockName::new("probe").map_err(text)
}

fn fence(token: u64, lease: fence_protocol::LeaseId) -> Result<Fence, String> {
    let token = Token::new(token).map_err(text)?;
    Ok(Fence { lock: lock()?, presented: Mark { token, lease } })
}

fn body(token: u64) -> Bytes {
    Bytes::from(format!("written with token {token}"))
}

fn write(token: u64) -> Result<Operation, String> {
    let body = body(token);
    let etag = ETag::from_body(&body, &ids::random_hex(8));
    let object = Object { etag, content_type: "text/plain".to_owned(), body };
    let key = ObjectKey::new("probe").map_err(text)?;
    Ok(Operation::Put { key, object, condition: Condition::None })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use fence_protocol::wire::fence::Guarantee;

    use super::super::memory::MemoryStore;
    use super::*;
    use crate::stores::contract::Once;
    use crate::stores::contract::{FenceList, FenceQuery, Fences, StoreError};
    use crate::stores::report::StoreReport;

    /// Compares, yields, and only then writes: two steps instead of one.
    #[derive(Debug, Default)]
    struct TwoSteps {
        store: MemoryStore,
        mark: Mutex<Option<Mark>>,
    }

    #[async_trait]
    impl Fences for TwoSteps {
        fn guarantee(&self) -> Guarantee {
            Guarantee::Atomic
        }

        fn report(&self) -> StoreReport {
            self.store.report()
        }

        async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
            use crate::verdict::{Verdict, judge};
            let mark = *self.mark.lock().unwrap();
            tokio::task::yield_now().await;
            Ok(match judge(mark, fence.presented) {
                Verdict::Stale { mark } => FenceOutcome::Stale { mark },
                Verdict::Collision { mark } => FenceOutcome::Collision { mark },
                Verdict::Admit | Verdict::Raise => {
                    *self.mark.lock().unwrap() = Some(fence.presented);
                    FenceOutcome::Applied {
                        effect: Effect::Sealed,
                        mark: Some(fence.presented.token),
                    }
                }
            })
        }

        async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
            self.store.highest_mark().await
        }

        async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
            self.store.show(lock).await
        }

        async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
            self.store.list(query).await
        }
    }

    #[async_trait]
    impl FenceStore for TwoSteps {
        async fn apply_once(
            &self,
            fence: Option<Fence>,
            operation: Operation,
            once: Option<Once>,
        ) -> Result<FenceOutcome, StoreError> {
            self.store.apply_once(fence, operation, once).await
        }
    }

    /// Admits every token.
    #[derive(Debug, Default)]
    struct NoFence(TwoSteps);

    #[async_trait]
    impl Fences for NoFence {
        fn guarantee(&self) -> Guarantee {
            self.0.guarantee()
        }

        fn report(&self) -> StoreReport {
            self.0.report()
        }

        async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
            let mark = Some(fence.presented.token);
            Ok(FenceOutcome::Applied { effect: Effect::Sealed, mark })
        }

        async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
            self.0.highest_mark().await
        }

        async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
            self.0.show(lock).await
        }

        async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
            self.0.list(query).await
        }
    }

    #[async_trait]
    impl FenceStore for NoFence {
        async fn apply_once(
            &self,
            _: Option<Fence>,
            operation: Operation,
            once: Option<Once>,
        ) -> Result<FenceOutcome, StoreError> {
            self.0.store.apply_once(None, operation, once).await
        }
    }

    #[tokio::test]
    async fn a_store_without_the_one_step_is_found_out() {
        let kit = Kit::new("test");
        let two_steps: Arc<dyn FenceStore> = Arc::new(TwoSteps::default());
        let error = probe(&[two_steps], &kit).await.unwrap_err();
        assert!(error.contains("64 of 64 racers won"), "{error}");
        let no_fence: Arc<dyn FenceStore> = Arc::new(NoFence::default());
        let error = probe(&[no_fence], &kit).await.unwrap_err();
        assert!(error.contains("a write with token 1"), "{error}");
        let good: Arc<dyn FenceStore> = Arc::new(MemoryStore::new());
        assert!(probe(&[good], &kit).await.is_ok());
    }

    #[tokio::test]
    async fn without_a_probe_nothing_is_promised() {
        assert_eq!(MemoryStore::new().guarantee(), Guarantee::Observe);
        let probed = MemoryStore::probed(&Kit::new("test")).await.unwrap();
        assert_eq!(probed.guarantee(), Guarantee::Atomic);
    }
}
