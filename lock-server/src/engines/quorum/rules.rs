//! The rules of a quorum of independent nodes: pure, without I/O, clock or runtime.
//!
//! [`tally`] is what a proposer makes of the nodes' replies. [`view`] is who belongs to the quorum.
//! What a node does is in its scripts; the tests have the same node in Rust, which the model
//! checker runs under these rules, and compare the scripts with it step by step.
//!
//! Why tokens are unique and rise: a node accepts a token at most once (`t` above everything that
//! it accepted before in the lock's bucket), any two majorities share a node, and a node that lost
//! its memory comes back only under a new view, in which nothing that it may have forgotten can
//! still reach a majority.

use fence_protocol::wire::lock::{EndReason, EndedLease, HolderInfo};
use fence_protocol::{LeaseId, LockName, Owner, Token};

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod tally;
pub mod view;

pub use view::{Addressee, Members, NodeId};

/// Number of buckets that the locks of a namespace are divided into; each has a counter of its own.
pub const BUCKETS: u16 = 256;

/// Number of ended ids that a lock remembers.
pub const ENDED_MAX: usize = 8;

/// Locks that share a counter: their tokens rise together, so that two of them may have to ask
/// again because of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(u8);

impl Bucket {
    /// The bucket with a number.
    pub fn new(number: u8) -> Self {
        Self(number)
    }

    /// The number, below [`BUCKETS`].
    pub fn number(self) -> u8 {
        self.0
    }
}

/// The bucket of a lock: FNV-1a over its name, folded. All servers must agree on it for ever, so it
/// is part of the stored format.
pub fn bucket_of(lock: &LockName) -> Bucket {
    let hash = lock.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Bucket(hash.to_be_bytes().into_iter().fold(0, |folded, byte| folded ^ byte))
}

/// The metadata of a vote: the principal of the access file, if there is one, between an `@` and a
/// tab, and the JSON text of the request, which begins with neither.
pub fn with_principal(principal: Option<&str>, metadata: Option<&str>) -> String {
    let metadata = metadata.unwrap_or_default();
    principal.map_or_else(|| metadata.to_owned(), |name| format!("@{name}\t{metadata}"))
}

/// The principal, and the JSON text, of a vote's metadata.
pub fn split_principal(metadata: &str) -> (Option<&str>, &str) {
    let split = metadata.strip_prefix('@').and_then(|rest| rest.split_once('\t'));
    split.map_or((None, metadata), |(principal, text)| (Some(principal), text))
}

/// Nodes of `n` that are a majority.
pub fn majority(n: usize) -> usize {
    n / 2 + 1
}

/// Nodes of `n` that may be missing.
pub fn faults(n: usize) -> usize {
    n - majority(n)
}

/// A proposer's request that a node accepts a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vote {
    /// Lock of the proposal.
    pub lock: LockName,
    /// Its bucket.
    pub bucket: Bucket,
    /// The id of the grant.
    pub lease: LeaseId,
    /// The token that is proposed for it.
    pub token: Token,
    /// Time that the lease lives from the moment at which the node accepts it, in milliseconds.
    pub ttl_ms: u64,
    /// Owner of the request.
    pub owner: Owner,
    /// Metadata for people who look at the lock, with the principal: see [`with_principal`].
    pub metadata: String,
    /// Id of the attempt: every request of a client is another one, also where it retries a lease
    /// id. Not empty, and without control characters. Until another attempt asks for the lease, or
    /// renews it, the one that got this vote may put another token in its place, or roll it back
    /// with [`End::Drop`]: no other attempt can have counted it.
    pub attempt: String,
    /// Tokens of this lease that can never reach a majority: more than `f` nodes are above each and
    /// do not hold it. A vote for one of them may be replaced, by any attempt.
    pub dead: Vec<Token>,
    /// For how long ended ids are remembered, in milliseconds.
    pub retention_ms: u64,
}

/// Copy of a lease that a majority holds, for a node that does not have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopUp {
    /// Lock of the lease.
    pub lock: LockName,
    /// Its bucket.
    pub bucket: Bucket,
    /// The id of the grant.
    pub lease: LeaseId,
    /// The token that a majority confirmed for it.
    pub token: Token,
    /// Remaining time of the lease, in milliseconds.
    pub remaining_ms: u64,
    /// The time to live that a renewal restores, in milliseconds.
    pub ttl_ms: u64,
    /// Owner of the lease.
    pub owner: Owner,
    /// As in [`Vote::metadata`].
    pub metadata: String,
    /// The attempt that the grant was made for, so that [`End::Drop`] rolls it back
    /// here as well; empty after a renewal.
    pub attempt: String,
    /// For how long ended ids are remembered, in milliseconds.
    pub retention_ms: u64,
}

