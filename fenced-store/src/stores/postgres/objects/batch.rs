//! Decision of a batch, pure: marks, objects and outcomes that the transaction read in; outcomes
//! and changes out.
//!
//! The operations are decided one after the other, each on what those before it left, by the same
//! [`decide`] as in the other stores. The database checks the tokens: a lock's mark is what
//! `fence.admit_all` returned, so that here it is never below the highest token of the batch.

use std::collections::{BTreeMap, HashMap, HashSet};

use fence_protocol::LockName;

use crate::etag::ETag;
use crate::key::ObjectKey;
use crate::stores::contract::{Effect, FenceOutcome, First, Object, Once, Operation};
use crate::stores::decide::{Decision, decide};
use crate::stores::once::EarlierOperation;
use crate::verdict::{Fence, Mark};

/// Operation of a batch, which changes an object; a seal has none.
#[derive(Clone, Debug)]
pub(super) struct BatchStep {
    pub(super) fence: Option<Fence>,
    pub(super) operation: Option<Operation>,
    pub(super) once: Option<Once>,
}

/// State that the transaction has read and holds.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Marks that decide; a lock that has to be sealed first has none.
    pub(super) marks: HashMap<LockName, Mark>,
    /// Tags of the objects that are there, by key.
    pub(super) objects: HashMap<String, ETag>,
    /// Records by scope and name.
    pub(super) records: HashMap<(String, String), String>,
}

/// Names that a batch needs to be read.
#[derive(Debug, Default)]
pub(super) struct Needs<'a> {
    /// Highest token of each lock; of several leases the first one's.
    pub(super) fences: BTreeMap<&'a LockName, Mark>,
    pub(super) changed: Vec<&'a str>,
    pub(super) scopes: Vec<&'a str>,
    pub(super) names: Vec<&'a str>,
}

impl<'a> Needs<'a> {
    pub(super) fn from_steps(steps: &'a [BatchStep]) -> Self {
        let mut needs = Self::default();
        let mut changed = HashSet::new();
        let mut named = HashSet::new();
        for step in steps {
            if let Some(Fence { lock, presented }) = &step.fence {
                let highest = needs.fences.entry(lock).or_insert(*presented);
                if presented.token > highest.token {
                    *highest = *presented;
                }
            }
            if let Some(operation) = &step.operation
                && changed.insert(operation.key())
            {
                needs.changed.push(operation.key().as_str());
            }
            if let Some(once) = &step.once
                && named.insert((once.scope(), once.id()))
            {
                needs.scopes.push(once.scope());
                needs.names.push(once.id());
            }
        }
        needs
    }
}

/// Outcome to be stored under a name.
#[derive(Debug)]
pub(super) struct NewRecord {
    pub(super) once: Once,
    pub(super) record: String,
}

/// Outcomes and changes of a batch.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// Outcomes in the order of the steps; `None` where the lock has to be sealed first.
    pub(super) outcomes: Vec<Option<FenceOutcome>>,
    /// Final state of the changed objects; `None` is removed.
    pub(super) objects: BTreeMap<ObjectKey, Option<Object>>,
    pub(super) records: Vec<NewRecord>,
}

impl Decided {
    /// Decides `steps`.
    pub(super) fn from_steps(steps: &[BatchStep], found: &Found) -> Self {
        let mut decided = Self::default();
        for step in steps {
            let outcome = decided.outcome(step, found);
            if let (Some(once), Some(operation), Some(outcome)) =
                (&step.once, &step.operation, &outcome)
                && let Some(first) = First::from_outcome(operation, outcome)
            {
                let record = once.record(&first);
                decided.records.push(NewRecord { once: once.clone(), record });
            }
            decided.outcomes.push(outcome);
        }
        decided
    }

    fn outcome(&mut self, step: &BatchStep, found: &Found) -> Option<FenceOutcome> {
        let fence = step.fence.as_ref();
        let mark = match fence {
            Some(fence) => Some(*found.marks.get(&fence.lock)?),
            None => None,
        };
        let known = step.once.as_ref().and_then(|once| self.known(once, found));
        let current = step.operation.as_ref().and_then(|op| self.current(op.key(), found));
        match decide(fence, mark, step.operation.as_ref(), current.as_ref(), known) {
            Decision::Refuse(outcome) | Decision::Fail { raise: None, outcome } => Some(outcome),
            Decision::Proceed { raise: None } => {
                let mark = fence.map(|fence| fence.presented.token);
                let effect = self.effect(step.operation.as_ref(), current.is_some())?;
                Some(FenceOutcome::Applied { effect, mark })
            }
            // The database did not admit the token: no step may raise a mark by itself.
            Decision::Fail { .. } | Decision::Proceed { .. } => None,
        }
    }

    fn known(&self, once: &Once, found: &Found) -> Option<EarlierOperation> {
        let name =
            |known: &&NewRecord| known.once.scope() == once.scope() && known.once.id() == once.id();
        let new = self.records.iter().find(name).map(|known| &known.record);
        let name = (once.scope().to_owned(), once.id().to_owned());
        let record = new.or_else(|| found.records.get(&name))?;
        // A record that cannot be read is another operation's.
        Some(once.compare(record).unwrap_or(EarlierOperation::Other))
    }

