//! The guard's error in place of Redis', when Redis refuses a script's command.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::Port;
use super::resp::request::Command;
use super::tokens::HeldTokens;

/// Maximum number of scripts of a connection that are reported, each once.
const REPORTED_MAX: usize = 16;

/// Words of the errors of Redis 7.0, and of Redis 7.2 and Valkey; then those of SORT in each. An
/// error that a script makes from one of them holds them too.
const OF_REDIS: [&str; 4] = [
    "The user executing the script can't ",
    "ACL failure in script: ",
    "BY option of SORT denied ",
    "GET option of SORT denied ",
];

/// Maximum length of a name that is kept beside a command: that of a SHA-1.
const NAME_BYTES_MAX: usize = 40;

/// Name of a script in its command: the digest of EVALSHA, or the function of FCALL. Empty for
/// EVAL, and for a longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScriptName {
    bytes: [u8; NAME_BYTES_MAX],
    len: usize,
}

impl ScriptName {
    /// No name.
    pub(super) const NONE: Self = Self { bytes: [0; NAME_BYTES_MAX], len: 0 };

    /// Reads the name of the script that `command` runs.
    pub(super) fn from_command(command: Command<'_>) -> Self {
        let name = command.arg(1);
        let has_text = command.begins(&["eval"]) || command.begins(&["eval_ro"]);
        let is_plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let mut read = Self::NONE;
        if let Some(bytes) = read.bytes.get_mut(..name.len()).filter(|_| is_plain && !has_text) {
            bytes.copy_from_slice(name);
            read.len = name.len();
        }
        read
    }

    fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes[..self.len]).ok().filter(|name| !name.is_empty())
    }
}

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
    Database,
}

impl ScriptDenials {
    /// Makes the record for a connection that is registered under these tokens.
    pub(super) fn new(port: Arc<Port>, tokens: HeldTokens) -> Self {
        Self { port, tokens, reported: RefCell::default() }
    }

    /// Returns the line in place of `reply`, if that is Redis' refusal of a key, command, channel
    /// or database of the script that was sent as `sent`. The refusal is counted, and reported
    /// like those of stale tokens.
    pub(super) fn in_place_of(&self, reply: &[u8], sent: &ScriptName) -> Option<String> {
        let denial = Denial::from_reply(reply, sent)?;
        self.port.counters.scripts_denied.inc();
        let mut reported = self.reported.borrow_mut();
        if reported.len() < REPORTED_MAX && reported.insert(denial.script.clone().into_owned()) {
            self.port.context.guard.record_denied_script(self.tokens.fences(), &denial.summary());
        }
        Some(denial.line(&self.tokens))
    }
}

impl<'r> Denial<'r> {
    fn from_reply(reply: &'r [u8], sent: &'r ScriptName) -> Option<Self> {
        let text = std::str::from_utf8(reply).ok()?;
        let behind = |words| Some((words, text.split_once(words)?.1));
        let (words, behind): (&str, &str) = OF_REDIS.into_iter().find_map(behind)?;
        // Redis puts the name behind the reason, except in an error that the script itself replies.
        // Valkey has no name.
        let named = behind.rsplit_once("script: ");
        let name = named.and_then(|(_, rest)| rest.split_once(", on @")).map(|(name, _)| name);
        let why = named.map_or(behind, |(why, _)| why);
        let script = match name.or_else(|| sent.text()) {
            Some(name) => format!("script {name}").into(),
            None => Cow::Borrowed("a script"),
        };
        // Before a command there can be the name of the guard's user, which has any words.
        let object = match why {
            _ if why.contains("run th") || words.contains("SORT") => Object::Command,
            _ if why.contains("channel") => Object::Channel,
            _ if why.contains("database") => Object::Database,
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
            Object::Database => format!("{script} selected a database that is closed to the guard"),
            Object::Key => format!("{script} touched a key that this connection may not touch"),
        }
    }

    /// Makes the reply to a client whose connection is registered under `tokens`.
    fn line(&self, tokens: &HeldTokens) -> String {
        let summary = self.summary();
        let advice = match self.object {
            Object::Channel => return format!("DENIED {summary}; choose another channel"),
            Object::Database => {
                "; choose one that the rules of the guard's user (db=) allow".to_owned()
            }
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
mod tests;
