//! The store that forgets: everything in memory, for trials and tests.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fence_protocol::LockName;
use fence_protocol::wire::fence::Guarantee;

use super::decide::{Decision, decide};
use super::{
    Effect, FenceList, FenceQuery, FenceStore, Fences, Object, Operation, Outcome, StoreError,
};
use crate::guard::{Fence, Mark};
use crate::key::ObjectKey;

/// Marks and objects in memory. A restart forgets both: with the process goes what the marks
/// protected, so nothing that is left can be overwritten.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

/// What an entry costs besides its bytes, roughly.
const ENTRY_BYTES: usize = 512;

/// The store is full at this size, in bytes.
const MAX_BYTES: usize = 1 << 30;

#[derive(Debug, Default)]
struct State {
    marks: BTreeMap<LockName, Mark>,
    objects: BTreeMap<ObjectKey, Object>,
    object_bytes: usize,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn step(&mut self, fence: Option<Fence>, operation: Option<Operation>) -> Outcome {
        let mark = fence.as_ref().and_then(|fence| self.marks.get(&fence.lock).copied());
        let current = operation.as_ref().and_then(|op| self.objects.get(op.key()));
        let etag = current.map(|object| &object.etag);
        let raise = match decide(fence.as_ref(), mark, operation.as_ref(), etag) {
            Decision::Refuse(outcome) => return outcome,
            Decision::Fail { raise, outcome } => {
                self.raise(fence, raise);
                return outcome;
            }
            Decision::Proceed { raise } => raise,
        };
        let mark = fence.as_ref().map(|fence| fence.presented.token);
        self.raise(fence, raise);
        Outcome::Applied { effect: self.effect(operation), mark }
    }

    fn raise(&mut self, fence: Option<Fence>, raise: Option<Mark>) {
        if let (Some(fence), Some(mark)) = (fence, raise) {
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
        let more = match operation {
            Some(Operation::Put { object, .. }) => object.body.len(),
            _ => 0,
        };
        let entries = self.marks.len() + self.objects.len();
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
        Guarantee::Atomic
    }

    async fn seal(&self, fence: Fence) -> Result<Outcome, StoreError> {
        let mut state = self.state();
        state.check_room(None)?;
        Ok(state.step(Some(fence), None))
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
    async fn apply(
        &self,
        fence: Option<Fence>,
        operation: Operation,
    ) -> Result<Outcome, StoreError> {
        let mut state = self.state();
        if !matches!(operation, Operation::Delete { .. }) {
            state.check_room(Some(&operation))?;
        }
        Ok(state.step(fence, Some(operation)))
    }
}
