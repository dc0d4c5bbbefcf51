//! `redis-quorum:redis://a,redis://b,redis://c`.

use std::fmt;
use std::str::FromStr;

use redis_link::{RedisTarget, TargetError};
use service_kit::login::{StoreLogin, without_password};

/// The scheme, with its colon.
const SCHEME: &str = "redis-quorum:";
/// Numbers of nodes that are allowed: an even number tolerates no more failures than the odd one
/// below it.
const SIZES: [usize; 2] = [3, 5];

/// The nodes of a quorum: 3 or 5 independent Redis, each named once. Its text hides passwords.
#[derive(Clone, Debug)]
pub struct QuorumUrl {
    targets: Vec<RedisTarget>,
}

impl QuorumUrl {
    /// With who this server is at each of them, where the URL does not say it.
    ///
    /// # Errors
    /// A sentence that names the flag.
    pub fn with_login(self, login: &StoreLogin) -> Result<Self, String> {
        let targets = self.targets.into_iter().map(|target| target.with_login(login));
        Ok(Self { targets: targets.collect::<Result<_, _>>()? })
    }

    /// Addresses of the nodes, in the order of the URL.
    pub fn targets(&self) -> &[RedisTarget] {
        &self.targets
    }
}

impl FromStr for QuorumUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let list = text.strip_prefix(SCHEME).unwrap_or(text);
        let mut targets: Vec<RedisTarget> = Vec::new();
        let parts = parts(list);
        for (at, part) in parts.iter().enumerate() {
            // What is before an `@` may be a password that has a comma and a scheme in it.
            let is_unclear = parts[at + 1..].iter().any(|later| later.contains('@'));
            targets.push(node(part).map_err(|error| match is_unclear {
                true => concealed(list),
                false => error,
            })?);
        }
        if !SIZES.contains(&targets.len()) {
            return Err(format!(
                "a quorum has 3 or 5 nodes, so that every two majorities meet and one or two of \
                 them may fail; this URL names {}; write \
                 redis-quorum:redis://a:6379,redis://b:6379,redis://c:6379",
                targets.len()
            ));
        }
        for (at, target) in targets.iter().enumerate() {
            let shown = target.to_string();
            if targets[..at].iter().any(|earlier| earlier.to_string() == shown) {
                return Err(format!(
                    "{shown} is named twice: each node of a quorum has one vote; name 3 or 5 \
                     different Redis"
                ));
            }
        }
        Ok(Self { targets })
    }
}

impl fmt::Display for QuorumUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        for (at, target) in self.targets.iter().enumerate() {
            write!(f, "{}{target}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Splits at the commas that a scheme follows; a comma inside of a password separates nothing.
fn parts(list: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = list;
    while let Some(at) = [",redis://", ",rediss://"].iter().filter_map(|next| rest.find(next)).min()
    {
        parts.push(&rest[..at]);
        rest = &rest[at + 1..];
    }
    parts.push(rest);
    parts
}

fn node(part: &str) -> Result<RedisTarget, String> {
    // With its scheme, by which a password is found in a malformed part, too.
    let shown = without_password(&format!("{SCHEME}{part}"));
    if !part.starts_with("redis://") && !part.starts_with("rediss://") {
        return Err(format!(
            "\"{shown}\" is no node of a quorum: each is one Redis of its own, behind no sentinel \
             and in no cluster, as in redis-quorum:redis://a,redis://b,redis://c"
        ));
    }
    part.parse().map_err(|error: TargetError| {
        format!("{error}; each node of a quorum is a URL of its own, with its redis://")
    })
}

/// The error of a list in which a password may have been split.
fn concealed(list: &str) -> String {
    format!(
        "\"{}\" has a node that is no Redis URL of its own; each is redis://host:port or \
         redis://user:password@host:port, with %2C for a comma in the password",
        without_password(&format!("{SCHEME}{list}"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_or_five_nodes_are_taken_apart() {
        let url: QuorumUrl =
            "redis-quorum:redis://:p,w@a:1,redis://b,redis://c:3/2".parse().unwrap();
        assert_eq!(
            url.to_string(),
            "redis-quorum:redis://***@a:1,redis://b,redis://c:3/2",
            "the password hides, with its comma"
        );
        assert_eq!(url.targets()[0].credentials().1, Some("p,w"));
        let five = "redis-quorum:redis://a,redis://b,redis://c,redis://d,redis://e";
        assert_eq!(five.parse::<QuorumUrl>().unwrap().targets().len(), 5);
    }

    #[test]
    fn other_lists_are_refused_with_what_is_wrong() {
        for (list, reason) in [
            ("", "no node of a quorum"),
            ("redis://a", "names 1"),
            ("redis://a,redis://b", "names 2"),
            ("redis://a,redis://b,redis://c,redis://d", "names 4"),
            ("redis://a,b,c", "several hosts"),
            ("redis://a,redis://b,redis://a", "redis://a is named twice"),
            ("redis-sentinel://a/m,redis://b,redis://c", "behind no sentinel"),
            ("a,b,c", "no node of a quorum"),
        ] {
            let error = format!("redis-quorum:{list}").parse::<QuorumUrl>().unwrap_err();
            assert!(error.contains(reason), "{list}: {error}");
        }
    }

    #[test]
    fn no_error_shows_a_password() {
        for list in [
            "redis://u:hunter2@a,redis://b",
            "redis://u:hunter2@a/x/y,redis://b,redis://c",
            "u:hunter2@a,redis://b,redis://c",
            "redis:/u:hunter2@a",
            "redis://u:hunter2,redis://x@a",
            "redis:/u:hunter2,redis://x@a,redis://b",
            "redis://u@a:hunter2,redis://x@b,redis://c",
        ] {
            let error = format!("redis-quorum:{list}").parse::<QuorumUrl>().unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
