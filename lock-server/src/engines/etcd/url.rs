//! `etcd://…`: which etcd, and how it is talked to.

use std::fmt;
use std::str::FromStr;

/// The port that etcd serves clients on where none is named.
const DEFAULT_PORT: u16 = 2379;
/// A cluster of etcd has three or five members; more addresses than this are a mistake.
const ENDPOINTS_MAX: usize = 16;

/// An etcd cluster: the addresses of its members, and whether TLS is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTarget {
    /// `host:port` of each, in the order in which they were named.
    addresses: Vec<String>,
    user: Option<String>,
    tls: bool,
}

impl EtcdTarget {
    /// `host:port` of each member.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.addresses.iter().map(String::as_str)
    }

    /// The user that the URL names.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns whether the connection uses TLS (`etcds://`).
    pub fn is_tls(&self) -> bool {
        self.tls
    }
}

impl FromStr for EtcdTarget {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let (tls, rest) = match url.split_once("://") {
            Some(("etcd", rest)) => (false, rest),
            Some(("etcds", rest)) => (true, rest),
            _ => return Err("an etcd URL begins with etcd:// or etcds://".to_owned()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, hosts) = match rest.rsplit_once('@') {
            Some((user, hosts)) => (Some(checked_user(user)?), hosts),
            None => (None, rest),
        };
        let addresses = hosts.split(',').map(address).collect::<Result<Vec<_>, _>>()?;
        for (at, address) in addresses.iter().enumerate() {
            if addresses[..at].contains(address) {
                return Err(format!("{address} is named twice; name each member of etcd once"));
            }
        }
        if addresses.len() > ENDPOINTS_MAX {
            let count = addresses.len();
            return Err(format!("{count} members of etcd are named; at most {ENDPOINTS_MAX}"));
        }
        Ok(Self { addresses, user, tls })
    }
}

fn checked_user(user: &str) -> Result<String, String> {
    if user.contains(':') {
        // A command line is visible to every user who can list the processes of the machine.
        return Err("an etcd URL holds no password; put it in a file and name that by \
                    --store-password-file"
            .to_owned());
    }
    match user {
        "" => Err("the user before @ is empty; leave out the @".to_owned()),
        user => Ok(user.to_owned()),
    }
}

fn address(text: &str) -> Result<String, String> {
    let malformed = || format!("{text:?} is no address of an etcd; write host:port");
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an address in brackets are not followed by a port.
        Some((_, end)) if end.ends_with(']') => (text, DEFAULT_PORT),
        Some((host, port)) => (host, port.parse().map_err(|_| malformed())?),
        None => (text, DEFAULT_PORT),
    };
    let brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let fine = match brackets {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            !host.is_empty() && host.chars().all(letter)
        }
    };
    if fine && port != 0 { Ok(format!("{host}:{port}")) } else { Err(malformed()) }
}

impl fmt::Display for EtcdTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "etcds://" } else { "etcd://" })?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&self.addresses.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_members() {
        let target: EtcdTarget = "etcd://a:1,b,[::1]:7/".parse().unwrap();
        let addresses: Vec<&str> = target.addresses().collect();
        assert_eq!(addresses, ["a:1", "b:2379", "[::1]:7"]);
        let target: EtcdTarget = "etcds://locks@h:2".parse().unwrap();
        assert_eq!((target.user(), target.is_tls()), (Some("locks"), true));
        assert_eq!(target.addresses().next().unwrap(), "h:2");
        assert_eq!(target.to_string(), "etcds://locks@h:2");
    }

    #[test]
    fn what_is_no_url_is_refused_with_the_reason() {
        for (url, reason) in [
            ("etcd://", "no address"),
            ("etcd://a,,b", "no address"),
            ("etcd://a:0", "no address"),
            ("etcd://a:port", "no address"),
            ("etcd://a/path", "no address"),
            ("etcd://a:1,a:1", "named twice"),
            ("etcd://a,a:2379", "named twice"),
            ("etcd://u:hunter2@a", "--store-password-file"),
            ("etcd://@a", "empty"),
            ("http://a", "begins with"),
        ] {
            let error = url.parse::<EtcdTarget>().unwrap_err();
            assert!(error.contains(reason) && !error.contains("hunter2"), "{url}: {error}");
        }
    }
}
