//! One node of a cluster.

use std::net::{IpAddr, Ipv4Addr};

use crate::fault_proxy::{Fault, FaultProxy};
use crate::ports;
use crate::redis_cluster::CALM;
use crate::redis_server::Redis;

/// Clock and addresses with which a node is started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// As it is.
    Plain,
    /// With a clock that is so many seconds ahead of the right time, or behind it.
    Clock(i64),
    /// With addresses that distinguish it from others, and others from it; the number is its own.
    Apart(usize),
}

/// Node with the proxies before it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) redis: Redis,
    pub(crate) id: String,
    bus_port: u16,
    way: Option<Way>,
}

/// Proxies through which others reach a node, and the address by which it comes to them. Other
/// nodes come from their own addresses, clients from 127.0.0.1.
#[derive(Debug)]
struct Way {
    source: IpAddr,
    /// Before the port of clients and of replicas.
    commands: FaultProxy,
    /// Before the port of the cluster's bus.
    bus: FaultProxy,
}

impl Node {
    pub(crate) async fn start(kind: Kind) -> Self {
        // The default bus port, 10000 above, could be another test's.
        let bus_port = ports::unused();
        let mut options = vec![
            ("cluster-enabled", "yes".to_owned()),
            ("cluster-port", bus_port.to_string()),
            ("cluster-node-timeout", CALM.to_owned()),
            ("cluster-require-full-coverage", "no".to_owned()),
            ("cluster-replica-validity-factor", "0".to_owned()),
            // A full copy begins at once: the default waits five seconds for more replicas.
            ("repl-diskless-sync-delay", "0".to_owned()),
        ];
        let source = source(kind);
        options.extend(source.map(|source| ("bind-source-addr", source.to_string())));
        let options: Vec<(&str, &str)> = options.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let mut redis = match kind {
            Kind::Clock(seconds) => Redis::with_clock(&options, seconds).await,
            Kind::Plain | Kind::Apart(_) => Redis::with(&options).await,
        };
        let way = match source {
            Some(source) => Some(Way::to(&mut redis, bus_port, source).await),
            None => None,
        };
        let id = redis.run(&["CLUSTER", "MYID"]).await;
        Self { redis, id, bus_port, way }
    }

    /// Address at which others find it.
    pub(crate) fn address(&self) -> String {
        self.way.as_ref().map_or_else(|| self.redis.address(), |way| way.commands.address())
    }

    pub(crate) async fn meet(&self, other: &Self) {
        let address = other.address();
        let own_bus = other.bus_port.to_string();
        let (host, port) = split(&address);
        let bus = other.way.as_ref().map(|way| way.bus.address());
        let bus_port = bus.as_deref().map_or(own_bus.as_str(), |bus| split(bus).1);
        let _: () = self.redis.run(&["CLUSTER", "MEET", host, port, bus_port]).await;
    }

    /// `true` if it knows the replica of a master, and the slots of that master: a replica that
    /// does not know these would not take over.
    pub(crate) async fn knows_replica(&self, replica: &str, master: &str) -> bool {
        let nodes: String = self.redis.try_run(&["CLUSTER", "NODES"]).await.unwrap_or_default();
        let line = |id: &str| nodes.lines().find(|line| line.starts_with(id)).unwrap_or_default();
        let is_known = line(replica).split(' ').nth(3) == Some(master);
        is_known && line(master).split(' ').nth(8).is_some()
    }

    /// Writes to this node do not reach `replica` from now on.
    pub(crate) fn starve(&self, replica: &Self) {
        self.way().commands.set_from(replica.way().source, Fault::Blackhole);
    }

    /// Messages that `other` begins do not arrive here from now on.
    pub(crate) fn is_deaf_to(&self, other: &Self) {
        let way = self.way();
        let source = other.way().source;
        way.commands.set_from(source, Fault::Blackhole);
        way.bus.set_from(source, Fault::Blackhole);
    }

    pub(crate) fn heal(&self) {
        self.way().commands.heal();
        self.way().bus.heal();
    }

    fn way(&self) -> &Way {
        self.way.as_ref().expect("a cluster of nodes that are apart")
    }
}

impl Way {
    /// Makes the node announce the proxies in place of itself.
    async fn to(redis: &mut Redis, bus_port: u16, source: IpAddr) -> Self {
        let commands = FaultProxy::before(&redis.address()).await;
        let bus = FaultProxy::before(&format!("127.0.0.1:{bus_port}")).await;
        let commands_at = commands.address();
        let bus_at = bus.address();
        redis.set("cluster-announce-ip", split(&commands_at).0).await;
        redis.set("cluster-announce-port", split(&commands_at).1).await;
        redis.set("cluster-announce-bus-port", split(&bus_at).1).await;
        Self { source, commands, bus }
    }
}

fn source(kind: Kind) -> Option<IpAddr> {
    let Kind::Apart(number) = kind else { return None };
    let last = u8::try_from(number + 1).expect("few nodes");
    Some(IpAddr::V4(Ipv4Addr::new(127, 0, 3, last)))
}

/// Host and port.
fn split(address: &str) -> (&str, &str) {
    address.rsplit_once(':').expect("host:port")
}
