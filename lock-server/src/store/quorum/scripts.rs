//! The scripts of a node, and the commands that call them.
//!
//! Each file says in its head which keys and arguments it takes, in which order, and what it answers.

use std::borrow::Cow;

use ::redis::Cmd;
use fence_protocol::{LeaseId, LockName, Namespace, Token};
use service_kit::redis_link::Script;

use crate::store::quorum::rules::view::{Accepted, Addressee, FORMAT, View};
use crate::store::quorum::rules::{Bucket, End, NodeId, Renew, TopUp, Vote, bucket_of};
use crate::store::redis::KeyPrefix;

macro_rules! script {
    ($($file:literal),+) => {
        Script::new([$($file),+][[$($file),+].len() - 1], concat!($(include_str!($file)),+))
    };
}

/// Every script that is loaded.
#[derive(Clone, Debug)]
pub struct Scripts {
    vote: Script,
    topup: Script,
    renew: Script,
    end: Script,
    read: Script,
    names: Script,
    raise: Script,
    lift: Script,
    look: Script,
    init: Script,
    doubt: Script,
    adopt: Script,
    bump: Script,
    rejoin: Script,
    ready: Script,
    advance: Script,
    keys: Keys,
}

/// The names of a namespace's keys at every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
    meta: String,
    wake: String,
}

/// A node's first words about a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Init {
    /// The quorum and its first view.
    pub view: View,
    /// The id that the node answered when it was doubted; one of the members.
    pub node: NodeId,
    /// The run id of its process.
    pub run_id: String,
    /// Every token is above this one.
    pub floor: u64,
}

/// What brings a node in doubt back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejoin {
    /// The quorum and the new view.
    pub view: View,
    /// The id that the node answered when it was doubted; one of the members.
    pub node: NodeId,
    /// The run id of its process.
    pub run_id: String,
    /// What at least `f + 1` others answered to the bump, merged.
    pub accepted: Accepted,
}

impl Keys {
    /// The keys of a namespace; `key_prefix` stands before all of them and may be empty.
    pub fn new(key_prefix: &KeyPrefix, namespace: &Namespace) -> Self {
        let prefix = format!("{}q:", key_prefix.of(namespace));
        Self { meta: format!("{prefix}meta"), wake: format!("{prefix}wake"), prefix }
    }

    /// The channel on which a node publishes the name of a lock that became free there, a tab, and the
    /// lease that ended.
    pub fn wake(&self) -> &str {
        &self.wake
    }

    /// What the node knows of itself.
    pub fn meta(&self) -> &str {
        &self.meta
    }

    /// The record of a lock.
    pub fn lock(&self, lock: &LockName) -> String {
        format!("{}l:{lock}", self.prefix)
    }
}

impl Scripts {
    /// The scripts, for the keys of one namespace.
    pub fn new(keys: Keys) -> Self {
        Self {
            vote: script!("common.lua", "lock.lua", "vote.lua"),
            topup: script!("common.lua", "lock.lua", "topup.lua"),
            renew: script!("common.lua", "lock.lua", "renew.lua"),
            end: script!("common.lua", "lock.lua", "end.lua"),
            read: script!("common.lua", "lock.lua", "read.lua"),
            names: script!("common.lua", "names.lua"),
            raise: script!("common.lua", "raise.lua"),
            lift: script!("common.lua", "lift.lua"),
            look: script!("look.lua"),
            init: script!("init.lua"),
            doubt: script!("doubt.lua"),
            adopt: script!("adopt.lua"),
            bump: script!("moving.lua", "bump.lua"),
            rejoin: script!("rejoin.lua"),
            ready: script!("ready.lua"),
            advance: script!("moving.lua", "advance.lua"),
            keys,
        }
    }

    /// All of them, to load them.
    pub fn all(&self) -> [&Script; 16] {
        [
            &self.vote,
            &self.topup,
            &self.renew,
            &self.end,
            &self.read,
            &self.names,
            &self.raise,
            &self.lift,
            &self.look,
            &self.init,
            &self.doubt,
            &self.adopt,
            &self.bump,
            &self.rejoin,
            &self.ready,
            &self.advance,
        ]
    }

