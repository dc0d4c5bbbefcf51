//! Error replies of the port, in Redis' form: a code word, the event with its values, and the next
//! step for the client.

use fence_protocol::{Code, LockName, Token};

use crate::stores::contract::FenceOutcome;
use crate::verdict::{Fence, Mark};

/// Refusal by the fence, or reason why a connection cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The token is below the mark.
    Stale {
        /// Presented fence.
        fence: Fence,
        /// Mark that refused it.
        mark: Mark,
    },
    /// Another lease owns this very token.
    Collision {
        /// Presented fence.
        fence: Fence,
        /// Mark that refused it.
        mark: Mark,
    },
    /// Redis is unreachable or not verified; nothing was sent.
    Unavailable(String),
    /// The request is not allowed or not understood; the whole line of the reply.
    Line(String),
}

impl Refusal {
    /// Returns the refusal of a token by the fence; `None` if the outcome refuses none.
    pub(crate) fn from_outcome(fence: &Fence, outcome: &FenceOutcome) -> Option<Self> {
        match *outcome {
            FenceOutcome::Stale { mark } => Some(Self::Stale { fence: fence.clone(), mark }),
            FenceOutcome::Collision { mark } => {
                Some(Self::Collision { fence: fence.clone(), mark })
            }
            _ => None,
        }
    }

    /// Returns code, token and outcome of a refusal by the fence; `None` for any other refusal.
    pub(crate) fn by_fence(&self) -> Option<(Code, &Fence, FenceOutcome)> {
        match self {
            Self::Stale { fence, mark } => {
                Some((Code::StaleToken, fence, FenceOutcome::Stale { mark: *mark }))
            }
            Self::Collision { fence, mark } => {
                Some((Code::TokenCollision, fence, FenceOutcome::Collision { mark: *mark }))
            }
            Self::Unavailable(_) | Self::Line(_) => None,
        }
    }

    /// Returns `true` if the token was refused: marks never fall, so a retry is refused too.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Stale { .. } | Self::Collision { .. })
    }

    /// Returns the line for a command that was not sent.
    pub(crate) fn not_applied(&self) -> String {
        match self {
            Self::Stale { fence, mark } => stale(fence, *mark, NOTHING_CHANGED),
            Self::Collision { fence, mark } => collision(fence, *mark, NOTHING_CHANGED),
            Self::Unavailable(reason) => {
                format!("UNAVAILABLE {reason}. Nothing was sent; try again")
            }
            Self::Line(line) => line.clone(),
        }
    }

    /// Returns the line for a command whose connection broke before its reply.
    pub(crate) fn unknown(&self) -> String {
        const UNKNOWN: &str = "this command has an unknown outcome: it was on its \
                               way when the hand-over ended the connection";
        match self {
            Self::Stale { fence, mark } => stale(fence, *mark, UNKNOWN),
            Self::Collision { fence, mark } => collision(fence, *mark, UNKNOWN),
            Self::Unavailable(reason) | Self::Line(reason) => unknown(reason),
        }
    }
}

const NOTHING_CHANGED: &str = "nothing was changed";

fn stale(fence: &Fence, mark: Mark, outcome: &str) -> String {
    format!(
        "FENCED token {} is below mark {} of lock {}; {outcome}. Another holder has the lock now: \
         stop this work, and acquire the lock again before you write",
        fence.presented.token, mark.token, fence.lock
    )
}

fn collision(fence: &Fence, mark: Mark, outcome: &str) -> String {
    format!(
        "COLLISION token {} of lock {} is held by another lease ({}, this one is {}); {outcome}. \
         The lock server issued one token twice: stop, and check its lineage",
        fence.presented.token, fence.lock, mark.lease, fence.presented.lease
    )
}

/// Makes the line for a command that was sent and got no reply.
pub(crate) fn unknown(reason: &str) -> String {
    format!(
        "UNKNOWN the connection to Redis broke ({reason}), and this command has an \
         unknown outcome. Read before you retry it"
    )
}

/// Makes the line for a key whose token the connection does not hold.
pub(crate) fn no_token<'a>(
    key: &[u8],
    lock: &str,
    held: impl Iterator<Item = (&'a LockName, Token)>,
) -> String {
    let held: Vec<String> = held.map(|(lock, token)| format!("{token} of {lock}")).collect();
    let held = if held.is_empty() { "none".to_owned() } else { held.join(", ") };
    format!(
        "NOTOKEN key {} needs a token of lock {lock}; this connection has {held}. Acquire the lock \
         and give its fencing_credential as the password, or send FENCE SET with it",
        quoted(key)
    )
}

/// Returns the beginning of a key or a name, for a message.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(QUOTED_BYTES_MAX)];
    let rest = if shown.len() < bytes.len() { "…" } else { "" };
    format!("{}{rest}", shown.escape_ascii())
}

/// Maximum length of a client's words in an error, in bytes.
const QUOTED_BYTES_MAX: usize = 256;

/// Makes the line for a key that the rules deny to every client.
pub(crate) fn denied_key(key: &[u8], reason: &str) -> String {
    format!("DENIED key {}: {reason}", quoted(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::contract::Effect;
    use crate::verdict::tests::mark;

    #[test]
    fn a_stale_token_is_shown_with_its_values() {
        let fence = Fence { lock: LockName::new("orders/42").unwrap(), presented: mark(33, 1) };
        let refusal = Refusal::Stale { fence, mark: mark(34, 2) };
        let line = refusal.not_applied();
        assert!(line.starts_with("FENCED token 33 is below mark 34 of lock orders/42; nothing"));
        assert!(refusal.unknown().contains("unknown outcome"));
    }

    #[test]
    fn an_outcome_of_the_fence_becomes_a_refusal_and_back() {
        let fence = Fence { lock: LockName::new("orders/42").unwrap(), presented: mark(33, 1) };
        let mark = mark(34, 2);
        for (outcome, code) in [
            (FenceOutcome::Stale { mark }, Code::StaleToken),
            (FenceOutcome::Collision { mark }, Code::TokenCollision),
        ] {
            let refusal = Refusal::from_outcome(&fence, &outcome).unwrap();
            assert!(refusal.is_final());
            assert_eq!(refusal.by_fence(), Some((code, &fence, outcome)));
        }
        let applied = FenceOutcome::Applied { effect: Effect::Sealed, mark: None };
        assert_eq!(Refusal::from_outcome(&fence, &applied), None);
        for other in [Refusal::Unavailable(String::new()), Refusal::Line(String::new())] {
            assert_eq!(other.by_fence(), None);
        }
    }

    #[test]
    fn a_missing_token_names_key_and_lock() {
        let line = no_token(b"orders:\xff", "orders/42", std::iter::empty());
        assert!(line.starts_with("NOTOKEN key orders:\\xff needs a token of lock orders/42"));
        assert!(line.contains("has none"));
    }
}
