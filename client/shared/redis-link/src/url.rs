//! Redis URLs: one host, or several.

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use service_kit::login::without_password;

/// The port of a sentinel whose address names none.
const SENTINEL_PORT: u16 = 26379;

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
    pub(crate) fn new(shown: String, why: impl Into<String>) -> Self {
        Self { shown, why: why.into() }
    }
}

/// The parts of a URL.
pub(crate) struct RedisUrl {
    /// `redis`, `redis-sentinel` or `redis-cluster`, also where it is written with TLS.
    pub(crate) scheme: String,
    /// True with TLS in the scheme: `rediss`, `rediss-sentinel`, `rediss-cluster`.
    pub(crate) is_tls: bool,
    /// Host and port of each address, at least one.
    pub(crate) addresses: Vec<(String, u16)>,
    /// Parts between the slashes behind the addresses; only the first may be empty.
    pub(crate) path: Vec<String>,
    /// User and password; database 0.
    pub(crate) login: RedisConnectionInfo,
    /// The URL without user and password.
    pub(crate) shown: String,
}

/// Takes a URL of one of `schemes`, or of one of them over TLS, apart.
pub(crate) fn parse(text: &str, schemes: &[&str]) -> Result<RedisUrl, TargetError> {
    let shown = without_password(text);
    let refuse = |why: String| TargetError::new(shown.clone(), why);
    let begin = format!("it does not begin with {}://", schemes.join(":// or "));
    let (scheme, rest) = text.split_once("://").ok_or_else(|| refuse(begin.clone()))?;
    let is_tls = scheme == "rediss" || scheme.starts_with("rediss-");
    let scheme = if is_tls { scheme.replacen("rediss", "redis", 1) } else { scheme.to_owned() };
    if !schemes.contains(&scheme.as_str()) {
        return Err(refuse(begin));
    }
    if rest.contains('?') {
        return Err(refuse(
            "it has a ?; no setting stands there, and in a password it is %3F".into(),
        ));
    }
    // The user's name or the password may have any characters but these two.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("{user}@"), rest),
        None => (String::new(), rest),
    };
    if rest.contains('#') {
        return Err(refuse("it has a #; certificates are always verified".to_owned()));
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let default_port = if scheme == "redis-sentinel" { SENTINEL_PORT } else { 6379 };
    let mut addresses = Vec::new();
    let mut login = RedisConnectionInfo::default();
    for host in hosts.split(',') {
        // The driver's own parser knows what a host is, and takes %40 for an @.
        let info = format!("redis://{user}{}", with_port(host, default_port))
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

/// `host:port`, an IPv6 address in brackets.
pub(crate) fn address_text(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn with_port(host: &str, default_port: u16) -> String {
    let behind_brackets = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    match behind_brackets.contains(':') || host.is_empty() {
        true => host.to_owned(),
        false => format!("{host}:{default_port}"),
    }
}
