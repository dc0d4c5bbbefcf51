//! The guard's error in place of Redis', when Redis refuses a script's command.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::Port;
use super::tokens::HeldTokens;

/// Maximum number of scripts of a connection that are reported, each once.
const REPORTED_MAX: usize = 16;

/// Beginnings of the errors of Redis 7.0, and of later versions.
const OF_REDIS: [&str; 2] =
    ["-ERR The user executing the script can't ", "-NOPERM ACL failure in script: "];

/// Refusals of scripts on one connection.
#[derive(Debug)]
pub(super) struct ScriptDenials {
    port: Arc<Port>,
    /// Tokens that the connection is registered under.
    tokens: HeldTokens,
    /// Scripts whose refusal was counted for the tokens' locks.
    reported: RefCell<BTreeSet<String>>,
}

/// Redis' error for a refused command of a script.
#[derive(Debug)]
struct Denial<'r> {
    /// `script SHA-1`, or the name of a function.
    script: Cow<'r, str>,
    object: Object,
}

/// Object of a refusal.
#[derive(Clone, Copy, Debug)]
enum Object {
    Key,
    Command,
    Channel,
}

impl ScriptDenials {
    /// Makes the record for a connection that is registered under these tokens.
    pub(super) fn new(port: Arc<Port>, tokens: HeldTokens) -> Self {
        Self { port, tokens, reported: RefCell::default() }
    }

    /// Returns the line in place of `reply`, if that is Redis' refusal of a script's key, command
    /// or channel. The refusal is counted, and reported like those of stale tokens.
    pub(super) fn in_place_of(&self, reply: &[u8]) -> Option<String> {
        let denial = Denial::from_reply(reply)?;
        self.port.counters.scripts_denied.inc();
        let mut reported = self.reported.borrow_mut();
        if reported.len() < REPORTED_MAX && reported.insert(denial.script.clone().into_owned()) {
            self.port.context.guard.record_denied_script(self.tokens.fences(), &denial.summary());
        }
        Some(denial.line(&self.tokens))
    }
}

impl<'r> Denial<'r> {
    fn from_reply(reply: &'r [u8]) -> Option<Self> {
        let text = std::str::from_utf8(reply).ok()?;
        let why = OF_REDIS.iter().find_map(|begin| text.strip_prefix(begin))?;
        // The name is behind the reason, except in an error that the script itself replies.
        let named = why.rsplit_once("script: ");
        let name = named.and_then(|(_, rest)| rest.split_once(", on @")).map(|(name, _)| name);
        let why = named.map_or(why, |(why, _)| why);
        let script = name.map_or(Cow::Borrowed("a script"), |name| format!("script {name}").into());
        let object = match why {
            _ if why.contains("channel") => Object::Channel,
            _ if why.contains("run th") => Object::Command,
            _ => Object::Key,
        };
        Some(Self { script, object })
    }

    /// Describes the refused operation.
    fn summary(&self) -> String {
        let Self { script, object } = self;
        match object {
            Object::Channel => format!("{script} published to one of Fencepost's own channels"),
            Object::Command => format!("{script} ran a command that scripts may not run"),
            Object::Key => format!("{script} touched a key that this connection may not touch"),
        }
    }

    /// Makes the reply to a client whose connection is registered under `tokens`.
    fn line(&self, tokens: &HeldTokens) -> String {
        let summary = self.summary();
        let advice = match self.object {
            Object::Channel => return format!("DENIED {summary}; choose another channel"),
            Object::Command => {
                ", because its keys are not certain; send it outside of the script".to_owned()
            }
            Object::Key => {
                let held: Vec<String> = tokens
                    .listed()
                    .map(|(lock, token)| format!("token {token} of lock {lock}"))
                    .collect();
                let held = if held.is_empty() { "no token".to_owned() } else { held.join(", ") };
                format!(
                    ", with {held}. A key that a script builds needs a rule of a held lock, or an \
                     @open rule, that covers every name behind a text (PATTERN:**); other keys \
                     have to be declared in KEYS. Acquire the lock of that key, or declare it"
                )
            }
        };
        format!("DENIED {summary}{advice}. What the script did before stays")
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::LockName;

    use super::*;
    use crate::verdict::Fence;
    use crate::verdict::tests::mark;

    fn line(reply: &str) -> Option<String> {
        let fence = Fence { lock: LockName::new("orders/1").unwrap(), presented: mark(5, 1) };
        let tokens = HeldTokens::default().with(vec![fence]).unwrap();
        Denial::from_reply(reply.as_bytes()).map(|denial| denial.line(&tokens))
    }

    #[test]
    fn errors_of_the_acl_become_a_sentence() {
        let rest = "script: 93777d, on @user_script:1.\r\n";
        for (text, expected) in [
            (
                "ERR The user executing the script can't access at least one of the keys mentioned \
                 in the command arguments ",
                "DENIED script 93777d touched a key that this connection may not touch, with token \
                 5 of lock orders/1.",
            ),
            ("NOPERM ACL failure in script: No permissions to access a key ", "touched a key"),
            (
                "ERR The user executing the script can't run this command or subcommand ",
                "DENIED script 93777d ran a command",
            ),
            (
                "NOPERM ACL failure in script: User fence:x has no permissions to run the 'sort' \
                 command ",
                "ran a command",
            ),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the \
                 command ",
                "published to",
            ),
        ] {
            let line = line(&format!("-{text}{rest}")).unwrap();
            assert!(line.contains(expected) && !line.contains("fence:x"), "{line}");
        }
    }

    #[test]
    fn the_name_of_a_function_is_no_reason() {
        let key = "-NOPERM ACL failure in script: No permissions to access a key ";
        let named = line(&format!("{key}script: my_channel, on @user_function:1.\r\n")).unwrap();
        assert!(named.contains("script my_channel touched a key"), "{named}");
        // An error that the script itself replies has no name.
        let unnamed = line(&format!("{key}\r\n")).unwrap();
        assert!(unnamed.contains("DENIED a script touched a key"), "{unnamed}");
        assert_eq!(line("-ERR no such key\r\n"), None);
    }
}
