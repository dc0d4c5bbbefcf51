//! The scripts of a node, and the commands that call them.
//!
//! Each file says in its head which keys and arguments it takes, in which order, and what it
//! answers.

use std::borrow::Cow;
use std::sync::Arc;

use ::redis::Cmd;
use fence_protocol::{LockName, Namespace};
use redis_link::Script;

use super::rules::view::{Accepted, Addressee, FORMAT, View};
use super::rules::{End, NodeId, Operation};
use crate::engines::redis::key_prefix::KeyPrefix;

macro_rules! script {
    ($($file:literal),+) => {
        Script::new([$($file),+][[$($file),+].len() - 1], concat!($(include_str!($file)),+))
    };
}

/// Every script that is loaded.
#[derive(Clone, Debug)]
pub struct Scripts {
    batch: Script,
    names: Script,
    probe: Script,
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

/// Arguments that bring a suspect node back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejoin {
    /// The quorum and the new view.
    pub view: View,
    /// The id that the node answered when it was doubted; one of the members.
    pub node: NodeId,
    /// The run id of its process.
    pub run_id: String,
    /// Replies of at least `f + 1` others to the bump, merged.
    pub accepted: Accepted,
}

impl Keys {
    /// The keys of a namespace; `key_prefix` stands before all of them and may be empty.
    pub fn new(key_prefix: &KeyPrefix, namespace: &Namespace) -> Self {
        let prefix = format!("{}q:", key_prefix.for_namespace(namespace));
        Self { meta: format!("{prefix}meta"), wake: format!("{prefix}wake"), prefix }
    }

    /// The channel on which a node publishes the name of a lock that became free there, a tab, and
    /// the lease that ended.
    pub fn wake(&self) -> &str {
        &self.wake
    }

