//! Verification of the rights of this server's user in Redis.
//!
//! On each new connection every command is tried before any other, in a form that changes nothing:
//! a missing right is found at start, and not in the middle of a script that has written already.
//! Redis looks at rights before it runs a command, so any reply but NOPERM shows the right.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError, RedisResult, Value};
use futures_util::future::join_all;
use redis_link::{LinkError, RedisLink, RedisTarget, plain};

/// The absent key of the namespace, and the channel without listeners, that are tried.
const KEY: &str = "KEY";
const CHANNEL: &str = "CHANNEL";

/// Rights, as ACL SETUSER takes them, each with a command that changes nothing.
const TRIED: [(&str, &[&str]); 30] = [
    ("ping", &["PING"]),
    ("info", &["INFO", "server"]),
    ("time", &["TIME"]),
    ("eval", &["EVAL", "return 1", "0"]),
    // The digest of `return 1`.
    ("evalsha", &["EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"]),
    ("script|load", &["SCRIPT", "LOAD", "return 1"]),
    ("publish", &["PUBLISH", CHANNEL, ""]),
    ("scan", &["SCAN", "0", "COUNT", "1"]),
    ("del", &["DEL", KEY]),
    ("exists", &["EXISTS", KEY]),
    ("hmget", &["HMGET", KEY, "f"]),
    // A field without a value, and below a number that is none: refused by the commands.
    ("hset", &["HSET", KEY, "f", "v", "g"]),
    ("incrby", &["INCRBY", KEY, "x"]),
    ("mget", &["MGET", KEY]),
    ("persist", &["PERSIST", KEY]),
    ("pexpire", &["PEXPIRE", KEY, "1000"]),
    ("pttl", &["PTTL", KEY]),
    ("set", &["SET", KEY, "v", "XX"]),
    ("setrange", &["SETRANGE", KEY, "0", ""]),
    ("unlink", &["UNLINK", KEY]),
    ("xadd", &["XADD", KEY, "NOMKSTREAM", "*", "f", "v"]),
    ("xrange", &["XRANGE", KEY, "-", "+"]),
    ("xrevrange", &["XREVRANGE", KEY, "+", "-"]),
    ("xtrim", &["XTRIM", KEY, "MAXLEN", "1"]),
    ("zadd", &["ZADD", KEY, "XX", "1", "m"]),
    ("zcard", &["ZCARD", KEY]),
    ("zrange", &["ZRANGE", KEY, "0", "0"]),
    ("zrangebylex", &["ZRANGEBYLEX", KEY, "-", "+"]),
    ("zremrangebylex", &["ZREMRANGEBYLEX", KEY, "-", "+"]),
    ("zremrangebyscore", &["ZREMRANGEBYSCORE", KEY, "0", "0"]),
];
/// Tried on a connection of its own, which it ends for anything else.
const SUBSCRIBE: &str = "subscribe";

/// Rights that one server needs in one Redis.
#[derive(Clone, Debug)]
pub struct Needs {
    target: RedisTarget,
    prefix: String,
    more: Vec<(&'static str, Cmd)>,
}

impl Needs {
    /// For the namespace whose keys begin with `prefix`.
    pub fn new(target: &RedisTarget, prefix: &str) -> Self {
        let more = [
            (target.is_sentinel(), "role", command(["ROLE"])),
            (target.is_cluster(), "cluster|slots", command(["CLUSTER", "SLOTS"])),
            (target.db() != 0, "select", command(["SELECT", &target.db().to_string()])),
        ];
        let more = more.into_iter().filter(|(is_needed, ..)| *is_needed);
        let more = more.map(|(_, right, command)| (right, command)).collect();
        Self { target: target.clone(), prefix: prefix.to_owned(), more }
    }

    /// And for waiting for so many replicas.
    pub(crate) fn and_replicas(mut self, count: u32) -> Self {
        if count > 0 {
            self.more.push(("wait", command(["WAIT", "0", "1"])));
        }
        self
    }

    /// Verifies the rights at the start of a connection, and the one to listen on another.
    ///
    /// # Errors
    /// A sentence that names the missing rights and how to grant them, or why they cannot be
    /// verified.
    pub(crate) async fn check(
        &self,
        connection: &MultiplexedConnection,
        timeout: Duration,
    ) -> Result<(), String> {
        let tried = self.tried().map(|(right, command)| {
            let mut connection = connection.clone();
            async move {
                let reply: RedisResult<Value> = command.query_async(&mut connection).await;
                reply.err().map_or(Ok(None), |error| self.refused(right, &error))
            }
        });
        self.judge(join_all(tried).await, timeout).await
    }

