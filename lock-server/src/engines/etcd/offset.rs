//! Arithmetic of tokens, and the conditions under which they are suspect. Pure: no I/O.
//!
//! A commit's tokens are the offset and its revision, which has room for [`PER_REVISION`] of them.
//! Revisions of one etcd rise by themselves and are never issued twice; an etcd that was restored
//! from a snapshot issues some of them again. So the offset is lifted whenever that may have
//! happened, and by a commit that needs more room.

use fence_protocol::Token;
use serde::{Deserialize, Serialize};

use super::wire::Header;

/// Base of the tokens of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) format: u32,
    pub(super) offset: u64,
    /// The cluster that the offset was made for.
    pub(super) cluster_id: u64,
    /// Raft index of that cluster's log.
    pub(super) raft_index: u64,
    /// An operator vouched that no token was ever issued, and none was since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) fresh: bool,
    /// Random, and another one in every writing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) nonce: String,
}

/// Tokens that one revision has room for. Below 15 625 revisions a second in the long run, of
/// everything that writes to this etcd, the clock floor stays above the tokens.
pub(super) const PER_REVISION: u64 = 64;
/// The last tokens are not given: which revision a commit gets is known only after it.
const SPARE: u64 = 1_000_000_000 * PER_REVISION;

/// State of etcd that this server has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// 0 where nothing was seen yet.
    pub(super) cluster_id: u64,
    pub(super) revision: u64,
    pub(super) raft_index: u64,
    /// The highest token.
    pub(super) token: u64,
}

/// Why tokens may have been issued that the counter does not know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Doubt {
    /// The counter is missing.
    #[error("the namespace is new here, or was deleted")]
    Missing,
    /// A server that was down cannot know whether etcd was restored meanwhile.
    #[error("this server starts, and cannot know whether etcd was restored while it was down")]
    Start,
    /// The last commit of this server is missing.
    #[error("the last commit of this server is not there")]
    Forgotten,
    /// The counter was made for another cluster.
    #[error("the cluster id is {now} and was {was}")]
    OtherCluster {
        /// Before.
        was: u64,
        /// Id that etcd has now.
        now: u64,
    },
    /// Revision of a later reply is lower.
    #[error("revision {now} follows revision {was}")]
    RevisionFell {
        /// Before.
        was: u64,
        /// Revision of the later reply.
        now: u64,
    },
    /// The log is shorter than it was.
    #[error("the log ends at {now} and was at {was}")]
    IndexFell {
        /// Before.
        was: u64,
        /// End of the log in the later reply.
        now: u64,
    },
    /// The counter is below a token that was seen.
    #[error("the next token would be {next}, and {seen} was issued")]
    Below {
        /// The next token.
        next: u64,
        /// Highest token seen here or at a guard.
        seen: u64,
    },
}

impl Seen {
    /// Returns why a reply cannot follow what was seen when its request was sent.
    pub(super) fn doubt(&self, header: &Header) -> Option<Doubt> {
        if self.cluster_id != 0 && header.cluster_id != self.cluster_id {
            return Some(Doubt::OtherCluster { was: self.cluster_id, now: header.cluster_id });
        }
        if header.revision < self.revision {
            return Some(Doubt::RevisionFell { was: self.revision, now: header.revision });
        }
        None
    }

    /// Returns why the revision of a write cannot follow what was seen when it was requested: a
    /// write has a revision of its own.
    pub(super) fn doubt_of_writing(&self, header: &Header) -> Option<Doubt> {
        let fell = Doubt::RevisionFell { was: self.revision, now: header.revision };
        self.doubt(header).or((header.revision <= self.revision).then_some(fell))
    }

    /// Returns why tokens above this counter cannot follow what was seen when they were requested.
    pub(super) fn doubt_of_tokens(&self, header: &Header, base: u64) -> Option<Doubt> {
        let below = Doubt::Below { next: base.saturating_add(1), seen: self.token };
        self.doubt_of_writing(header).or((base < self.token).then_some(below))
    }
}

/// Findings of a verification.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) meta: Option<&'a Meta>,
    pub(super) header: &'a Header,
    pub(super) raft_index: u64,
    /// The highest mark of the guards; 0 for none.
    pub(super) mark: u64,
    /// This server just started.
    pub(super) is_start: bool,
    /// This server's last commit is missing.
    pub(super) is_forgotten: bool,
}

/// Returns why tokens are suspect.
pub(super) fn doubt(seen: &Seen, found: &Found<'_>) -> Option<Doubt> {
    let Some(meta) = found.meta else { return Some(Doubt::Missing) };
    let header = found.header;
    if meta.cluster_id != header.cluster_id {
        return Some(Doubt::OtherCluster { was: meta.cluster_id, now: header.cluster_id });
    }
    if let Some(doubt) = seen.doubt(header) {
        return Some(doubt);
    }
    let index_was = seen.raft_index.max(meta.raft_index);
    if found.raft_index < index_was {
        return Some(Doubt::IndexFell { was: index_was, now: found.raft_index });
    }
    if found.is_start && !meta.fresh {
        return Some(Doubt::Start);
    }
    if found.is_forgotten {
        return Some(Doubt::Forgotten);
    }
    let next = counter(meta.offset, header.revision).saturating_add(1);
    let known = seen.token.max(found.mark);
    (next <= known).then_some(Doubt::Below { next, seen: known })
}

