//! The guard's sentence in place of Redis' error, where Redis refuses what a script does.

use fence_protocol::{LockName, Token};
use prometheus_client::metrics::counter::Counter;

/// An error line of a script is shorter than this; a longer one is the script's own text.
pub(super) const LINE_BYTES_MAX: usize = 4096;

/// How the errors of Redis 7.0 begin, and of later versions.
const OF_REDIS: [&str; 2] =
    ["-ERR The user executing the script can't ", "-NOPERM ACL failure in script: "];

/// What is known of a connection for the sentence.
#[derive(Debug)]
pub(super) struct ScriptDenials {
    tokens: String,
    denied: Counter,
}

impl ScriptDenials {
    /// For a connection that is registered under these tokens; `denied` counts.
    pub(super) fn new<'a>(
        tokens: impl Iterator<Item = (&'a LockName, Token)>,
        denied: Counter,
    ) -> Self {
        let tokens: Vec<String> =
            tokens.map(|(lock, token)| format!("token {token} of lock {lock}")).collect();
        let tokens = if tokens.is_empty() { "no token".to_owned() } else { tokens.join(", ") };
        Self { tokens, denied }
    }

    /// The line in place of `reply`, where that says that the user of a script was refused
    /// something.
    pub(super) fn in_place_of(&self, reply: &[u8]) -> Option<String> {
        let text = std::str::from_utf8(reply).ok()?;
        let why = OF_REDIS.iter().find_map(|begin| text.strip_prefix(begin))?;
        self.denied.inc();
        // Its name stands behind the reason, but for an error that the script replies itself.
        let named = why.rsplit_once("script: ");
        let name = named.and_then(|(_, rest)| rest.split_once(", on @")).map(|(name, _)| name);
        let why = named.map_or(why, |(why, _)| why);
        let script = name.map_or_else(|| "a script".to_owned(), |name| format!("script {name}"));
        let tokens = &self.tokens;
        Some(if why.contains("channel") {
            format!(
                "DENIED {script} published to one of Fencepost's own channels; choose \
                 another channel"
            )
        } else if why.contains("run th") {
            format!(
                "DENIED {script} ran a command that scripts may not run, because its keys \
                 are not certain; send it outside of the script. What the script did before stays"
            )
        } else {
            format!(
                "DENIED {script} touched a key that this connection may not touch, with \
                 {tokens}. A key that a script builds needs a rule of a held lock, or an @open rule, \
                 that covers every name behind a text (PATTERN:**); other keys have to be declared \
                 in KEYS. Acquire the lock of that key, or declare it. What the script did before \
                 stays"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_acl_become_a_sentence() {
        let denied = Counter::default();
        let lock = LockName::new("orders/1").unwrap();
        let held = [(&lock, Token::new(5).unwrap())];
        let denials = ScriptDenials::new(held.into_iter(), denied.clone());
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
            let line = denials.in_place_of(format!("-{text}{rest}").as_bytes()).unwrap();
            assert!(line.contains(expected) && !line.contains("fence:x"), "{line}");
        }
        // The name of a function is no reason, and an error that a script replies has no name.
        let key = "-NOPERM ACL failure in script: No permissions to access a key ";
        let rest = "script: my_channel, on @user_function:1.\r\n";
        let line = denials.in_place_of(format!("{key}{rest}").as_bytes()).unwrap();
        assert!(line.contains("script my_channel touched a key"), "{line}");
        let line = denials.in_place_of(format!("{key}\r\n").as_bytes()).unwrap();
        assert!(line.contains("DENIED a script touched a key"), "{line}");
        assert_eq!(denials.in_place_of(b"-ERR no such key\r\n"), None);
        assert_eq!(denied.get(), 7);
    }
}
