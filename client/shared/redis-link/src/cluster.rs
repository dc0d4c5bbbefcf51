//! The addresses of a Redis Cluster, and its nodes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redis::ProtocolVersion;
use service_kit::login::StoreLogin;

use crate::access::Access;
use crate::slots::{SlotOwner, SlotRange, ask_one};
use crate::target::RedisTarget;
use crate::url::{self, RedisUrl, TargetError, address_text};

/// A Redis Cluster, known by some of its nodes:
/// `redis-cluster://[user[:password]@]host[:port][,host[:port]…]`, `rediss-cluster://…` over TLS.
///
/// Its text and its `Debug` hide the password.
#[derive(Clone)]
pub struct ClusterTarget {
    seeds: Vec<(String, u16)>,
    access: Access,
    shown: String,
}

impl FromStr for ClusterTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let RedisUrl { addresses, path, login, shown, is_tls, .. } =
            url::parse(text, &["redis-cluster"])?;
        let access = Access::new(login, is_tls);
        match path.iter().all(|part| part == "0") {
            true => Ok(Self { seeds: addresses, access, shown }),
            false => Err(TargetError::new(shown, "a cluster has no database but 0")),
        }
    }
}

impl ClusterTarget {
    /// With what is said beside the URL, for every node.
    ///
    /// # Errors
    /// A sentence where both say something, or the URL is a plain one and certificates are named.
    pub fn with_login(mut self, login: &StoreLogin) -> Result<Self, String> {
        self.access = self.access.with(login)?;
        Ok(self)
    }

    /// True for a connection over TLS.
    pub fn is_tls(&self) -> bool {
        self.access.is_tls()
    }

    /// The nodes that the URL names, as `host:port`.
    pub fn seeds(&self) -> Vec<String> {
        self.seeds.iter().map(|(host, port)| address_text(host, *port)).collect()
    }

    /// One node, over RESP3, with the cluster's login; `None` where `address` is not `host:port`.
    pub fn node(&self, address: &str) -> Option<RedisTarget> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let mut access = self.access.clone();
        access.login = access.login.set_protocol(ProtocolVersion::RESP3);
        Some(RedisTarget::at(host, port.parse().ok()?, access))
    }

    /// Whatever node owns the slot of `key` at the moment of each connection.
    pub fn owner_of(&self, key: &[u8]) -> RedisTarget {
        let owner = SlotOwner::new(self.seeds.clone(), key);
        RedisTarget::owner(owner, self.access.clone(), self.shown.clone())
    }

    /// Asks `address`, one of the nodes, who owns which slots.
    ///
    /// # Errors
    /// A sentence with the address and the cause.
    pub async fn slots(&self, address: &str, timeout: Duration) -> Result<Vec<SlotRange>, String> {
        let (host, port) =
            address.rsplit_once(':').ok_or_else(|| format!("{address} is no address"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().map_err(|_| format!("{address} is no address"))?;
        ask_one(host, port, &self.access, timeout).await
    }
}

impl fmt::Display for ClusterTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for ClusterTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_urls() {
        let target: ClusterTarget = "redis-cluster://u:p@a:1,b,[::1]:3".parse().unwrap();
        assert_eq!(target.seeds(), ["a:1", "b:6379", "[::1]:3"]);
        assert_eq!(target.to_string(), "redis-cluster://***@a:1,b,[::1]:3");
        let node = target.node("[::1]:3").unwrap();
        assert_eq!(
            (node.to_string(), node.credentials().1),
            ("redis://[::1]:3".to_owned(), Some("p"))
        );
        assert!(target.node("nonsense").is_none());
        for bad in ["redis-cluster://", "redis-cluster://a/1", "redis://a", "redis-cluster://a:b"] {
            assert!(bad.parse::<ClusterTarget>().is_err(), "{bad}");
        }
    }
}
