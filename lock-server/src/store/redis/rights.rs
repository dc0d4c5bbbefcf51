//! Verification of the rights of this server's user in Redis.
//!
//! A script verifies them on each new connection before any other command, and runs none of the
//! commands that it verifies: a missing right is found at start, and not in the middle of a script
//! that has written already.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError, RedisResult, Value};
use redis_link::{RedisTarget, Script, plain, text_fields};

/// Commands without a key.
const PLAIN: [&str; 9] =
    ["ping", "info", "time", "eval", "evalsha", "script|load", "publish", "subscribe", "scan"];
/// Commands on the keys of the namespace, sent or in scripts.
const KEYED: [&str; 22] = [
    "del",
    "exists",
    "hmget",
    "hset",
    "incrby",
    "mget",
    "persist",
    "pexpire",
    "pttl",
    "set",
    "setrange",
    "unlink",
    "xadd",
    "xrange",
    "xrevrange",
    "xtrim",
    "zadd",
    "zcard",
    "zrange",
    "zrangebylex",
    "zremrangebylex",
    "zremrangebyscore",
];

/// Rights that one server needs in one Redis.
#[derive(Clone, Debug)]
pub struct Needs {
    user: String,
    prefix: String,
    more: Vec<&'static str>,
}

impl Needs {
    /// For the namespace whose keys begin with `prefix`.
    pub fn new(target: &RedisTarget, prefix: &str) -> Self {
        let user = target.credentials().0.unwrap_or("default").to_owned();
        let more = [
            (target.is_sentinel(), "role"),
            (target.is_cluster(), "cluster|slots"),
            (target.db() != 0, "select"),
        ];
        let more = more.into_iter().filter_map(|(is_needed, name)| is_needed.then_some(name));
        Self { user, prefix: prefix.to_owned(), more: more.collect() }
    }

    /// And for waiting for so many replicas.
    pub(in crate::store) fn and_replicas(mut self, count: u32) -> Self {
        if count > 0 {
            self.more.push("wait");
        }
        self
    }

    /// The command that asks Redis which of the rights are missing.
    pub fn question(&self) -> Cmd {
        let script = Script::new("rights.lua", include_str!("rights.lua"));
        let mut command = script.call_once(&[]);
        command.arg(&self.prefix).arg(format!("{}c:", self.prefix));
        command.arg(&PLAIN[..]).arg(&self.more);
        for name in KEYED {
            command.arg(format!("{name} key"));
        }
        command
    }

    /// Verifies the rights.
    ///
    /// # Errors
    /// A sentence that names the missing rights and how to grant them, or why they cannot be
    /// verified.
    pub(in crate::store) async fn check(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), String> {
        let reply: RedisResult<Value> = self.question().query_async(connection).await;
        let missing = match reply {
            Ok(value) => text_fields(value).unwrap_or_default(),
            Err(error) => self.refused(&error)?,
        };
        self.judge(&missing)
    }

    fn refused(&self, error: &RedisError) -> Result<Vec<String>, String> {
        // Before a login Redis reads short commands alone.
        let is_unknown = error.detail().is_some_and(|text| text.contains("unauthenticated"));
        match error.code() {
            Some("NOPERM") => Ok(vec!["+eval".to_owned()]),
            code if is_unknown || code == Some("NOAUTH") => {
                Err("Redis wants a password; name the user with --store-user and \
                                   the file of the password with --store-password-file"
                    .to_owned())
            }
            _ => Err(format!(
                "Redis cannot be asked for the rights of \"{}\": {}",
                self.user,
                plain(error)
            )),
        }
    }

    /// Checks that no right is missing.
    ///
    /// # Errors
    /// A sentence with the missing rights and what to do.
    pub fn judge(&self, missing: &[String]) -> Result<(), String> {
        if missing.is_empty() {
            return Ok(());
        }
        let mut rights: Vec<&str> = Vec::new();
        for right in missing {
            if !rights.contains(&right.as_str()) {
                rights.push(right);
            }
        }
        let user = &self.user;
        let rights = rights.join(" ");
        Err(format!(
            "the Redis user \"{user}\" lacks rights that lock-server needs: {rights}; run ACL \
             SETUSER {user} {rights}"
        ))
    }
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
        for folder in ["src/store/records/redis", "src/store/redis", "src/events"] {
            in_scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found);
        }
        assert!(found.len() > 20, "{found:?}");
        // What this server sends by itself.
        found.extend(["xrevrange", "zcard"].map(str::to_owned));
        found.retain(|name| !PLAIN.contains(&name.as_str()));
        assert_eq!(found, KEYED.map(str::to_owned).into());
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let target = "redis://locks:x@a/2".parse().unwrap();
        let needs = Needs::new(&target, "{fence:default}:");
        assert_eq!(needs.judge(&[]), Ok(()));
        let missing = ["+incr", "+publish", "&c*", "+incr"].map(str::to_owned);
        let error = needs.judge(&missing).unwrap_err();
        assert!(error.ends_with("run ACL SETUSER locks +incr +publish &c*"), "{error}");
        assert_eq!(needs.more, ["select"]);
        assert_eq!(needs.clone().and_replicas(0).more, ["select"]);
        assert_eq!(needs.and_replicas(1).more, ["select", "wait"]);
    }
}