    /// Verifies the rights over a link.
    ///
    /// # Errors
    /// A sentence, as at the start of a connection.
    pub async fn check_over(&self, link: &RedisLink, timeout: Duration) -> Result<(), String> {
        let tried = self.tried().map(|(right, command)| async move {
            match link.call(&command).await {
                Err(LinkError::Server { code, message }) if code == "NOPERM" => {
                    Ok(Some(self.missing(right, &message)))
                }
                Ok(_) | Err(LinkError::Server { .. }) => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        });
        self.judge(join_all(tried).await, timeout).await
    }

    fn tried(&self) -> impl Iterator<Item = (&'static str, Cmd)> {
        let key = format!("{}rights", self.prefix);
        let channel = self.channel();
        let common = TRIED.iter().map(move |(right, words)| {
            let words = words.iter().map(|word| match *word {
                KEY => key.as_str(),
                CHANNEL => channel.as_str(),
                word => word,
            });
            (*right, command(words))
        });
        common.chain(self.more.iter().cloned())
    }

    /// No server has this id.
    fn channel(&self) -> String {
        format!("{}c:rights", self.prefix)
    }

    /// The right that this command's user lacks, if that is why it was refused.
    fn refused(&self, right: &str, error: &RedisError) -> Result<Option<String>, String> {
        let detail = error.detail().unwrap_or_default();
        match error.code() {
            Some("NOPERM") => Ok(Some(self.missing(right, detail))),
            // Before a login Redis reads short commands alone.
            code if detail.contains("unauthenticated") || code == Some("NOAUTH") => {
                Err("Redis wants a password; name the user with --store-user and \
                                   the file of the password with --store-password-file"
                    .to_owned())
            }
            Some(_) => Ok(None),
            None => Err(format!(
                "Redis cannot be asked for the rights of \"{}\": {}",
                self.user(),
                plain(error)
            )),
        }
    }

    /// Redis says of a command which of its rights is missing: to the command, the key or the
    /// channel.
    fn missing(&self, right: &str, message: &str) -> String {
        let lacks = |what: &str| message.contains("access") && message.contains(what);
        if lacks("channel") {
            format!("&{}c:*", self.prefix)
        } else if lacks("key") {
            format!("~{}*", self.prefix)
        } else {
            format!("+{right}")
        }
    }

    /// Judges the replies, and tries to listen.
    async fn judge(
        &self,
        replies: Vec<Result<Option<String>, String>>,
        timeout: Duration,
    ) -> Result<(), String> {
        let mut missing: Vec<String> = Vec::new();
        let replies = replies.into_iter().chain([self.listens(timeout).await]);
        for reply in replies {
            missing.extend(reply?.filter(|right| !missing.contains(right)));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let user = self.user();
        let rights = missing.join(" ");
        Err(format!(
            "the Redis user \"{user}\" lacks rights that lock-server needs: {rights}; run ACL \
             SETUSER {user} {rights}"
        ))
    }

    async fn listens(&self, timeout: Duration) -> Result<Option<String>, String> {
        let mut listener = self.target.subscribe(timeout).await?;
        match tokio::time::timeout(timeout, listener.subscribe(self.channel())).await {
            Ok(Ok(())) => Ok(None),
            Ok(Err(error)) => self.refused(SUBSCRIBE, &error),
            Err(_) => Err("Redis did not reply to SUBSCRIBE in time".to_owned()),
        }
    }

    fn user(&self) -> &str {
        self.target.credentials().0.unwrap_or("default")
    }
}

fn command<'a>(words: impl IntoIterator<Item = &'a str>) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Every command that a script of this crate runs, in lower case.
    fn in_scripts(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                in_scripts(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "lua") {
                let text = std::fs::read_to_string(&path).unwrap();
                for call in text.split("call('").skip(1) {
                    found.insert(call.split('\'').next().unwrap().to_lowercase());
                }
            }
        }
    }

    #[test]
    fn every_command_of_the_scripts_is_asked_for() {
        let mut found = BTreeSet::new();
        // The quorum's nodes are asked by other scripts, as another user.
        for folder in ["src/engines/redis", "src/events"] {
            in_scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found);
        }
        assert!(found.len() > 20, "{found:?}");
        // What this server sends by itself.
        found.extend(["xrevrange", "zcard", "scan"].map(str::to_owned));
        found.extend(["ping", "info", "eval", "evalsha", "script|load"].map(str::to_owned));
        assert_eq!(found, TRIED.map(|(right, _)| right.to_owned()).into());
    }

    #[test]
    fn what_is_missing_is_read_from_the_refusal() {
        let target = "redis://locks:x@a/2".parse().unwrap();
        let needs = Needs::new(&target, "{fence:default}:");
        for (message, missing) in [
            ("this user has no permissions to run the 'hset' command", "+hset"),
            ("User locks has no permissions to run the 'hset' command", "+hset"),
            ("No permissions to access a key", "~{fence:default}:*"),
            ("No permissions to access a channel", "&{fence:default}:c:*"),
        ] {
            assert_eq!(needs.missing("hset", message), missing);
        }
        let more = |needs: &Needs| needs.more.iter().map(|(right, _)| *right).collect::<Vec<_>>();
        assert_eq!(more(&needs), ["select"]);
        assert_eq!(more(&needs.clone().and_replicas(0)), ["select"]);
        assert_eq!(more(&needs.and_replicas(1)), ["select", "wait"]);
    }
}