    /// The keys that they are called with.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Proposes a token; [`read_reply`](super::replies::read_reply) reads the answer.
    pub fn vote(&self, to: Addressee<'_>, vote: &Vote) -> Cmd {
        let mut call = self.about(&self.vote, to, &vote.lock, vote.retention_ms, vote.bucket);
        call.arg(vote.lease.to_string()).arg(vote.token.get()).arg(vote.ttl_ms);
        call.arg(vote.owner.as_str()).arg(one_line(&vote.metadata).as_ref()).arg(&vote.attempt);
        let dead = vote.dead.iter().map(|token| format!("{token},")).collect::<String>();
        call.arg(format!(",{dead}"));
        call
    }

    /// Tells a node of a lease that a majority holds; [`read_reply`](super::replies::read_reply).
    pub fn topup(&self, to: Addressee<'_>, topup: &TopUp) -> Cmd {
        let mut call = self.about(&self.topup, to, &topup.lock, topup.retention_ms, topup.bucket);
        call.arg(topup.lease.to_string()).arg(topup.token.get()).arg(topup.remaining_ms);
        call.arg(topup.owner.as_str()).arg(one_line(&topup.metadata).as_ref()).arg(topup.ttl_ms);
        call.arg(&topup.attempt);
        call
    }

    /// Renews a lease; [`read_reply`](super::replies::read_reply) reads the answer.
    pub fn renew(&self, to: Addressee<'_>, renew: &Renew) -> Cmd {
        let mut call = self.about(&self.renew, to, &renew.lock, renew.retention_ms, renew.bucket);
        call.arg(renew.lease.to_string())
            .arg(renew.ttl_ms.unwrap_or(0))
            .arg(&renew.by)
            .arg(renew.order);
        call
    }

    /// Ends a lease or drops a vote; [`read_reply`](super::replies::read_reply) reads the answer.
    pub fn end(
        &self,
        to: Addressee<'_>,
        lock: &LockName,
        lease: LeaseId,
        end: &End,
        retention_ms: u64,
    ) -> Cmd {
        let mut call = self.about(&self.end, to, lock, retention_ms, bucket_of(lock));
        call.arg(lease.to_string());
        match end {
            End::For { reason, why } => {
                call.arg(reason.as_str()).arg(why.as_ref().map_or("", |why| why.as_str()));
            }
            End::Drop { attempt } => {
                call.arg("").arg(attempt);
            }
        }
        call.arg(lock.as_str()).arg(&self.keys.wake);
        call
    }

    /// Asks what the node knows of a lock; [`read_seen`](super::replies::read_seen).
    pub fn read(&self, to: Addressee<'_>, lock: &LockName) -> Cmd {
        self.about(&self.read, to, lock, 0, bucket_of(lock))
    }

    /// Asks for names of locks that begin with `prefix` from a cursor on, 0 at first;
    /// [`read_names`](super::replies::read_names). Looks at about `count` keys of the whole Redis.
    pub fn names(&self, to: Addressee<'_>, prefix: &str, cursor: u64, count: usize) -> Cmd {
        let before = format!("{}l:", self.keys.prefix);
        let mut call = addressed(&self.names, &[self.keys.meta()], to);
        let wanted = pattern(&format!("{before}{prefix}"));
        call.arg(cursor).arg(wanted).arg(before.len()).arg(count);
        call
    }

    /// Uses up a token; [`read_reply`](super::replies::read_reply) reads the answer.
    pub fn raise(&self, to: Addressee<'_>, bucket: Bucket, token: Token) -> Cmd {
        let mut call = addressed(&self.raise, &[self.keys.meta()], to);
        call.arg(bucket.number()).arg(token.get());
        call
    }

