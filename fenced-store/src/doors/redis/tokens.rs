//! Tokens that a connection holds: one for each lock.

use bytes::BytesMut;
use fence_protocol::{Code, LockName, Token};

use super::refusal::Refusal;
use super::resp::encode;
use crate::fencing::FencingPolicy;
use crate::verdict::Fence;

/// Maximum number of locks for a connection.
pub(crate) const MAX_TOKENS: usize = 16;

/// The tokens of one connection, in the order of their locks.
///
/// Two connections whose sets are equal may share an upstream connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HeldTokens(Vec<Fence>);

impl HeldTokens {
    /// Parses and verifies a credential: one or several tokens.
    ///
    /// # Errors
    /// Code of the refusal, and the error line.
    pub(crate) fn read(text: &[u8], policy: &FencingPolicy) -> Result<Vec<Fence>, (Code, Refusal)> {
        policy.credential(text).map_err(|reject| {
            let reason = reject.problem().detail.clone();
            (reject.code(), Refusal::Line(format!("WRONGTOKEN {reason}")))
        })
    }

    /// Returns the set with `fences`, each in place of an earlier token of its lock.
    ///
    /// # Errors
    /// The error line, if there would be too many.
    pub(crate) fn with(&self, fences: Vec<Fence>) -> Result<Self, Refusal> {
        let mut held = self.clone();
        for fence in fences {
            match held.0.binary_search_by(|known| known.lock.cmp(&fence.lock)) {
                Ok(at) => held.0[at] = fence,
                Err(at) => held.0.insert(at, fence),
            }
        }
        if held.0.len() > MAX_TOKENS {
            return Err(Refusal::Line(format!(
                "WRONGTOKEN a connection holds at most {MAX_TOKENS} tokens"
            )));
        }
        Ok(held)
    }

    /// Returns the set without the token of `lock`.
    pub(crate) fn without(&self, lock: &LockName) -> Self {
        Self(self.0.iter().filter(|fence| fence.lock != *lock).cloned().collect())
    }

    /// Returns `true` if it has a token of this lock.
    pub(crate) fn holds(&self, lock: &str) -> bool {
        self.0.iter().any(|fence| fence.lock.as_str() == lock)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn fences(&self) -> &[Fence] {
        &self.0
    }

    /// Encodes the reply to `FENCE SHOW`: lock, token and lease of each.
    pub(crate) fn show(&self, out: &mut BytesMut) {
        encode::array(out, self.0.len());
        for fence in &self.0 {
            encode::array(out, 3);
            encode::bulk(out, fence.lock.as_str().as_bytes());
            encode::bulk(out, fence.presented.token.to_string().as_bytes());
            encode::bulk(out, fence.presented.lease.to_string().as_bytes());
        }
    }

    /// Returns locks and their tokens, for messages.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (&LockName, Token)> {
        self.0.iter().map(|fence| (&fence.lock, fence.presented.token))
    }
}

const HELP: [&str; 6] = [
    "FENCE SET <credential> -- hold a token on this connection, in place of one of the same lock.",
    "FENCE CLEAR [<lock>] -- drop all tokens, or that of this lock.",
    "FENCE SHOW -- the tokens of this connection: lock, token and lease of each.",
    "FENCE <credential> <command> [<arg> ...] -- hold a token for one command.",
    "FENCE HELP -- this text.",
    "A credential is the fencing_credential, or the fencing_token, that the lock server gave.",
];

/// Encodes the reply to `FENCE HELP`.
pub(crate) fn help(out: &mut BytesMut) {
    encode::array(out, HELP.len());
    HELP.iter().for_each(|line| encode::simple(out, line));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::mark;

    fn fence(lock: &str, token: u64) -> Fence {
        Fence { lock: LockName::new(lock).unwrap(), presented: mark(token, token) }
    }

    #[test]
    fn one_token_a_lock_in_any_order() {
        let one = HeldTokens::default().with(vec![fence("b", 1), fence("a", 2)]).unwrap();
        let two = HeldTokens::default().with(vec![fence("a", 2), fence("b", 1)]).unwrap();
        assert_eq!(one, two);
        let three = one.with(vec![fence("a", 3)]).unwrap();
        assert_ne!(one, three);
        assert_eq!(three.fences().len(), 2);
        assert!(three.holds("b") && !three.without(&fence("b", 1).lock).holds("b"));
    }

    #[test]
    fn too_many_tokens_are_refused() {
        let fences = (0..=MAX_TOKENS).map(|n| fence(&format!("lock{n}"), 1)).collect();
        assert!(HeldTokens::default().with(fences).is_err());
    }
}