/// A renewal at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Renew {
    /// Lock of the lease.
    pub lock: LockName,
    /// Its bucket.
    pub bucket: Bucket,
    /// Lease to renew.
    pub lease: LeaseId,
    /// Time that it lives from now, in milliseconds; `None` for its own time to live.
    pub ttl_ms: Option<u64>,
    /// Lock server that asks.
    pub by: String,
    /// Its renewals in their order: one that comes after a later one of the same server, as from a
    /// connection that was closed, says how the lease is, and does not take the later time away.
    pub order: u64,
    /// For how long ended ids are remembered, in milliseconds.
    pub retention_ms: u64,
}

/// Effect of an end at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// For good: the id is remembered, also where it was not live.
    For {
        /// Reason of the end.
        reason: EndReason,
        /// Text that was given with it.
        why: Option<Owner>,
    },
    /// The votes that one attempt got are rolled back, and nothing is remembered. A lease that
    /// another attempt has asked for since, or that was renewed, stays.
    Drop {
        /// Id of that attempt.
        attempt: String,
    },
}

/// One step of a node, about a lock or about its counters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Accept a token for a lease.
    Vote(Vote),
    /// Take over a lease that a majority holds.
    TopUp(TopUp),
    /// Give a lease its time again.
    Renew(Renew),
    /// End a lease.
    End {
        /// Lock of the lease.
        lock: LockName,
        /// Lease to end.
        lease: LeaseId,
        /// Effect of the end.
        end: End,
        /// For how long ended ids are remembered, in milliseconds.
        retention_ms: u64,
    },
    /// Say what is known of a lock.
    Read(LockName),
    /// Use up a token that no lease gets.
    Raise {
        /// The bucket whose counter is raised.
        bucket: Bucket,
        /// Token that no lease gets.
        token: Token,
    },
    /// Lift all counters to a mark.
    Lift(Token),
}

impl Operation {
    /// The word by which the scripts know it.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Vote(_) => "vote",
            Self::TopUp(_) => "topup",
            Self::Renew(_) => "renew",
            Self::End { .. } => "finish",
            Self::Read(_) => "read",
            Self::Raise { .. } => "raise",
            Self::Lift(_) => "lift",
        }
    }

    /// The lock that it is about, if it is about one.
    pub(super) fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Vote(Vote { lock, .. })
            | Self::TopUp(TopUp { lock, .. })
            | Self::Renew(Renew { lock, .. })
            | Self::End { lock, .. }
            | Self::Read(lock) => Some(lock),
            Self::Raise { .. } | Self::Lift(_) => None,
        }
    }

    /// The bucket whose counter it concerns; `None` for all of them.
    pub(super) fn bucket(&self) -> Option<Bucket> {
        match self {
            Self::Vote(Vote { bucket, .. })
            | Self::TopUp(TopUp { bucket, .. })
            | Self::Renew(Renew { bucket, .. })
            | Self::Raise { bucket, .. } => Some(*bucket),
            Self::End { lock, .. } | Self::Read(lock) => Some(bucket_of(lock)),
            Self::Lift(_) => None,
        }
    }

    /// For how long ended ids are remembered, in milliseconds.
    pub(super) fn retention_ms(&self) -> u64 {
        match self {
            Self::Vote(Vote { retention_ms, .. })
            | Self::TopUp(TopUp { retention_ms, .. })
            | Self::Renew(Renew { retention_ms, .. })
            | Self::End { retention_ms, .. } => *retention_ms,
            Self::Read(_) | Self::Raise { .. } | Self::Lift(_) => 0,
        }
    }
}

/// Why a node does not take part; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It belongs to no quorum: it is new, or its memory is gone.
    NoMember,
    /// It belongs to another quorum.
    Other {
        /// Id of that quorum.
        cluster: String,
        /// Of how many nodes.
        n: usize,
    },
    /// It does not vote (yet).
    NotReady,
    /// The caller's view is not the node's.
    View {
        /// The node's view.
        view: u64,
        /// Members of the view.
        members: Members,
    },
    /// It is another node than the one that is meant, or its memory is a copy of another's.
    Stranger {
        /// Whose memory it has.
        node: NodeId,
    },
}

