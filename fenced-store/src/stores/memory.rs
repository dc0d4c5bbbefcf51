//! Store in memory, for trials and tests.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Token};
use service_kit::Kit;

use super::contract::{
    Effect, FenceList, FenceOutcome, FenceQuery, FenceStore, Fences, First, Object, Once,
    Operation, StoreError,
};
use super::decide::{Decision, decide};
use super::once::EarlierOperation;
use super::probe;
use super::report::{Gaps, Shown, StoreReport};
use crate::key::ObjectKey;
use crate::verdict::{Fence, Mark};

/// Marks and objects in memory. A restart loses both: the protected objects go with the marks, so
/// nothing remains that a stale write could overwrite.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<MemoryState>,
    shown: Shown,
}

/// Rough overhead of an entry, in bytes.
const ENTRY_BYTES: usize = 512;

/// Size at which the store is full, in bytes.
const MAX_BYTES: usize = 1 << 30;

#[derive(Debug, Default)]
struct MemoryState {
    marks: BTreeMap<LockName, Mark>,
    highest: Option<Token>,
    objects: BTreeMap<ObjectKey, Object>,
    object_bytes: usize,
    /// By scope.
    names: BTreeMap<String, Names>,
    /// Number of names in all scopes.
    named: usize,
}

/// Names of the last operations of one scope.
#[derive(Debug, Default)]
struct Names {
    records: BTreeMap<String, String>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl Names {
    fn known(&self, once: &Once) -> Option<EarlierOperation> {
        once.compare(self.records.get(once.id())?)
    }

    /// Returns by how many the number of names grew.
    fn remember(&mut self, once: &Once, first: First) -> usize {
        self.records.insert(once.id().to_owned(), once.record(&first));
        self.order.push_back(once.id().to_owned());
        if self.order.len() <= once.capacity() {
            return 1;
        }
        if let Some(oldest) = self.order.pop_front() {
            self.records.remove(&oldest);
        }
        0
    }
}

impl MemoryStore {
    /// Makes an empty store without a guarantee.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an empty store after another one was probed.
    ///
    /// # Errors
    /// A sentence on the deviation.
    pub async fn probed(kit: &Kit) -> Result<Self, String> {
        let scratch: Arc<dyn FenceStore> = Arc::new(Self::new());
        let words = probe::probe(&[scratch], kit).await?;
        Ok(Self { shown: Shown::atomic(words), ..Self::default() })
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        // No code panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryState {
    fn step(
        &mut self,
        fence: Option<Fence>,
        operation: Option<Operation>,
        once: Option<&Once>,
    ) -> FenceOutcome {
        let known = once.and_then(|once| self.names.get(once.scope())?.known(once));
        let named = match (&operation, once) {
            (Some(operation), Some(once)) if known.is_none() => Some((operation.clone(), once)),
            _ => None,
        };
        let outcome = self.decided(fence, operation, known);
        if let Some((operation, once)) = named
            && let Some(first) = First::from_outcome(&operation, &outcome)
        {
            let names = self.names.entry(once.scope().to_owned()).or_default();
            self.named += names.remember(once, first);
        }
        outcome
    }

    fn decided(
        &mut self,
        fence: Option<Fence>,
        operation: Option<Operation>,
        known: Option<EarlierOperation>,
    ) -> FenceOutcome {
        let mark = fence.as_ref().and_then(|fence| self.marks.get(&fence.lock).copied());
        let current = operation.as_ref().and_then(|op| self.objects.get(op.key()));
        let etag = current.map(|object| &object.etag);
        let raise = match decide(fence.as_ref(), mark, operation.as_ref(), etag, known) {
            Decision::Refuse(outcome) => return outcome,
            Decision::Fail { raise, outcome } => {
                self.raise(fence, raise);
                return outcome;
            }
            Decision::Proceed { raise } => raise,
        };
        let mark = fence.as_ref().map(|fence| fence.presented.token);
        self.raise(fence, raise);
        FenceOutcome::Applied { effect: self.effect(operation), mark }
    }

    fn raise(&mut self, fence: Option<Fence>, raise: Option<Mark>) {
        if let (Some(fence), Some(mark)) = (fence, raise) {
            self.highest = self.highest.max(Some(mark.token));
            self.marks.insert(fence.lock, mark);
        }
    }

    fn effect(&mut self, operation: Option<Operation>) -> Effect {
        match operation {
            None => Effect::Sealed,
            Some(Operation::Get { key }) => {
                self.objects.get(&key).cloned().map_or(Effect::Absent, Effect::Found)
            }
            Some(Operation::Put { key, object, .. }) => {
                self.object_bytes += object.body.len();
                let before = self.objects.insert(key, object);
                self.object_bytes -= before.as_ref().map_or(0, |object| object.body.len());
                Effect::Stored { created: before.is_none() }
            }
            Some(Operation::Delete { key, .. }) => match self.objects.remove(&key) {
                Some(object) => {
                    self.object_bytes -= object.body.len();
                    Effect::Deleted
                }
                None => Effect::Absent,
            },
        }
    }

    fn check_room(&self, operation: Option<&Operation>) -> Result<(), StoreError> {
        let more = operation.map_or(0, Operation::bytes);
        let entries = self.marks.len() + self.objects.len() + self.named;
        if self.object_bytes + entries * ENTRY_BYTES + more > MAX_BYTES {
            return Err(StoreError::LimitReached(format!(
                "the memory store is full ({MAX_BYTES} bytes); use --store embedded:DIR"
            )));
        }
        Ok(())
    }
}

#[async_trait]
impl Fences for MemoryStore {
    fn guarantee(&self) -> Guarantee {
        self.shown.guarantee()
    }

    fn report(&self) -> StoreReport {
        StoreReport {
            kind: "memory",
            target: "memory:".to_owned(),
            guarantee: self.guarantee(),
            probe: self.shown.words(),
            gaps: Gaps::inherent(["A restart forgets marks and objects together."]),
        }
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        Ok(self.state().highest)
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        let mut state = self.state();
        state.check_room(None)?;
        Ok(state.step(Some(fence), None, None))
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        Ok(self.state().marks.get(lock).copied())
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        let state = self.state();
        let from = match &query.after {
            Some(after) if after.as_str() >= query.prefix.as_str() => {
                Bound::Excluded(after.as_str())
            }
            _ => Bound::Included(query.prefix.as_str()),
        };
        let mut found = state
            .marks
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(lock, _)| lock.as_str().starts_with(&query.prefix))
            .map(|(lock, mark)| (lock.clone(), *mark));
        let fences: Vec<_> = found.by_ref().take(query.limit).collect();
        Ok(FenceList { more: found.next().is_some(), fences })
    }
}

#[async_trait]
impl FenceStore for MemoryStore {
    async fn apply_once(
        &self,
        fence: Option<Fence>,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<FenceOutcome, StoreError> {
        let mut state = self.state();
        if !matches!(operation, Operation::Delete { .. }) {
            state.check_room(Some(&operation))?;
        }
        Ok(state.step(fence, Some(operation), once.as_ref()))
    }
}