    /// Key of the record that the node stores about itself.
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
            batch: script!(
                "common.lua",
                "lock.lua",
                "vote.lua",
                "topup.lua",
                "renew.lua",
                "finish.lua",
                "read.lua",
                "raise.lua",
                "lift.lua",
                "batch.lua"
            ),
            names: script!("common.lua", "names.lua"),
            probe: script!("probe.lua"),
            init: script!("init.lua"),
            doubt: script!("suspect.lua"),
            adopt: script!("adopt.lua"),
            bump: script!("view_change.lua", "bump.lua"),
            rejoin: script!("rejoin.lua"),
            ready: script!("ready.lua"),
            advance: script!("view_change.lua", "advance.lua"),
            keys,
        }
    }

    /// All of them, to load them.
    pub fn all(&self) -> [&Script; 10] {
        [
            &self.batch,
            &self.names,
            &self.probe,
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

    /// Sends operations, at least one, in their order; [`read_batch`](super::replies::read_batch)
    /// reads the replies.
    pub fn batch(&self, to: Addressee<'_>, operations: &[Arc<Operation>]) -> Cmd {
        let meta = self.keys.meta();
        let mut call = ::redis::cmd("EVALSHA");
        call.arg(self.batch.sha1()).arg(operations.len() + 1).arg(meta);
        for operation in operations {
            match operation.lock() {
                Some(lock) => call.arg(self.keys.lock(lock)),
                None => call.arg(meta),
            };
        }
        address(&mut call, to);
        call.arg(self.keys.wake());
        for operation in operations {
            call.arg(operation.word());
            match operation.bucket() {
                Some(bucket) => call.arg(bucket.number()),
                None => call.arg(""),
            };
            call.arg(operation.retention_ms());
        }
        for operation in operations {
            add_arguments(&mut call, operation);
        }
        call
    }

    /// Asks for names of locks that begin with `prefix` from a cursor on, 0 at first;
    /// [`read_names`](super::replies::read_names). Visits about `count` keys of the whole Redis.
    pub fn names(&self, to: Addressee<'_>, prefix: &str, cursor: u64, count: usize) -> Cmd {
        let before = format!("{}l:", self.keys.prefix);
        let mut call = addressed(&self.names, &[self.keys.meta()], to);
        let wanted = pattern(&format!("{before}{prefix}"));
        call.arg(cursor).arg(wanted).arg(before.len()).arg(count);
        call
    }

    /// Asks what the node knows of itself; [`read_probe`](super::replies::read_probe).
    pub fn probe(&self) -> Cmd {
        self.probe.call(&[self.keys.meta()])
    }

    /// Gives a new node its quorum; [`read_member`](super::replies::read_member) reads the reply.
    pub fn init(&self, init: &Init) -> Cmd {
        let mut call = member(&self.init, &[self.keys.meta()], &init.view);
        call.arg(init.node.as_str()).arg(&init.run_id);
        call.arg(init.floor);
        call
    }

    /// Stops a node from voting that was `seen` with this id, if with any; `node` is a new id that
    /// was never used before. [`read_member`](super::replies::read_member) reads the reply.
    pub fn doubt(&self, run_id: &str, seen: Option<&NodeId>, node: &NodeId) -> Cmd {
        let mut call = self.doubt.call(&[self.keys.meta()]);
        call.arg(run_id).arg(node.as_str()).arg(FORMAT);
        call.arg(seen.map_or("", NodeId::as_str));
        call
    }

    /// Records the process that continues with the node's memory, which lost nothing.
    /// [`read_member`](super::replies::read_member) reads the reply.
    pub fn adopt(&self, old_run_id: &str, run_id: &str) -> Cmd {
        let mut call = self.adopt.call(&[self.keys.meta()]);
        call.arg(old_run_id).arg(run_id);
        call
    }

    /// Takes a ready node into a newer view; [`read_member`](super::replies::read_member).
    pub fn bump(&self, view: &View) -> Cmd {
        member(&self.bump, &[self.keys.meta()], view)
    }

    /// Brings a suspect node back; [`read_member`](super::replies::read_member).
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
}

/// The arguments of one operation: those of its file, in its order.
fn add_arguments(call: &mut Cmd, operation: &Operation) {
    match operation {
        Operation::Vote(vote) => {
            call.arg(vote.lease.to_string()).arg(vote.token.get()).arg(vote.ttl_ms);
            call.arg(vote.owner.as_str()).arg(one_line(&vote.metadata).as_ref()).arg(&vote.attempt);
            let dead = vote.dead.iter().map(|token| format!("{token},")).collect::<String>();
            call.arg(format!(",{dead}"));
        }
        Operation::TopUp(topup) => {
            call.arg(topup.lease.to_string()).arg(topup.token.get()).arg(topup.remaining_ms);
            call.arg(topup.owner.as_str()).arg(one_line(&topup.metadata).as_ref());
            call.arg(topup.ttl_ms).arg(&topup.attempt);
        }
        Operation::Renew(renew) => {
            call.arg(renew.lease.to_string()).arg(renew.ttl_ms.unwrap_or(0));
            call.arg(&renew.by).arg(renew.order);
        }
        Operation::End { lock, lease, end, .. } => {
            call.arg(lease.to_string());
            match end {
                End::For { reason, why } => {
                    call.arg(reason.as_str()).arg(why.as_ref().map_or("", |why| why.as_str()));
                }
                End::Drop { attempt } => {
                    call.arg("").arg(attempt);
                }
            }
            call.arg(lock.as_str());
        }
        Operation::Read(_) => {}
        Operation::Raise { token, .. } => {
            call.arg(token.get());
        }
        Operation::Lift(mark) => {
            call.arg(mark.get());
        }
    }
}

fn addressed(script: &Script, keys: &[&str], to: Addressee<'_>) -> Cmd {
    let mut call = script.call(keys);
    address(&mut call, to);
    call
}

fn member(script: &Script, keys: &[&str], view: &View) -> Cmd {
    let mut call = script.call(keys);
    within(&mut call, view);
    call
}

fn address(call: &mut Cmd, to: Addressee<'_>) {
    within(call, to.view);
    call.arg(to.node.as_str());
}

fn within(call: &mut Cmd, view: &View) {
    call.arg(&view.cluster).arg(view.n).arg(view.view).arg(view.members.to_string());
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
