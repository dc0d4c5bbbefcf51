//! A whole group: a master, two replicas, and three sentinels of which two must agree.
//!
//! Each of the six is reached through a proxy of its own, and calls itself by an address of its own
//! when it connects to another. So any of them can be cut off from any other, as by a network.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tempfile::TempDir;

use crate::fault_proxy::{Fault, FaultProxy};
use crate::ports;
use crate::process::{Process, command};
use crate::redis_sentinel::{MASTER, NOT_ACKNOWLEDGED, begins_failover};
use crate::redis_server::Redis;
use crate::wait::{until_true, until_within};

/// Number of Redis, and how many sentinels.
const SIZE: u8 = 3;

/// A failover that was not agreed on is tried again after seconds, more than once on a busy
/// machine.
const LONG: Duration = Duration::from_secs(120);

/// A failover by command that takes longer came to nothing.
const FAILOVER_MAX: Duration = Duration::from_secs(20);

/// Milliseconds after which a silent process is taken for down: only one that is meant to be.
const CALM: &str = "60000";
/// The same while another master is to be chosen. The default is half of the time above: a run
/// would be waiting most of the time.
const QUICK: &str = "500";

/// Three Redis and three sentinels; gone when dropped.
#[derive(Debug)]
pub struct WholeGroup {
    nodes: Vec<Node>,
    sentinels: Vec<Sentinel>,
    /// Those sentinels, as a process beside the first one reaches the other two over the network,
    /// and as the others reach the first.
    across: Vec<FaultProxy>,
}

/// One Redis.
#[derive(Debug)]
struct Node {
    redis: Redis,
    proxy: FaultProxy,
    source: IpAddr,
}

/// One sentinel.
#[derive(Debug)]
struct Sentinel {
    port: u16,
    proxy: FaultProxy,
    source: IpAddr,
    process: Process,
    _folder: TempDir,
}

impl WholeGroup {
    /// The first Redis is the master, and the other two are in step with it.
    ///
    /// # Panics
    /// If they do not find each other.
    pub async fn start() -> Self {
        let mut nodes = Vec::new();
        let mut sentinels = Vec::new();
        for number in 0..SIZE {
            nodes.push(Node::start(number).await);
        }
        let (host, port) = split(&nodes[0].proxy.address());
        for node in &nodes[1..] {
            let _: () = node.redis.run(&["REPLICAOF", &host, &port]).await;
        }
        for number in 0..SIZE {
            sentinels.push(Sentinel::start(number, &host, &port).await);
        }
        let mut across = Vec::new();
        for sentinel in &sentinels {
            across.push(FaultProxy::before(&format!("127.0.0.1:{}", sentinel.port)).await);
        }
        let group = Self { nodes, sentinels, across };
        group.know_each_other().await;
        group.is_whole().await;
        group
    }

    /// `redis-sentinel://…`, for a client that reaches all of them.
    pub fn url(&self) -> String {
        self.url_across(|_| false)
    }

    /// `redis-sentinel://…` for a client that is beside the first sentinel when [`Self::split`] is
    /// in force.
    pub fn url_here(&self) -> String {
        self.url_across(|at| at > 0)
    }

    /// `redis-sentinel://…` for a client that is beside the others.
    pub fn url_there(&self) -> String {
        self.url_across(|at| at == 0)
    }

    fn url_across(&self, is_across: impl Fn(usize) -> bool) -> String {
        let address = |(at, sentinel): (usize, &Sentinel)| match is_across(at) {
            true => self.across[at].address(),
            false => format!("127.0.0.1:{}", sentinel.port),
        };
        let addresses: Vec<String> = self.sentinels.iter().enumerate().map(address).collect();
        format!("redis-sentinel://{}/{MASTER}", addresses.join(","))
    }

    /// The Redis of this number, past its proxy.
    pub fn node(&self, at: usize) -> &Redis {
        &self.nodes[at].redis
    }

    /// One Redis, to kill and start it.
    pub fn node_mut(&mut self, at: usize) -> &mut Redis {
        &mut self.nodes[at].redis
    }

    /// The process of a sentinel, to stop and continue it.
    pub fn sentinel(&self, at: usize) -> &Process {
        &self.sentinels[at].process
    }

