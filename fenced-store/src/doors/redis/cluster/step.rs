//! The script that checks fences and runs a command, and its errors.

use redis::{Cmd, Value};
use redis_link::Script;

use super::super::refusal::Refusal;
use super::mark_of;
use crate::verdict::Fence;

/// Code of the script's own errors. No command of Redis has it.
const OWN_CODE: &str = "FENCEPOST";

/// The script.
#[derive(Debug)]
pub(super) struct StepScript(Script);

/// The keys of marks in one slot.
#[derive(Debug)]
pub(super) struct Marks {
    /// The mark of each fence, in their order.
    pub(super) each: Vec<String>,
    /// The set of all marks of the slot.
    pub(super) all: String,
}

impl StepScript {
    pub(super) fn new() -> Self {
        Self(Script::new("step.lua", include_str!("step.lua")))
    }

    pub(super) fn script(&self) -> &Script {
        &self.0
    }

    /// A command of these words under `fences`, whose marks are in the same slot as its `keys`.
    pub(super) fn pack<'c>(
        &self,
        marks: &'c Marks,
        fences: &[Fence],
        keys: impl Iterator<Item = &'c [u8]>,
        words: impl Iterator<Item = &'c [u8]>,
        is_native: bool,
    ) -> Cmd {
        let mut names: Vec<&[u8]> = marks.each.iter().map(String::as_bytes).collect();
        if !fences.is_empty() {
            names.push(marks.all.as_bytes());
        }
        names.extend(keys);
        let mut packed = self.0.call_bytes(names.into_iter());
        packed.arg(if is_native { 3 } else { 2 }).arg(fences.len());
        for fence in fences {
            packed.arg(fence.presented.token.get()).arg(fence.presented.lease.to_string());
        }
        for word in words {
            packed.arg(word);
        }
        packed
    }
}

/// Reads an error of the script: a refusal by a fence, or the command's own error, unchanged.
pub(super) fn outcome(code: &str, message: &str, fences: &[Fence]) -> Result<Value, Refusal> {
    if code != OWN_CODE {
        return Err(Refusal::Line(error_line(code, message)));
    }
    let mut words = message.split(' ');
    let kind = words.next().unwrap_or_default();
    let index = words.next().and_then(|index| index.parse::<usize>().ok()).unwrap_or_default();
    let fence = index.checked_sub(1).and_then(|index| fences.get(index)).cloned();
    let mark = mark_of(words.next().unwrap_or_default(), words.next().unwrap_or_default());
    Err(match (kind, fence, mark) {
        ("stale", Some(fence), Some(mark)) => Refusal::Stale { fence, mark },
        ("collision", Some(fence), Some(mark)) => Refusal::Collision { fence, mark },
        ("lost", Some(fence), _) => Refusal::Unavailable(format!(
            "the mark of lock {} in this slot is gone; an operator has to write it again",
            fence.lock
        )),
        (_, Some(fence), _) => Refusal::Unavailable(format!(
            "the mark of lock {} in this slot cannot be read; did another program write it?",
            fence.lock
        )),
        _ => Refusal::Unavailable(format!("the script answered {message}")),
    })
}

/// Error line of Redis.
pub(super) fn error_line(code: &str, message: &str) -> String {
    if message.is_empty() { code.to_owned() } else { format!("{code} {message}") }
}

#[cfg(test)]
mod tests {
    use fence_protocol::LockName;

    use super::*;
    use crate::verdict::tests::mark;

    #[test]
    fn errors_of_the_script_differ_from_those_of_commands() {
        let fence = Fence { lock: LockName::new("a").unwrap(), presented: mark(33, 1) };
        let met = mark(34, 2);
        let fences = [fence.clone()];
        let say = |kind: &str, index: usize| {
            let message = format!("{kind} {index} {} {}", met.token, met.lease);
            outcome("FENCEPOST", &message, &fences).unwrap_err()
        };
        assert_eq!(say("stale", 1), Refusal::Stale { fence: fence.clone(), mark: met });
        assert_eq!(say("collision", 1), Refusal::Collision { fence, mark: met });
        assert!(matches!(say("stale", 2), Refusal::Unavailable(_)));
        assert!(matches!(say("unreadable", 1), Refusal::Unavailable(_)));
        assert!(matches!(say("lost", 1), Refusal::Unavailable(text) if text.contains("is gone")));
        let own = outcome("WRONGTYPE", "Operation against", &fences).unwrap_err();
        assert_eq!(own, Refusal::Line("WRONGTYPE Operation against".to_owned()));
    }
}