/// The counter before the tokens of a commit by this revision.
pub(super) fn base(offset: u64, revision: u64) -> u64 {
    offset.saturating_add(revision.saturating_mul(PER_REVISION)).min(Token::MAX)
}

/// The counter after everything up to this revision.
pub(super) fn counter(offset: u64, revision: u64) -> u64 {
    base(offset, revision.saturating_add(1))
}

/// The offset with which every token after this revision is above `above`; it never falls. None
/// where no token would be left.
pub(super) fn lifted(offset: u64, revision: u64, above: u64) -> Option<u64> {
    let lifted = offset.max(above.saturating_sub(counter(0, revision)));
    has_room(lifted, revision, 0).then_some(lifted)
}

/// Returns whether so many tokens are left after this revision.
pub(super) fn has_room(offset: u64, revision: u64, tokens: u64) -> bool {
    let next = counter(offset, revision).saturating_add(tokens);
    next.saturating_add(SPARE) <= Token::MAX
}

/// Returns the growth of the offset by a commit of so many tokens.
pub(super) fn growth(tokens: u64) -> u64 {
    tokens.saturating_sub(PER_REVISION)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(cluster_id: u64, revision: u64) -> Header {
        Header { cluster_id, revision }
    }

    fn meta(fresh: bool) -> Meta {
        Meta {
            format: 2,
            offset: 1_000,
            cluster_id: 7,
            raft_index: 50,
            fresh,
            nonce: String::new(),
        }
    }

    const SEEN: Seen = Seen { cluster_id: 7, revision: 100, raft_index: 60, token: 7_464 };

    fn found<'a>(meta: Option<&'a Meta>, header: &'a Header) -> Found<'a> {
        Found { meta, header, raft_index: 60, mark: 0, is_start: false, is_forgotten: false }
    }

    #[test]
    fn an_etcd_that_only_went_on_is_trusted() {
        assert_eq!(doubt(&SEEN, &found(Some(&meta(false)), &header(7, 100))), None);
        assert_eq!(SEEN.doubt_of_tokens(&header(7, 101), 7_464), None);
    }

    #[test]
    fn every_sign_of_an_older_state_is_a_doubt() {
        let meta = meta(false);
        let now = header(7, 120);
        let found = found(Some(&meta), &now);
        assert_eq!(doubt(&SEEN, &Found { meta: None, ..found }), Some(Doubt::Missing));
        let other = header(8, 120);
        let cluster = Found { header: &other, ..found };
        assert!(matches!(doubt(&SEEN, &cluster), Some(Doubt::OtherCluster { .. })));
        let older = header(7, 99);
        let fell = Found { header: &older, ..found };
        assert!(matches!(doubt(&SEEN, &fell), Some(Doubt::RevisionFell { .. })));
        let index = Found { raft_index: 59, ..found };
        assert!(matches!(doubt(&SEEN, &index), Some(Doubt::IndexFell { was: 60, now: 59 })));
        let forgotten = Found { is_forgotten: true, ..found };
        assert_eq!(doubt(&SEEN, &forgotten), Some(Doubt::Forgotten));
        let nothing_seen = Seen::default();
        let index = Found { raft_index: 49, ..found };
        assert!(matches!(doubt(&nothing_seen, &index), Some(Doubt::IndexFell { was: 50, .. })));
        let mark = Found { mark: 50_000, ..found };
        assert!(matches!(doubt(&SEEN, &mark), Some(Doubt::Below { seen: 50_000, .. })));
        assert!(SEEN.doubt_of_tokens(&now, 7_463).is_some());
        assert!(SEEN.doubt_of_tokens(&older, 90_000).is_some());
        // A read may return the revision that was seen last; a write has another.
        assert_eq!(SEEN.doubt(&header(7, 100)), None);
        assert!(SEEN.doubt_of_tokens(&header(7, 100), 90_000).is_some());
    }

    #[test]
    fn every_start_is_unverified_unless_a_server_vouches() {
        let now = header(7, 120);
        for (fresh, expected) in [(false, Some(Doubt::Start)), (true, None)] {
            let meta = meta(fresh);
            let found = Found { is_start: true, ..found(Some(&meta), &now) };
            assert_eq!(doubt(&Seen::default(), &found), expected);
        }
    }

    proptest! {
        /// Whatever came before, the next token is above it, and the offset did not fall.
        #[test]
        fn a_lift_is_above_and_never_down(
            offset in 0..Token::MAX,
            revision in 0..Token::MAX / PER_REVISION,
            above in 0..Token::MAX,
        ) {
            match lifted(offset, revision, above) {
                Some(lifted) => {
                    prop_assert!(lifted >= offset);
                    let next = counter(lifted, revision);
                    prop_assert!(next >= above && next + SPARE <= Token::MAX);
                    // It is not lifted further than it must be.
                    prop_assert!(lifted == offset || next == above);
                }
                None => prop_assert!(
                    counter(offset, revision) + SPARE >= Token::MAX || above + SPARE >= Token::MAX
                ),
            }
        }

        /// The tokens of a commit are below those of the next one, however many they are.
        #[test]
        fn commits_do_not_share_tokens(
            offset in 0..1_000_000_u64, revision in 0..1_000_000_u64, tokens in 0..1_000_000_u64,
        ) {
            let last = base(offset, revision) + tokens;
            prop_assert!(last <= counter(offset + growth(tokens), revision));
        }
    }
}