/// A node's reply about a lock.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeReply {
    /// It does not take part.
    Refused(Refusal),
    /// Vote, top-up: the lease is live here with the token that was proposed.
    Accepted {
        /// The highest token that the node has accepted in the bucket.
        p: u64,
        /// Remaining time of the lease here, in milliseconds.
        remaining_ms: u64,
    },
    /// Vote, top-up: the lease is live here with another token.
    Yours {
        /// That token.
        token: Token,
        /// Remaining time of the lease here, in milliseconds.
        remaining_ms: u64,
        /// The highest token that the node has accepted in the bucket.
        p: u64,
    },
    /// Vote, top-up: the id belongs to a request of another owner or principal.
    Conflict {
        /// Whose.
        owner: Owner,
    },
    /// Vote, renew, top-up, end: the id had ended before; it is never accepted again.
    Ended {
        /// Reason of the end.
        reason: EndReason,
        /// Text that was given with it.
        why: Option<Owner>,
    },
    /// Vote, renew, top-up: another lease is live here.
    Held {
        /// Lease that holds it.
        lease: LeaseId,
        /// Holder of the lock.
        holder: HolderInfo,
        /// The highest token that the node has accepted in the bucket.
        p: u64,
    },
    /// Vote, raise: the token is not above everything that the node has accepted in the bucket.
    Low {
        /// The highest token that it has accepted.
        p: u64,
    },
    /// Renew: the lease is live here and has its new time.
    Renewed {
        /// Its token.
        token: Token,
        /// Owner of the lease.
        owner: Owner,
        /// The time to live that it has from now on, in milliseconds.
        ttl_ms: u64,
        /// Remaining time of it here, in milliseconds.
        remaining_ms: u64,
        /// The metadata that it was acquired with; a top-up carries it.
        metadata: String,
    },
    /// Renew, end: nothing is known of the lease here, and the lock is free. Top-up: never.
    Nothing {
        /// The highest token that the node has accepted in the bucket.
        p: u64,
    },
    /// End: it was live here and is not any more.
    EndedNow {
        /// Its token.
        token: Token,
        /// Owner of the lease.
        owner: Owner,
    },
    /// Drop: nothing is live here that only that attempt knows of; nothing was changed.
    Kept,
    /// Raise, lift: every token from now on is above this one.
    Raised {
        /// The highest token that counts as accepted in the bucket; lift: in any bucket.
        p: u64,
    },
}

/// A node's knowledge of a lock.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The highest token that it has accepted in the bucket.
    pub p: u64,
    /// The live lease.
    pub live: Option<SeenLease>,
    /// Ended leases, newest first.
    pub ended: Vec<EndedLease>,
}

/// A live lease at a node.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenLease {
    /// The id of the grant.
    pub lease: LeaseId,
    /// Owner, token and times.
    pub info: HolderInfo,
    /// The time to live that a renewal restores, in milliseconds.
    pub ttl_ms: u64,
    /// Number of renewals here.
    pub renewals: u64,
    /// As in [`Vote::metadata`].
    pub metadata: String,
}

impl NodeReply {
    /// The highest token that the node says it has accepted, where it says so.
    pub fn p(&self) -> Option<u64> {
        match self {
            Self::Accepted { p, .. }
            | Self::Yours { p, .. }
            | Self::Held { p, .. }
            | Self::Low { p }
            | Self::Nothing { p }
            | Self::Raised { p } => Some(*p),
            Self::Refused(_)
            | Self::Conflict { .. }
            | Self::Ended { .. }
            | Self::Renewed { .. }
            | Self::EndedNow { .. }
            | Self::Kept => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash is stored knowledge: another one would let two servers use two counters for a lock.
    #[test]
    fn buckets_are_fixed_for_ever() {
        let number = |name: &str| bucket_of(&LockName::new(name).unwrap()).number();
        let known = ["a", "b", "orders/42", "a/b/c"].map(number);
        assert_eq!(known, EXPECTED);
    }

    #[test]
    fn names_spread_over_the_buckets() {
        let mut counts = [0_usize; BUCKETS as usize];
        for at in 0..25_600 {
            let name = LockName::new(&format!("orders/{at}")).unwrap();
            counts[usize::from(bucket_of(&name).number())] += 1;
        }
        assert!(counts.iter().all(|count| (50..200).contains(count)), "{counts:?}");
    }

    const EXPECTED: [u8; 4] = [187, 140, 114, 89];
}
