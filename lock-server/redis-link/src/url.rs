//! Redis URLs: one host, or several.

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use super::sentinel;

/// A URL that is no Redis URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{shown}\" is no Redis URL ({why}); write redis://host:port, redis://user:password@host:port/db \
     or redis-sentinel://host:port,host:port/master-name, and rediss in place of redis for TLS"
)]
pub struct TargetError {
    shown: String,
    why: String,
}

impl TargetError {
    pub(super) fn new(shown: String, why: impl Into<String>) -> Self {
        Self { shown, why: why.into() }
    }
}

/// The parts of a URL.
pub(super) struct RedisUrl {
    /// `redis`, `redis-sentinel` or `redis-cluster`, also where it is written with TLS.
    pub(super) scheme: String,
    /// Whether it is written with TLS: `rediss`, `rediss-sentinel`, `rediss-cluster`.
    pub(super) is_tls: bool,
    /// Host and port of each address, at least one.
    pub(super) addresses: Vec<(String, u16)>,
    /// What is between the slashes behind the addresses, none of it empty but maybe the first.
    pub(super) path: Vec<String>,
    /// User and password; database 0.
    pub(super) login: RedisConnectionInfo,
    /// The URL without user and password.
    pub(super) shown: String,
}

/// Takes a URL of one of `schemes`, or of one of them over TLS, apart.
pub(super) fn parse(text: &str, schemes: &[&str]) -> Result<RedisUrl, TargetError> {
    let shown = without_password(text);
    let refuse = |why: String| TargetError::new(shown.clone(), why);
    let begin = format!("it does not begin with {}://", schemes.join(":// or "));
    let (scheme, rest) = text.split_once("://").ok_or_else(|| refuse(begin.clone()))?;
    let is_tls = scheme == "rediss" || scheme.starts_with("rediss-");
    let scheme = if is_tls { scheme.replacen("rediss", "redis", 1) } else { scheme.to_owned() };
    if !schemes.contains(&scheme.as_str()) {
        return Err(refuse(begin));
    }
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, format!("?{query}")),
        None => (rest, String::new()),
    };
    // The user's name or the password may have any characters but these two.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("{user}@"), rest),
        None => (String::new(), rest),
    };
    if rest.contains('#') {
        return Err(refuse("it has a #; certificates are always verified".to_owned()));
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let default_port = if scheme == "redis-sentinel" { sentinel::DEFAULT_PORT } else { 6379 };
    let mut addresses = Vec::new();
    let mut login = RedisConnectionInfo::default();
    for host in hosts.split(',') {
        // The driver's own parser knows what a host is, and takes %40 for an @.
        let info = format!("redis://{user}{}{query}", with_port(host, default_port))
            .into_connection_info()
            .map_err(|error| refuse(error.to_string()))?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(refuse("it is not reached over TCP".to_owned()));
        };
        addresses.push((host.clone(), *port));
        login = info.redis_settings().clone();
    }
    let path = path.trim_end_matches('/');
    let path = path.split('/').filter(|_| !path.is_empty()).map(str::to_owned).collect();
    Ok(RedisUrl { scheme, is_tls, addresses, path, login, shown })
}

fn with_port(host: &str, default_port: u16) -> String {
    let behind_brackets = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    match behind_brackets.contains(':') || host.is_empty() {
        true => host.to_owned(),
        false => format!("{host}:{default_port}"),
    }
}

/// What the scheme of a URL with a password begins with.
const SCHEMES: [&str; 3] = ["redis", "etcd", "http"];

/// A URL with `***` in place of user and password: what errors and logs may show. A malformed one,
/// as `redis:/user:password@host`, hides them as well; other text is left as it is.
pub fn without_password(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else {
        return url.to_owned();
    };
    match before.split_once(':') {
        Some((scheme, rest)) if rest.starts_with("//") => format!("{scheme}://***@{host}"),
        Some((scheme, _)) if SCHEMES.iter().any(|known| scheme.starts_with(known)) => {
            format!("{scheme}:***@{host}")
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_hidden_in_a_malformed_url_too() {
        for (url, shown) in [
            ("redis://u:hunter2@host/1", "redis://***@host/1"),
            ("redis:/u:hunter2@host", "redis:***@host"),
            ("rediss:u:hunter2@host", "rediss:***@host"),
            ("redis:/u:hunter2@a,redis://b@c", "redis:***@c"),
            ("redis-quorum:redis://u:hunter2@a,redis://b", "redis-quorum:***@a,redis://b"),
            ("http://u:hunter2@host", "http://***@host"),
            ("orders:{id}:**=@open", "orders:{id}:**=@open"),
            ("jobs/*=@deny", "jobs/*=@deny"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
