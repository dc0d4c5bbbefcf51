//! The one step of a store, pure: fence first, then the name, then the condition.
//!
//! Memory and embedded run it; the Lua script of the Redis store repeats it, and the conformance
//! suite compares them.

use super::contract::{FenceOutcome, Operation};
use super::once::EarlierOperation;
use crate::etag::ETag;
use crate::verdict::{Fence, Mark, Verdict, judge};

/// Decision of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The fence refuses: reply with this, change nothing.
    Refuse(FenceOutcome),
    /// The condition fails, or an earlier attempt was applied: raise the mark, if given, reply with
    /// the outcome, change no data.
    Fail {
        /// Mark to write.
        raise: Option<Mark>,
        /// Outcome to reply with.
        outcome: FenceOutcome,
    },
    /// Raise the mark, if given, and apply.
    Proceed {
        /// Mark to write.
        raise: Option<Mark>,
    },
}

/// Decides an operation (`None`: a seal) by the lock's mark, the object's tag, and the earlier
/// operation of the same name.
pub(super) fn decide(
    fence: Option<&Fence>,
    mark: Option<Mark>,
    operation: Option<&Operation>,
    current: Option<&ETag>,
    known: Option<EarlierOperation>,
) -> Decision {
    let raise = match fence.map(|fence| (judge(mark, fence.presented), fence.presented)) {
        None | Some((Verdict::Admit, _)) => None,
        Some((Verdict::Raise, presented)) => Some(presented),
        Some((Verdict::Stale { mark }, _)) => {
            return Decision::Refuse(match known {
                Some(EarlierOperation::Same(first)) => FenceOutcome::StaleRepeat { mark, first },
                Some(EarlierOperation::Other) | None => FenceOutcome::Stale { mark },
            });
        }
        Some((Verdict::Collision { mark }, _)) => {
            return Decision::Refuse(FenceOutcome::Collision { mark });
        }
    };
    let mark = fence.map(|fence| fence.presented.token);
    match known {
        Some(EarlierOperation::Same(first)) => {
            return Decision::Fail { raise, outcome: FenceOutcome::Repeated { first, mark } };
        }
        Some(EarlierOperation::Other) => {
            return Decision::Fail { raise, outcome: FenceOutcome::NameTaken { mark } };
        }
        None => {}
    }
    if operation.is_none_or(|operation| operation.condition().holds(current)) {
        return Decision::Proceed { raise };
    }
    let outcome = FenceOutcome::PreconditionFailed { etag: current.cloned(), mark };
    Decision::Fail { raise, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etag::Condition;
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
        assert_eq!(stale, Decision::Refuse(FenceOutcome::Stale { mark: mark(34, 1) }));
        let collision = decide(Some(&fence(34, 2)), held, Some(&delete), None, None);
        assert_eq!(collision, Decision::Refuse(FenceOutcome::Collision { mark: mark(34, 1) }));
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
        let outcome =
            FenceOutcome::PreconditionFailed { etag: None, mark: Some(mark(35, 2).token) };
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
        let first = crate::stores::contract::First::Deleted { existed: true };
        let same = || Some(EarlierOperation::Same(first.clone()));
        let ask = |token, known| decide(Some(&fence(token, 1)), held, Some(&delete), None, known);
        let repeated = |token| FenceOutcome::Repeated {
            first: first.clone(),
            mark: Some(mark(token, 1).token),
        };
        assert_eq!(ask(34, same()), Decision::Fail { raise: None, outcome: repeated(34) });
        let raised = Decision::Fail { raise: Some(mark(35, 1)), outcome: repeated(35) };
        assert_eq!(ask(35, same()), raised);
        let stale = FenceOutcome::StaleRepeat { mark: mark(34, 1), first: first.clone() };
        assert_eq!(ask(33, same()), Decision::Refuse(stale));
        let taken = FenceOutcome::NameTaken { mark: Some(mark(34, 1).token) };
        assert_eq!(
            ask(34, Some(EarlierOperation::Other)),
            Decision::Fail { raise: None, outcome: taken }
        );
        let refused = Decision::Refuse(FenceOutcome::Stale { mark: mark(34, 1) });
        assert_eq!(ask(33, Some(EarlierOperation::Other)), refused);
    }
}