    /// The number of the Redis that at least two sentinels call the master, if there is one and it
    /// says so itself.
    pub async fn master(&self) -> Option<usize> {
        let mut votes = vec![0; self.nodes.len()];
        for sentinel in &self.sentinels {
            if let Some(at) = self.named_by(sentinel).await {
                votes[at] += 1;
            }
        }
        let at = votes.iter().position(|count| *count >= 2)?;
        self.info(at).await.contains("role:master").then_some(at)
    }

    /// That of the group, once there is one.
    pub async fn one_master(&self) -> usize {
        until_within(LONG, "a master", || self.master()).await
    }

    /// Waits until another than `old`, which is out of reach, is the master, and returns its
    /// number. Only meanwhile the sentinels soon take a process for down.
    pub async fn another_master(&self, old: usize) -> usize {
        self.soon_give_up().await;
        let new = self.other_than(old).await;
        self.down_after(CALM).await;
        new
    }

    async fn other_than(&self, old: usize) -> usize {
        let what = "the sentinels to name another master";
        until_within(LONG, what, || async { self.master().await.filter(|at| *at != old) }).await
    }

    /// From now on the sentinels soon take a process for down.
    pub async fn soon_give_up(&self) {
        self.down_after(QUICK).await;
    }

    async fn down_after(&self, ms: &str) {
        for sentinel in &self.sentinels {
            sentinel.instruct(&["SET", MASTER, "down-after-milliseconds", ms]).await;
        }
    }

    /// Has the sentinels choose another master, and returns its number.
    ///
    /// # Panics
    /// If there is no master, or stays the same.
    pub async fn fail_over(&self) -> usize {
        let old = self.one_master().await;
        let sentinel = format!("127.0.0.1:{}", self.sentinels[0].port);
        until_within(LONG, "a sentinel to carry out a failover", || async {
            if !begins_failover(&sentinel).await {
                return None;
            }
            tokio::time::timeout(FAILOVER_MAX, self.other_than(old)).await.ok()
        })
        .await
    }

    /// From now on nothing passes between this Redis and any other process.
    pub fn isolate(&self, at: usize) {
        self.nodes[at].proxy.set(Fault::Blackhole);
        for node in &self.nodes {
            node.proxy.set_from(self.nodes[at].source, Fault::Blackhole);
        }
    }

    /// From now on no other Redis receives the writes to this one. Its clients notice nothing.
    pub fn starve(&self, at: usize) {
        for (other, node) in self.nodes.iter().enumerate() {
            if other != at {
                self.nodes[at].proxy.set_from(node.source, Fault::Blackhole);
            }
        }
    }

    /// From now on this Redis and the first sentinel are on one side of the network, the others on
    /// the other side. Lock servers reach the sentinels of their side, and every Redis.
    pub fn split(&self, at: usize) {
        let here = [self.nodes[at].source, self.sentinels[0].source];
        let all: Vec<IpAddr> = self.sources().collect();
        for (source, proxy) in self.sources().zip(self.proxies()) {
            for other in &all {
                if here.contains(&source) != here.contains(other) {
                    proxy.set_from(*other, Fault::Blackhole);
                }
            }
        }
        self.across.iter().for_each(|proxy| proxy.set(Fault::Blackhole));
    }

    /// Ends what [`Self::isolate`], [`Self::starve`] and [`Self::split`] began.
    pub fn heal(&self) {
        self.proxies().chain(&self.across).for_each(FaultProxy::heal);
    }

    /// Waits until all sentinels agree on a master, and every other Redis is in step with it.
    pub async fn is_whole(&self) {
        until_within(LONG, "one master and two replicas in step", || async {
            let master = self.master().await?;
            for sentinel in &self.sentinels {
                if self.named_by(sentinel).await != Some(master) {
                    return None;
                }
            }
            let (_, port) = split(&self.nodes[master].proxy.address());
            for at in (0..self.nodes.len()).filter(|at| *at != master) {
                let info = self.info(at).await;
                let follows = info.contains(&format!("master_port:{port}\r"));
                if !follows || !info.contains("master_link_status:up") {
                    return None;
                }
            }
            // What a replica is not sent yet it may not have when it becomes the master.
            let info = self.info(master).await;
            let are_sent_to = info.matches("state=online").count() == 2;
            (are_sent_to && !info.contains(NOT_ACKNOWLEDGED)).then_some(())
        })
        .await;
    }

