//! The one step, as a pure function: fence first, then the name, then the condition.
//!
//! Memory and embedded both run it; the Lua script of the Redis store says the same in Lua, and the
//! conformance suite holds them together.

use crate::etag::{Condition, ETag};
use crate::store::once::Known;
use crate::store::{Operation, Outcome};
use crate::verdict::{Fence, Mark, Verdict, judge};

/// What the step is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The fence refuses: answer this, change nothing.
    Refuse(Outcome),
    /// The condition fails, or it was done before: raise the mark where one is given, answer this,
    /// change no data.
    Fail {
        /// The mark to write.
        raise: Option<Mark>,
        /// What to answer.
        outcome: Outcome,
    },
    /// Raise the mark where one is given, and do it.
    Proceed {
        /// The mark to write.
        raise: Option<Mark>,
    },
}

/// Decides an operation (`None`: a seal) given the lock's mark, the object's tag, and what is known
/// of an operation of the same name.
pub(super) fn decide(
    fence: Option<&Fence>,
    mark: Option<Mark>,
    operation: Option<&Operation>,
    current: Option<&ETag>,
    known: Option<Known>,
) -> Decision {
    let raise = match fence.map(|fence| (judge(mark, fence.presented), fence.presented)) {
        None | Some((Verdict::Admit, _)) => None,
        Some((Verdict::Raise, presented)) => Some(presented),
        Some((Verdict::Stale { mark }, _)) => {
            return Decision::Refuse(match known {
                Some(Known::Same(first)) => Outcome::StaleRepeat { mark, first },
                Some(Known::Other) | None => Outcome::Stale { mark },
            });
        }
        Some((Verdict::Collision { mark }, _)) => {
            return Decision::Refuse(Outcome::Collision { mark });
        }
    };
    let mark = fence.map(|fence| fence.presented.token);
    match known {
        Some(Known::Same(first)) => {
            return Decision::Fail { raise, outcome: Outcome::Repeated { first, mark } };
        }
        Some(Known::Other) => {
            return Decision::Fail { raise, outcome: Outcome::NameTaken { mark } };
        }
        None => {}
    }
    let condition = match operation {
        Some(Operation::Put { condition, .. } | Operation::Delete { condition, .. }) => condition,
        Some(Operation::Get { .. }) | None => &Condition::None,
    };
    if condition.holds(current) {
        return Decision::Proceed { raise };
    }
    let outcome = Outcome::PreconditionFailed { etag: current.cloned(), mark };
    Decision::Fail { raise, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ObjectKey;
    use crate::verdict::tests::mark;

    fn fence(token: u64, lease: u64) -> Fence {
        Fence { lock: "a".parse().unwrap(), presented: mark(token, lease) }
    }

    fn delete(condition: Condition) -> Operation {
        Operation::Delete { key: ObjectKey::new("a").unwrap(), condition }
    }

    #[test]
    fn the_fence_is_asked_before_the_condition() {
        let held = Some(mark(34, 1));
        let delete = delete(Condition::Exists);
        let stale = decide(Some(&fence(33, 1)), held, Some(&delete), None, None);
        assert_eq!(stale, Decision::Refuse(Outcome::Stale { mark: mark(34, 1) }));
        let collision = decide(Some(&fence(34, 2)), held, Some(&delete), None, None);
        assert_eq!(collision, Decision::Refuse(Outcome::Collision { mark: mark(34, 1) }));
    }

    #[test]
    fn a_failed_condition_still_raises_the_mark() {
        let failed = decide(
            Some(&fence(35, 2)),
            Some(mark(34, 1)),
            Some(&delete(Condition::Exists)),
            None,
            None,
        );
        let outcome = Outcome::PreconditionFailed { etag: None, mark: Some(mark(35, 2).token) };
        assert_eq!(failed, Decision::Fail { raise: Some(mark(35, 2)), outcome });
    }

    #[test]
    fn equal_tokens_raise_nothing_and_no_fence_compares_nothing() {
        let held = Some(mark(34, 1));
        let same = decide(Some(&fence(34, 1)), held, None, None, None);
        assert_eq!(same, Decision::Proceed { raise: None });
        let open = decide(None, held, Some(&delete(Condition::None)), None, None);
        assert_eq!(open, Decision::Proceed { raise: None });
    }

    #[test]
    fn a_name_is_looked_up_between_fence_and_condition() {
        let held = Some(mark(34, 1));
        let delete = delete(Condition::Exists);
        let first = crate::store::First::Deleted { existed: true };
        let same = || Some(Known::Same(first.clone()));
        let ask = |token, known| decide(Some(&fence(token, 1)), held, Some(&delete), None, known);
        let repeated =
            |token| Outcome::Repeated { first: first.clone(), mark: Some(mark(token, 1).token) };
        assert_eq!(ask(34, same()), Decision::Fail { raise: None, outcome: repeated(34) });
        let raised = Decision::Fail { raise: Some(mark(35, 1)), outcome: repeated(35) };
        assert_eq!(ask(35, same()), raised);
        let stale = Outcome::StaleRepeat { mark: mark(34, 1), first: first.clone() };
        assert_eq!(ask(33, same()), Decision::Refuse(stale));
        let taken = Outcome::NameTaken { mark: Some(mark(34, 1).token) };
        assert_eq!(ask(34, Some(Known::Other)), Decision::Fail { raise: None, outcome: taken });
        let refused = Decision::Refuse(Outcome::Stale { mark: mark(34, 1) });
        assert_eq!(ask(33, Some(Known::Other)), refused);
    }
}