    fn current(&self, key: &ObjectKey, found: &Found) -> Option<ETag> {
        match self.objects.get(key) {
            Some(changed) => changed.as_ref().map(|object| object.etag.clone()),
            None => found.objects.get(key.as_str()).cloned(),
        }
    }

    /// Applies the operation; `None` if it is a read, which is no step of a batch.
    fn effect(&mut self, operation: Option<&Operation>, is_there: bool) -> Option<Effect> {
        Some(match operation {
            None => Effect::Sealed,
            Some(Operation::Get { .. }) => return None,
            Some(Operation::Delete { .. }) if !is_there => Effect::Absent,
            Some(Operation::Put { key, object, .. }) => {
                self.objects.insert(key.clone(), Some(object.clone()));
                Effect::Stored { created: !is_there }
            }
            Some(Operation::Delete { key, .. }) => {
                self.objects.insert(key.clone(), None);
                Effect::Deleted
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::etag::Condition;
    use crate::verdict::tests::mark;

    fn put(key: &str, body: &str, condition: Condition) -> Operation {
        let object = Object {
            etag: ETag::from_stored(body),
            content_type: "text/plain".to_owned(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        Operation::Put { key: ObjectKey::new(key).unwrap(), object, condition }
    }

    fn step(fence: Option<(u64, u64)>, operation: Operation) -> BatchStep {
        let fence = fence.map(|(token, lease)| Fence {
            lock: "a".parse().unwrap(),
            presented: mark(token, lease),
        });
        BatchStep { fence, operation: Some(operation), once: None }
    }

    fn admitted(token: u64, lease: u64) -> Found {
        let marks = HashMap::from([("a".parse().unwrap(), mark(token, lease))]);
        Found { marks, ..Found::default() }
    }

    #[test]
    fn a_stale_step_does_not_fail_its_neighbours() {
        let steps = [
            step(Some((7, 1)), put("x", "seven", Condition::None)),
            step(Some((6, 2)), put("x", "six", Condition::None)),
            step(Some((7, 3)), put("x", "other", Condition::None)),
            step(None, put("y", "open", Condition::None)),
        ];
        let needs = Needs::from_steps(&steps);
        assert_eq!(needs.fences.values().copied().collect::<Vec<_>>(), [mark(7, 1)]);
        assert_eq!(needs.changed, ["x", "y"]);
        let decided = Decided::from_steps(&steps, &admitted(7, 1));
        let outcome = |at: usize| decided.outcomes[at].clone().unwrap();
        assert!(matches!(outcome(0), FenceOutcome::Applied { .. }));
        assert_eq!(outcome(1), FenceOutcome::Stale { mark: mark(7, 1) });
        assert_eq!(outcome(2), FenceOutcome::Collision { mark: mark(7, 1) });
        assert!(matches!(outcome(3), FenceOutcome::Applied { .. }));
        let key = ObjectKey::new("x").unwrap();
        assert_eq!(decided.objects[&key].as_ref().unwrap().body, "seven");
    }

    #[test]
    fn a_lock_that_is_not_admitted_decides_nothing() {
        let steps = [step(Some((7, 1)), put("x", "seven", Condition::None))];
        assert_eq!(Decided::from_steps(&steps, &Found::default()).outcomes, [None]);
        // A mark below the token would be a raise that the database did not make.
        let decided = Decided::from_steps(&steps, &admitted(6, 1));
        assert_eq!((decided.outcomes, decided.objects.len()), (vec![None], 0));
    }

    #[test]
    fn a_step_sees_what_the_steps_before_it_wrote() {
        let key = || ObjectKey::new("x").unwrap();
        let steps = [
            step(None, put("x", "one", Condition::Absent)),
            step(None, put("x", "two", Condition::Absent)),
            step(None, Operation::Delete { key: key(), condition: Condition::None }),
            step(None, Operation::Delete { key: key(), condition: Condition::None }),
        ];
        let decided = Decided::from_steps(&steps, &Found::default());
        let applied = |effect| Some(FenceOutcome::Applied { effect, mark: None });
        assert!(matches!(
            decided.outcomes[1],
            Some(FenceOutcome::PreconditionFailed { etag: Some(_), .. })
        ));
        assert_eq!(decided.outcomes[2], applied(Effect::Deleted));
        assert_eq!(decided.outcomes[3], applied(Effect::Absent));
        assert_eq!(decided.objects[&key()], None);
    }

    #[test]
    fn a_name_twice_in_a_batch_is_applied_once() {
        let operation = put("x", "one", Condition::None);
        let once = Once::new(None, "id", &operation);
        let named = BatchStep { once: Some(once), ..step(None, operation) };
        let decided = Decided::from_steps(&[named.clone(), named], &Found::default());
        assert!(matches!(decided.outcomes[1], Some(FenceOutcome::Repeated { .. })));
        assert_eq!(decided.records.len(), 1);
    }
}