    /// A failover needs sentinels that know each other and the replicas.
    async fn know_each_other(&self) {
        for sentinel in &self.sentinels {
            until_true("the sentinels to know each other", || async {
                let others = sentinel.command(&["SENTINELS", MASTER]).await;
                let replicas = sentinel.command(&["REPLICAS", MASTER]).await;
                let count = |reply: Option<redis::Value>| match reply {
                    Some(redis::Value::Array(rows)) => rows.len(),
                    _ => 0,
                };
                count(others) == 2 && count(replicas) == 2
            })
            .await;
        }
    }

    async fn named_by(&self, sentinel: &Sentinel) -> Option<usize> {
        let reply = sentinel.command(&["GET-MASTER-ADDR-BY-NAME", MASTER]).await?;
        let (_, port): (String, String) = redis::from_redis_value(reply).ok()?;
        self.nodes.iter().position(|node| split(&node.proxy.address()).1 == port)
    }

    /// Nothing where it does not answer.
    async fn info(&self, at: usize) -> String {
        self.nodes[at].redis.try_run(&["INFO", "replication"]).await.unwrap_or_default()
    }

    fn sources(&self) -> impl Iterator<Item = IpAddr> {
        let nodes = self.nodes.iter().map(|node| node.source);
        nodes.chain(self.sentinels.iter().map(|sentinel| sentinel.source))
    }

    fn proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        let nodes = self.nodes.iter().map(|node| &node.proxy);
        nodes.chain(self.sentinels.iter().map(|sentinel| &sentinel.proxy))
    }
}

impl Node {
    async fn start(number: u8) -> Self {
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 2, number + 1));
        let options = [
            ("bind-source-addr", source.to_string()),
            // A full copy begins at once: the default waits five seconds for more replicas.
            ("repl-diskless-sync-delay", "0".to_owned()),
            ("repl-ping-replica-period", "1".to_owned()),
            ("protected-mode", "no".to_owned()),
        ];
        let options: Vec<(&str, &str)> = options.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let mut redis = Redis::with(&options).await;
        let proxy = FaultProxy::before(&redis.address()).await;
        let (host, port) = split(&proxy.address());
        redis.set("replica-announce-ip", &host).await;
        redis.set("replica-announce-port", &port).await;
        Self { redis, proxy, source }
    }
}

impl Sentinel {
    async fn start(number: u8, host: &str, master_port: &str) -> Self {
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 1, number + 1));
        let port = ports::unused();
        let folder = crate::folder::new();
        let proxy = FaultProxy::before(&format!("127.0.0.1:{port}")).await;
        let (own_host, own_port) = split(&proxy.address());
        let config = format!(
            "port {port}\nbind 127.0.0.1\nbind-source-addr {source}\nprotected-mode no\n\
             dir {dir}\n\
             sentinel announce-ip {own_host}\nsentinel announce-port {own_port}\n\
             sentinel monitor {MASTER} {host} {master_port} 2\n\
             sentinel down-after-milliseconds {MASTER} {CALM}\n\
             sentinel failover-timeout {MASTER} 2000\n\
             sentinel parallel-syncs {MASTER} 2\n",
            dir = folder.path().display()
        );
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, config).expect("a configuration");
        let mut command = command(crate::engines::redis());
        command.arg(&file).arg("--sentinel");
        let process = Process::spawn("redis-sentinel", command);
        let sentinel = Self { port, proxy, source, process, _folder: folder };
        // Its own rhythm, of which the demotion of an old master waits for many beats. A replica
        // from which it received nothing for five pings is not chosen, and it asks them every
        // second. After a pause of the whole machine it would do nothing for half a minute.
        let rhythm = "DEBUG INFO-PERIOD 500 PUBLISH-PERIOD 250 PING-PERIOD 300 TILT-PERIOD 1000";
        let rhythm: Vec<&str> = rhythm.split(' ').collect();
        sentinel.instruct(&rhythm).await;
        sentinel
    }

    /// Waits until it has carried out `SENTINEL …`.
    async fn instruct(&self, words: &[&str]) {
        until_true("the sentinel to answer", || async { self.command(words).await.is_some() })
            .await;
    }

    /// Reply to `SENTINEL …`; `None` for an error.
    async fn command(&self, words: &[&str]) -> Option<redis::Value> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).ok()?;
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        redis::cmd("SENTINEL").arg(words).query_async(&mut connection).await.ok()
    }
}

/// Host and port.
fn split(address: &str) -> (String, String) {
    let (host, port) = address.rsplit_once(':').expect("host:port");
    (host.to_owned(), port.to_owned())
}
