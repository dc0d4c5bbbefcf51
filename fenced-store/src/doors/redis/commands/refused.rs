//! Refusals of commands, as the client reads them.

use std::fmt;

/// Redis' own reply to cluster commands. To a client the port is one Redis, also before a cluster.
pub(super) const NO_CLUSTER: &str = "This instance has cluster support disabled";
/// Maximum length of a client's words in an error, in bytes; the same as in Redis.
const QUOTED_BYTES_MAX: usize = 128;

/// Reason why a command is not forwarded: the error reply without its first `-` and its line end.
///
/// It begins with `DENIED ` for the guard's own refusals, and with `ERR ` and Redis' own words if
/// Redis would refuse too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Refused {
    /// Makes a refusal by the policy.
    pub(super) fn denied(name: &str, reason: &str) -> Self {
        if reason == NO_CLUSTER {
            return Self::error(reason);
        }
        Self(format!("DENIED {} is not passed on: {reason}", shown(name)))
    }

    /// Makes a refusal in Redis' words.
    pub(super) fn error(text: &str) -> Self {
        Self(format!("ERR {text}"))
    }

    pub(super) fn syntax() -> Self {
        Self::error("syntax error")
    }

    pub(super) fn arity(name: &str) -> Self {
        Self::error(&format!("wrong number of arguments for '{name}' command"))
    }

    pub(super) fn unknown<'a>(name: &[u8], args: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut said = String::new();
        for arg in args {
            if said.len() >= QUOTED_BYTES_MAX {
                break;
            }
            said.push_str(&format!("'{}' ", quoted(arg, QUOTED_BYTES_MAX - said.len())));
        }
        let name = quoted(name, QUOTED_BYTES_MAX);
        Self::error(&format!("unknown command '{name}', with args beginning with: {said}"))
    }

    pub(super) fn unknown_subcommand(name: &str, subcommand: &[u8]) -> Self {
        let subcommand = quoted(subcommand, QUOTED_BYTES_MAX);
        let name = name.to_ascii_uppercase();
        Self::error(&format!("unknown subcommand '{subcommand}'. Try {name} HELP."))
    }

    /// Makes the refusal of one of Fencepost's own keys.
    pub(super) fn own_key(key: &[u8]) -> Self {
        let key = quoted(key, QUOTED_BYTES_MAX);
        Self(format!(
            "DENIED key \"{key}\" is Fencepost's own: only the guard and the lock server \
             may touch keys that begin with {{fence: or whose first brace does; choose another name"
        ))
    }

    /// Makes the refusal of one of Fencepost's own channels, or of a pattern that can match one.
    pub(super) fn own_channel(channel: &[u8]) -> Self {
        let channel = quoted(channel, QUOTED_BYTES_MAX);
        Self(format!(
            "DENIED channel \"{channel}\" is, or can match, one of Fencepost's own: those that begin \
             with {{fence: and the notifications of keys that do; name your own channels"
        ))
    }
}

/// Returns a name as in documentation: `config|get` becomes CONFIG GET.
pub(super) fn shown(name: &str) -> String {
    name.replace('|', " ").to_ascii_uppercase()
}

/// Returns the beginning of `bytes`, without line ends.
fn quoted(bytes: &[u8], bytes_max: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(bytes_max)]);
    text.replace(['\r', '\n'], " ")
}
