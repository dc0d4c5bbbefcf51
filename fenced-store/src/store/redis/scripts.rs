//! The scripts, and how they are called.

use redis::Cmd;
use service_kit::redis_link::Script;

use super::{Keys, add_condition};
use crate::etag::Condition;
use crate::guard::Fence;
use crate::store::{FenceQuery, Operation};

/// One script an operation; all but the listing begin with the same check.
#[derive(Debug)]
pub(super) struct Scripts {
    put: Script,
    get: Script,
    delete: Script,
    seal: Script,
    list: Script,
}

macro_rules! fenced {
    ($file:literal) => {
        Script::new($file, concat!(include_str!("fence.lua"), include_str!($file)))
    };
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            put: fenced!("put.lua"),
            get: fenced!("get.lua"),
            delete: fenced!("delete.lua"),
            seal: fenced!("seal.lua"),
            list: Script::new("list.lua", include_str!("list.lua")),
        }
    }

    pub(super) fn all(&self) -> [&Script; 5] {
        [&self.put, &self.get, &self.delete, &self.seal, &self.list]
    }

    pub(super) fn apply(&self, keys: &Keys, fence: Option<&Fence>, operation: &Operation) -> Cmd {
        let object = keys.object(operation.key().as_str());
        let names = [keys.marks.as_str(), keys.locks.as_str(), object.as_str()];
        let script = match operation {
            Operation::Get { .. } => &self.get,
            Operation::Put { .. } => &self.put,
            Operation::Delete { .. } => &self.delete,
        };
        let mut command = script.call(&names);
        add_fence(&mut command, fence);
        match operation {
            Operation::Get { .. } => add_condition(&mut command, &Condition::None),
            Operation::Delete { condition, .. } => add_condition(&mut command, condition),
            Operation::Put { object, condition, .. } => {
                add_condition(&mut command, condition);
                command.arg(object.etag.as_str()).arg(object.content_type.as_str());
                command.arg(&object.body[..]);
            }
        }
        command
    }

    pub(super) fn seal(&self, keys: &Keys, fence: &Fence) -> Cmd {
        let mut command = self.seal.call(&[&keys.marks, &keys.locks]);
        add_fence(&mut command, Some(fence));
        add_condition(&mut command, &Condition::None);
        command
    }

    /// Asks for one more than the page holds, to know whether there are more.
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

fn add_fence(command: &mut Cmd, fence: Option<&Fence>) {
    match fence {
        Some(fence) => command
            .arg(fence.lock.as_str())
            .arg(fence.presented.token.get())
            .arg(fence.presented.lease.to_string()),
        None => command.arg("").arg("").arg(""),
    };
}
