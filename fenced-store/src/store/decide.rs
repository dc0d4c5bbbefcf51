//! The one step, as a pure function: fence first, condition after it.
//!
//! Memory and embedded both run it; the Lua script of the Redis store says the same in Lua, and the
//! conformance suite holds them together.

use crate::etag::{Condition, ETag};
use crate::guard::{Fence, Mark, Verdict, judge};
use crate::store::{Operation, Outcome};

/// What the step is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The fence refuses: answer this, change nothing.
    Refuse(Outcome),
    /// The condition fails: raise the mark where one is given, answer this, change no data.
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

/// Decides an operation (`None`: a seal) given the lock's mark and the object's tag.
pub(super) fn decide(
    fence: Option<&Fence>,
    mark: Option<Mark>,
    operation: Option<&Operation>,
    current: Option<&ETag>,
) -> Decision {
    let raise = match fence.map(|fence| (judge(mark, fence.presented), fence.presented)) {
        None | Some((Verdict::Admit, _)) => None,
        Some((Verdict::Raise, presented)) => Some(presented),
        Some((Verdict::Stale { mark }, _)) => return Decision::Refuse(Outcome::Stale { mark }),
        Some((Verdict::Collision { mark }, _)) => {
            return Decision::Refuse(Outcome::Collision { mark });
        }
    };
    let condition = match operation {
        Some(Operation::Put { condition, .. } | Operation::Delete { condition, .. }) => condition,
        Some(Operation::Get { .. }) | None => &Condition::None,
    };
    if condition.holds(current) {
        return Decision::Proceed { raise };
    }
    let mark = fence.map(|fence| fence.presented.token);
    let outcome = Outcome::PreconditionFailed { etag: current.cloned(), mark };
    Decision::Fail { raise, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tests::mark;
    use crate::key::ObjectKey;

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
        let stale = decide(Some(&fence(33, 1)), held, Some(&delete), None);
        assert_eq!(stale, Decision::Refuse(Outcome::Stale { mark: mark(34, 1) }));
        let collision = decide(Some(&fence(34, 2)), held, Some(&delete), None);
        assert_eq!(collision, Decision::Refuse(Outcome::Collision { mark: mark(34, 1) }));
    }

    #[test]
    fn a_failed_condition_still_raises_the_mark() {
        let failed =
            decide(Some(&fence(35, 2)), Some(mark(34, 1)), Some(&delete(Condition::Exists)), None);
        let outcome = Outcome::PreconditionFailed { etag: None, mark: Some(mark(35, 2).token) };
        assert_eq!(failed, Decision::Fail { raise: Some(mark(35, 2)), outcome });
    }

    #[test]
    fn equal_tokens_raise_nothing_and_no_fence_compares_nothing() {
        let held = Some(mark(34, 1));
        let same = decide(Some(&fence(34, 1)), held, None, None);
        assert_eq!(same, Decision::Proceed { raise: None });
        let open = decide(None, held, Some(&delete(Condition::None)), None);
        assert_eq!(open, Decision::Proceed { raise: None });
    }
}
