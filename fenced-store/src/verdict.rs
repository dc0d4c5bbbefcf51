//! The fencing rule, pure.
//!
//! A lock has at most one mark: the highest token that the guard has seen, and the lease that owns
//! it. [`judge`] compares a request's token with the mark, without clock, I/O or state. Each store
//! calls it, or repeats it in one atomic step of its own (the Lua scripts and
//! the SQL pack).

use fence_protocol::{FencingToken, LeaseId, LockName, Token};

/// A token together with the lease that it was granted to.
///
/// Both a presented token and a lock's mark have this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The number that is compared.
    pub token: Token,
    /// The grant; distinguishes two holders of one number.
    pub lease: LeaseId,
}

/// Presented token and its lock, after the header was read and verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The lock that protects the resource, and that the token was granted for.
    pub lock: LockName,
    /// The token and its lease.
    pub presented: Mark,
}

impl From<&FencingToken> for Fence {
    fn from(header: &FencingToken) -> Self {
        Self {
            lock: header.lock.clone(),
            presented: Mark { token: header.token, lease: header.lease },
        }
    }
}

/// Result of comparing a request with the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The token equals the mark: apply; the mark stays.
    Admit,
    /// The token is above the mark, or the first: raise the mark to it and apply, in one step.
    Raise,
    /// The token is below the mark: change nothing.
    Stale {
        /// Mark that refused it.
        mark: Mark,
    },
    /// The token equals the mark, but another lease owns it: change nothing and raise an alarm.
    /// The issuer gave out one number twice.
    Collision {
        /// Mark that refused it.
        mark: Mark,
    },
}

/// Compares a presented token with the lock's mark (`None` before the first token).
pub fn judge(mark: Option<Mark>, presented: Mark) -> Verdict {
    let Some(mark) = mark else { return Verdict::Raise };
    if presented.token > mark.token {
        Verdict::Raise
    } else if presented.token < mark.token {
        Verdict::Stale { mark }
    } else if presented.lease == mark.lease {
        Verdict::Admit
    } else {
        Verdict::Collision { mark }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A mark for tests: lease `n` is a UUID that ends in `n`.
    pub(crate) fn mark(token: u64, lease: u64) -> Mark {
        Mark {
            token: Token::new(token).unwrap(),
            lease: format!("00000000-0000-4000-8000-{lease:012x}").parse().unwrap(),
        }
    }

    /// Applies a verdict the way every store does.
    fn step(state: &mut Option<Mark>, presented: Mark) -> bool {
        match judge(*state, presented) {
            Verdict::Admit => true,
            Verdict::Raise => {
                *state = Some(presented);
                true
            }
            Verdict::Stale { .. } | Verdict::Collision { .. } => false,
        }
    }

    /// Every pair of marks from a small range, against the definition in words.
    #[test]
    fn every_small_case() {
        for (token, lease) in (1..=4).flat_map(|t| (1..=3).map(move |l| (t, l))) {
            let presented = mark(token, lease);
            assert_eq!(judge(None, presented), Verdict::Raise);
            for (held, owner) in (1..=4).flat_map(|t| (1..=3).map(move |l| (t, l))) {
                let mark = mark(held, owner);
                let expected = match (token.cmp(&held), lease == owner) {
                    (std::cmp::Ordering::Greater, _) => Verdict::Raise,
                    (std::cmp::Ordering::Less, _) => Verdict::Stale { mark },
                    (std::cmp::Ordering::Equal, true) => Verdict::Admit,
                    (std::cmp::Ordering::Equal, false) => Verdict::Collision { mark },
                };
                assert_eq!(judge(Some(mark), presented), expected);
            }
        }
    }

    proptest! {
        /// G1: applied tokens never fall. G2: nothing below an answered token is applied.
        /// G3: one number is never applied for two leases. G4: the mark never falls.
        #[test]
        fn applied_tokens_never_fall(requests in prop::collection::vec((1u64..6, 1u64..4), 0..40)) {
            let mut state = None;
            let mut applied: Vec<Mark> = Vec::new();
            for (token, lease) in requests {
                let before = state;
                let presented = mark(token, lease);
                if step(&mut state, presented) {
                    for earlier in &applied {
                        prop_assert!(earlier.token <= presented.token, "G1, G2");
                        prop_assert!(
                            earlier.token != presented.token || earlier.lease == presented.lease,
                            "G3"
                        );
                    }
                    applied.push(presented);
                } else {
                    prop_assert_eq!(before, state, "a refusal changes nothing");
                }
                prop_assert!(state.map(|m| m.token) >= before.map(|m| m.token), "G4");
                prop_assert_eq!(state, applied.last().copied(), "the mark is the last applied");
            }
        }
    }
}