    /// Lifts all counters; [`read_reply`](super::replies::read_reply) reads the answer.
    pub fn lift(&self, to: Addressee<'_>, mark: Token) -> Cmd {
        let mut call = addressed(&self.lift, &[self.keys.meta()], to);
        call.arg("").arg(mark.get());
        call
    }

    /// Asks what the node knows of itself; [`read_look`](super::replies::read_look).
    pub fn look(&self) -> Cmd {
        self.look.call(&[self.keys.meta()])
    }

    /// Tells a new node; [`read_member`](super::replies::read_member) reads the answer.
    pub fn init(&self, init: &Init) -> Cmd {
        let mut call = member(&self.init, &[self.keys.meta()], &init.view);
        call.arg(init.node.as_str()).arg(&init.run_id);
        call.arg(init.floor);
        call
    }

    /// Stops a node from voting that was `seen` with this id, if with any; `node` is a new id that
    /// nobody has used before. [`read_member`](super::replies::read_member) reads the answer.
    pub fn doubt(&self, run_id: &str, seen: Option<&NodeId>, node: &NodeId) -> Cmd {
        let mut call = self.doubt.call(&[self.keys.meta()]);
        call.arg(run_id).arg(node.as_str()).arg(FORMAT);
        call.arg(seen.map_or("", NodeId::as_str));
        call
    }

    /// Notes the process that goes on with the node's memory, which lost nothing.
    /// [`read_member`](super::replies::read_member) reads the answer.
    pub fn adopt(&self, old_run_id: &str, run_id: &str) -> Cmd {
        let mut call = self.adopt.call(&[self.keys.meta()]);
        call.arg(old_run_id).arg(run_id);
        call
    }

    /// Takes a ready node into a newer view; [`read_member`](super::replies::read_member).
    pub fn bump(&self, view: &View) -> Cmd {
        member(&self.bump, &[self.keys.meta()], view)
    }

    /// Brings a node in doubt back; [`read_member`](super::replies::read_member).
    pub fn rejoin(&self, rejoin: &Rejoin) -> Cmd {
        let mut call = member(&self.rejoin, &[self.keys.meta()], &rejoin.view);
        call.arg(rejoin.node.as_str()).arg(&rejoin.run_id);
        call.arg(rejoin.accepted.floor).arg(rejoin.accepted.wait_ms);
        for (bucket, p) in &rejoin.accepted.p {
            call.arg(bucket.number()).arg(*p);
        }
        call
    }

    /// Lets a node vote; [`read_member`](super::replies::read_member) reads the answer.
    pub fn ready(&self, view: &View, node: &NodeId) -> Cmd {
        let mut call = member(&self.ready, &[self.keys.meta()], view);
        call.arg(node.as_str());
        call
    }

    /// Takes a node into a view that it missed; [`read_member`](super::replies::read_member).
    pub fn advance(&self, view: &View) -> Cmd {
        member(&self.advance, &[self.keys.meta()], view)
    }

    fn about(
        &self,
        script: &Script,
        to: Addressee<'_>,
        lock: &LockName,
        retention_ms: u64,
        bucket: Bucket,
    ) -> Cmd {
        let record = self.keys.lock(lock);
        let mut call = addressed(script, &[self.keys.meta(), &record], to);
        call.arg(bucket.number()).arg(retention_ms);
        call
    }
}

fn addressed(script: &Script, keys: &[&str], to: Addressee<'_>) -> Cmd {
    let mut call = member(script, keys, to.view);
    call.arg(to.node.as_str());
    call
}

fn member(script: &Script, keys: &[&str], view: &View) -> Cmd {
    let mut call = script.call(keys);
    call.arg(&view.cluster).arg(view.n).arg(view.view).arg(view.members.to_string());
    call
}

/// A JSON text without line breaks, which stand only between its words: a record is lines.
fn one_line(metadata: &str) -> Cow<'_, str> {
    match metadata.contains('\n') {
        true => metadata.replace('\n', " ").into(),
        false => metadata.into(),
    }
}

/// A pattern that only keys with this beginning match.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}
