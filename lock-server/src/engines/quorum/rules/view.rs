//! Members of a quorum, and their state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use fence_protocol::Invalid;

use super::{Bucket, Refusal};

/// The format in which nodes store what they know.
pub const FORMAT: u32 = 1;

/// One life of a node's memory: 1 to 64 bytes of `[A-Za-z0-9-]`.
///
/// A node that lost its memory gets another id, which is made for one attempt to bring it back and
/// is never used again: that is how a late rejoin cannot be taken for the one that is expected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(String);

impl NodeId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if plain && (1..=64).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Invalid::new("node id", text, "must be 1 to 64 characters of A-Z a-z 0-9 -"))
        }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The nodes of a view. Its text is their ids in order, with commas between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Members(BTreeSet<NodeId>);

impl Members {
    /// True if a node belongs to the view.
    pub fn contains(&self, node: &NodeId) -> bool {
        self.0.contains(node)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ids in order.
    pub fn iter(&self) -> impl Iterator<Item = &NodeId> {
        self.0.iter()
    }
}

impl FromIterator<NodeId> for Members {
    fn from_iter<I: IntoIterator<Item = NodeId>>(ids: I) -> Self {
        Self(ids.into_iter().collect())
    }
}

impl FromStr for Members {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "" => Ok(Self::default()),
            ids => ids.split(',').map(str::parse).collect(),
        }
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, id) in self.0.iter().enumerate() {
            write!(f, "{}{id}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// The view that a caller believes in; every script about locks gets it and refuses another.
///
/// Two views are the same only where number and members are: two servers may give a new view the
/// same number, and a node that lost its memory may be given one that was used before, but never
/// with the same members, because ids of nodes are used once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// The id of the quorum: any text without commas.
    pub cluster: String,
    /// Of how many nodes it is.
    pub n: usize,
    /// The number of the view.
    pub view: u64,
    /// Members of the view.
    pub members: Members,
}

/// One node of a view: the addressee of a script about locks. The script gets both, and a node that
/// is in another view refuses it, as does another node: one that has been given the memory of this
/// one, by a copied folder or as a replica, says that it is in the same view, and must not vote in
/// its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressee<'a> {
    /// The view that the caller believes in.
    pub view: &'a View,
    /// The node that the caller means.
    pub node: &'a NodeId,
}

/// Progress of a node towards voting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// It knows the quorum and has never voted.
    New,
    /// It votes.
    Ready,
    /// It may have forgotten votes: it does not vote, and has an id for one attempt to rejoin.
    Doubt,
    /// It has rejoined, and does not vote until all that it may have forgotten is over.
    Joining,
}

impl NodeState {
    const ALL: [Self; 4] = [Self::New, Self::Ready, Self::Doubt, Self::Joining];

    /// The word that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Ready => "ready",
            Self::Doubt => "doubt",
            Self::Joining => "joining",
        }
    }

    /// The state that a word names.
    ///
    /// # Errors
    /// [`Invalid`] for any other word.
    pub fn from_word(word: &str) -> Result<Self, Invalid> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| Invalid::new("state of a node", word, "is not known"))
    }
}

/// Record that a node stores about itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meta {
    /// In which format it stores; see [`FORMAT`].
    pub format: u32,
    /// The quorum, its size and the view: the default, with an empty cluster, where it never
    /// belonged to one, or forgot it.
    pub view: View,
    /// The node itself; of a suspect node the id that it will rejoin under.
    pub node: NodeId,
    /// Progress towards voting.
    pub state: NodeState,
    /// The run id of the process that was verified last.
    pub run_id: String,
    /// Every bucket's counter is at least here.
    pub floor: u64,
    /// When it may become ready, by its own clock, in milliseconds since 1970.
    pub ready_at_ms: u64,
    /// Until when it remembers anything about a lock, at the latest, by its own clock, in
    /// milliseconds since 1970. It is written in steps of at most ten seconds, not at every vote.
    pub covered_ms: u64,
}

/// A node's reply to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProbe {
    /// Its clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// Record that it stores about itself; `None` where it knows nothing.
    pub meta: Option<Meta>,
    /// The highest token that it accepted, by bucket; the floor is not counted in.
    pub p: BTreeMap<Bucket, u64>,
}

/// Tokens that the others have accepted, for a node that may have lost its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Accepted {
    /// Every bucket's counter is at least here.
    pub floor: u64,
    /// The highest token accepted, by bucket.
    pub p: BTreeMap<Bucket, u64>,
    /// For how long anything is still remembered, in milliseconds.
    pub wait_ms: u64,
}

impl Accepted {
    /// The higher of both, everywhere.
    pub fn merge(mut self, other: Self) -> Self {
        self.floor = self.floor.max(other.floor);
        self.wait_ms = self.wait_ms.max(other.wait_ms);
        for (bucket, p) in other.p {
            let known = self.p.entry(bucket).or_default();
            *known = p.max(*known);
        }
        self
    }
}

/// A node's reply about its membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberReply {
    /// It does not take part: as for locks. [`Refusal::View`] where it is in a view that is as new
    /// as the one that was proposed, or newer.
    Refused(Refusal),
    /// Init, rejoin, ready, advance, adopt: it is done, now or by an earlier call.
    Done,
    /// Init: it knows a quorum already, or is not suspect under that id; nothing was changed.
    /// Probe it again.
    Known,
    /// Bump: the new view is accepted, and this is what the node had accepted at that moment.
    Bumped(Accepted),
    /// Doubt: it does not vote; the id under which it will rejoin.
    Doubted(NodeId),
    /// Ready: not before so many milliseconds.
    Wait(u64),
    /// Bump, rejoin, ready, advance, doubt: the node is not the one that is meant, or not a member
    /// of that view; its own id, where it has one. Nothing was changed.
    Stranger(Option<NodeId>),
    /// Adopt: another process was verified in the meantime; its run id. Nothing was changed.
    OtherRun(String),
}
