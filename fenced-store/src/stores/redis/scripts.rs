//! The scripts and their calls.

use fence_protocol::LockName;
use redis::Cmd;
use redis_link::Script;

use super::Keys;
use crate::stores::contract::{FenceQuery, Once, Operation};
use crate::verdict::Fence;

/// Scripts, one for each operation; all but the listing begin with the same check.
#[derive(Debug)]
pub(crate) struct Scripts {
    put: Script,
    get: Script,
    delete: Script,
    seal: Script,
    register: Script,
    settle: Script,
    list: Script,
    /// Makes a guard the leader of lanes.
    pub(super) take_over: Script,
    /// Changes lanes.
    pub(super) commit: Script,
}

macro_rules! fenced {
    ($($file:literal),+) => {
        Script::new(concat!($($file, " "),+), concat!(include_str!("fence.lua"), $(include_str!($file)),+))
    };
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            put: fenced!("condition.lua", "once.lua", "put.lua"),
            get: fenced!("condition.lua", "get.lua"),
            delete: fenced!("condition.lua", "once.lua", "delete.lua"),
            seal: fenced!("seal.lua"),
            register: fenced!("register.lua"),
            settle: fenced!("settle.lua"),
            list: Script::new("list.lua", include_str!("list.lua")),
            take_over: fenced!("take_over.lua"),
            commit: fenced!("commit.lua"),
        }
    }

    pub(super) fn all(&self) -> [&Script; 9] {
        let Self { put, get, delete, seal, register, settle, list, take_over, commit } = self;
        [put, get, delete, seal, register, settle, list, take_over, commit]
    }

    /// Makes the call of an operation on an object; `state` is the id of the verified state.
    pub(super) fn apply(
        &self,
        keys: &Keys,
        state: &str,
        fence: Option<&Fence>,
        operation: &Operation,
        once: Option<&Once>,
    ) -> Cmd {
        let object = keys.object(operation.key().as_str());
        let conns = fence.map_or_else(String::new, |fence| keys.conns(&fence.lock));
        let once_names = keys.names(once.map_or("", Once::scope));
        let names = [&keys.marks, &keys.locks, &conns, &keys.state, &object, &once_names];
        let script = match operation {
            Operation::Get { .. } => &self.get,
            Operation::Put { .. } => &self.put,
            Operation::Delete { .. } => &self.delete,
        };
        let mut command = script.call(&names.map(String::as_str));
        add_fence(&mut command, fence, state);
        let (kind, tags) = operation.condition().parts();
        command.arg(kind).arg(tags.len());
        for tag in tags {
            command.arg(tag.as_str());
        }
        if let Operation::Put { object, .. } = operation {
            command.arg(object.etag.as_str()).arg(object.content_type.as_str());
            command.arg(&object.body[..]);
        }
        match once {
            Some(once) => command.arg(once.capacity()).arg(once.id()).arg(once.digest()),
            None => command.arg(1).arg("").arg(""),
        };
        command
    }

    /// Makes the call that raises the mark without any other effect.
    pub(super) fn seal(&self, keys: &Keys, state: &str, fence: &Fence) -> Cmd {
        fenced_call(&self.seal, keys, state, fence)
    }

    /// Makes the call that registers the connection on which it is sent.
    pub(crate) fn register(&self, keys: &Keys, state: &str, fence: &Fence, client_id: u64) -> Cmd {
        let mut command = fenced_call(&self.register, keys, state, fence);
        command.arg(client_id);
        command
    }

    /// Makes the call that removes the registrations `gone` and returns the lower ones that remain.
    pub(crate) fn settle(&self, keys: &Keys, lock: &LockName, gone: &[String]) -> Cmd {
        let conns = keys.conns(lock);
        let mut command =
            self.settle.call(&[&keys.marks, &keys.locks, conns.as_str(), &keys.state]);
        command.arg(lock.as_str()).arg("").arg("").arg("");
        for field in gone {
            command.arg(field);
        }
        command
    }

    /// Makes the call for a page, with one more mark than the page holds, to know if more follow.
    pub(super) fn list(&self, keys: &Keys, query: &FenceQuery) -> Cmd {
        let from = match &query.after {
            Some(after) if after.as_str() >= query.prefix.as_str() => format!("({after}"),
            _ if query.prefix.is_empty() => "-".to_owned(),
            _ => format!("[{}", query.prefix),
        };
        let mut command = self.list.call(&[&keys.marks, &keys.locks]);
        command.arg(from);
        if query.prefix.is_empty() {
            command.arg("+");
        } else {
            // Names are ASCII, so nothing that begins with the prefix sorts behind this.
            let mut end = format!("({}", query.prefix).into_bytes();
            end.push(0xff);
            command.arg(end);
        }
        command.arg(query.limit + 1);
        command
    }
}

fn fenced_call(script: &Script, keys: &Keys, state: &str, fence: &Fence) -> Cmd {
    let conns = keys.conns(&fence.lock);
    let mut command = script.call(&[&keys.marks, &keys.locks, conns.as_str(), &keys.state]);
    add_fence(&mut command, Some(fence), state);
    command
}

fn add_fence(command: &mut Cmd, fence: Option<&Fence>, state: &str) {
    match fence {
        Some(fence) => command
            .arg(fence.lock.as_str())
            .arg(fence.presented.token.get())
            .arg(fence.presented.lease.to_string()),
        None => command.arg("").arg("").arg(""),
    };
    command.arg(state);
}
