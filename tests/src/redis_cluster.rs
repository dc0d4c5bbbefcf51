//! A real Redis Cluster for one test.

use std::time::Duration;

use redis::{FromRedisValue, Value};
use redis_link::{SLOTS, slot_of};

use crate::cluster_node::{Kind, Node};
use crate::redis_server::Redis;
use crate::resp_client::{Resp, RespClient};
use crate::wait::{until, until_true};

/// Time for which a node may say nothing before the others take it for down. Nothing is lost by
/// waiting where none is killed.
pub(crate) const CALM: &str = "60000";
/// The same where there is a replica, which is to take over.
const QUICK: &str = "1500";

/// A little more than Redis tries to carry out a failover that is asked for.
const FAILOVER_MAX: Duration = Duration::from_secs(6);

/// Masters that share the slots evenly, without replicas; gone when dropped.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Node>,
    /// `true` if the network between them can be split.
    is_apart: bool,
}

impl RedisCluster {
    /// Three masters.
    pub async fn start() -> Self {
        Self::with_masters(3).await
    }

    /// Starts a cluster with a network between the nodes that can be split.
    pub async fn apart() -> Self {
        Self::built(3, true).await
    }

    /// So many masters. Nodes that are left over after one died go on with their own slots.
    ///
    /// # Panics
    /// If they do not find each other.
    pub async fn with_masters(masters: u16) -> Self {
        Self::built(masters, false).await
    }

    async fn built(masters: u16, is_apart: bool) -> Self {
        let mut nodes = Vec::new();
        for number in 0..usize::from(masters) {
            nodes.push(Node::start(if is_apart { Kind::Apart(number) } else { Kind::Plain }).await);
        }
        for (index, node) in (0..).zip(&nodes) {
            let first = |index: u16| u32::from(SLOTS) * u32::from(index) / u32::from(masters);
            let range = [first(index).to_string(), (first(index + 1) - 1).to_string()];
            let _: () = node.redis.run(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).await;
        }
        let cluster = Self { nodes, is_apart };
        for (index, node) in cluster.nodes.iter().enumerate() {
            for other in &cluster.nodes[index + 1..] {
                node.meet(other).await;
            }
        }
        cluster.settled().await;
        cluster
    }

    /// `redis-cluster://127.0.0.1:PORT,…` with every node.
    pub fn url(&self) -> String {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        self.url_of(&all)
    }

    /// The same with these nodes.
    pub fn url_of(&self, indexes: &[usize]) -> String {
        let addresses: Vec<String> = indexes.iter().map(|at| self.nodes[*at].address()).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }

    /// The nodes, in the order of the slots that they began with.
    pub fn node(&self, index: usize) -> &Redis {
        &self.nodes[index].redis
    }

    /// One node, to stop and start it.
    pub fn node_mut(&mut self, index: usize) -> &mut Redis {
        &mut self.nodes[index].redis
    }

    /// Adds a replica of a master, and returns its number among the nodes.
    pub async fn add_replica(&mut self, of: usize) -> usize {
        let number = self.nodes.len();
        self.add(of, if self.is_apart { Kind::Apart(number) } else { Kind::Plain }).await
    }

    /// The same with a clock that is so many seconds ahead of the right time, or behind it.
    pub async fn add_replica_with_clock(&mut self, of: usize, seconds: i64) -> usize {
        self.add(of, Kind::Clock(seconds)).await
    }

    async fn add(&mut self, of: usize, kind: Kind) -> usize {
        self.give_up_after(CALM).await;
        let node = Node::start(kind).await;
        self.nodes[of].meet(&node).await;
        let id = self.nodes[of].id.clone();
        until_true("the replica to know its master", || async {
            node.redis.try_run::<()>(&["CLUSTER", "REPLICATE", &id]).await.is_ok()
        })
        .await;
        until_true("the replica to be in step", || async {
            let info: String =
                node.redis.try_run(&["INFO", "replication"]).await.unwrap_or_default();
            info.contains("master_link_status:up")
        })
        .await;
        self.nodes.push(node);
        let replica = self.nodes.len() - 1;
        until_true("every node to know whose replica it is", || async {
            for node in &self.nodes {
                if !node.knows_replica(&self.nodes[replica].id, &id).await {
                    return false;
                }
            }
            true
        })
        .await;
        self.give_up_after(QUICK).await;
        replica
    }

    /// Sets after how many milliseconds of silence a node is taken for down.
    async fn give_up_after(&mut self, ms: &str) {
        for node in &mut self.nodes {
            node.redis.set("cluster-node-timeout", ms).await;
        }
    }

    /// Has a replica take the place of its master, and waits until it owns the slot.
    pub async fn fail_over(&self, to: usize, slot: u16) {
        let is_done = async || {
            while !self.claims(to, slot).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        until_true("the replica to own the slot", || async {
            // Refused where it has become a master by now.
            let _ = self.nodes[to].redis.try_run::<String>(&["CLUSTER", "FAILOVER"]).await;
            tokio::time::timeout(FAILOVER_MAX, is_done()).await.is_ok()
        })
        .await;
    }

    /// Index of the node that owns a slot, as the nodes say themselves.
    ///
    /// # Panics
    /// If none says that it does.
    pub async fn owner(&self, slot: u16) -> usize {
        until(&format!("a node to own slot {slot}"), || self.try_owner(slot)).await
    }

    /// The same; `None` where none of those that answer says that it does.
    pub async fn try_owner(&self, slot: u16) -> Option<usize> {
        for index in 0..self.nodes.len() {
            if self.claims(index, slot).await {
                return Some(index);
            }
        }
        None
    }

    /// `true` if a node says that it owns a slot.
    pub async fn claims(&self, index: usize, slot: u16) -> bool {
        self.names(index, slot, index).await
    }

    /// `true` if a node says that `owner` owns a slot. A new master knows that it was chosen a
    /// moment before the others do, and they send clients to the old one until then.
    pub async fn names(&self, index: usize, slot: u16, owner: usize) -> bool {
        let Ok(Value::Array(rows)) = self.nodes[index].redis.try_run(&["CLUSTER", "SLOTS"]).await
        else {
            return false;
        };
        let named = rows.into_iter().find_map(|row| owner_in(row, slot));
        named.is_some_and(|id| id == self.nodes[owner].id)
    }

    /// Waits until a node is the replica of another, and in step with it.
    pub async fn follows(&self, index: usize, master: usize) {
        let address = self.nodes[master].address();
        let port = address.rsplit_once(':').expect("host:port").1;
        let named = format!("master_port:{port}\r");
        until_true("the node to follow its master", || async {
            let node = &self.nodes[index].redis;
            let info: String = node.try_run(&["INFO", "replication"]).await.unwrap_or_default();
            info.contains(&named) && info.contains("master_link_status:up")
        })
        .await;
    }

    /// Runs a command directly, at the node that owns the slot of `key`.
    ///
    /// # Panics
    /// If it fails.
    pub async fn run<T: FromRedisValue>(&self, key: &str, words: &[&str]) -> T {
        let owner = self.owner(slot_of(key.as_bytes())).await;
        self.nodes[owner].redis.run(words).await
    }

    /// Begins to move a slot: from now on new keys are taken by `to`.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let from = &self.nodes[from];
        let to = &self.nodes[to];
        let _: () = to.redis.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id]).await;
        let _: () = from.redis.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id]).await;
    }

    /// Moves one key of the slot that is on its way, or the first that there is; `false` when
    /// there is none left.
    pub async fn move_key(&self, slot: u16, from: usize, to: usize, key: Option<&str>) -> bool {
        let text = slot.to_string();
        let source = &self.nodes[from].redis;
        let key = match key {
            Some(key) => key.to_owned(),
            None => {
                let keys: Vec<String> = source.run(&["CLUSTER", "GETKEYSINSLOT", &text, "1"]).await;
                let Some(key) = keys.into_iter().next() else { return false };
                key
            }
        };
        let address = self.nodes[to].redis.address();
        let (host, port) = address.split_once(':').expect("host:port");
        let _: String = source.run(&["MIGRATE", host, port, &key, "0", "40000"]).await;
        true
    }

    /// Gives the slot to `to`, once all keys are there, and waits until every node knows. A node
    /// that does not know of the move before yet may take an epoch that is not the highest: what
    /// another one said of the slot meanwhile then counts for more.
    pub async fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let text = slot.to_string();
        let id = &self.nodes[to].id;
        until_true("every node to know the new owner of the slot", || async {
            for index in [to, from] {
                let node = &self.nodes[index].redis;
                let _: () = node.run(&["CLUSTER", "SETSLOT", &text, "NODE", id]).await;
            }
            for index in 0..self.nodes.len() {
                if !self.names(index, slot, to).await {
                    // Nothing where its epoch is the highest that it knows of.
                    let _: String = self.nodes[to].redis.run(&["CLUSTER", "BUMPEPOCH"]).await;
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Has each of two nodes say that the other owns a slot without keys, until a move is finished.
    pub async fn disown(&self, slot: u16, owner: usize, other: usize) {
        let text = slot.to_string();
        for (at, named) in [(owner, other), (other, owner)] {
            let id = &self.nodes[named].id;
            let _: () = self.nodes[at].redis.run(&["CLUSTER", "SETSLOT", &text, "NODE", id]).await;
        }
    }

    /// Moves a slot with all its keys.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to).await;
        while self.move_key(slot, from, to, None).await {}
        self.finish_move(slot, from, to).await;
    }

    /// Waits until every node knows of every other, and serves its slots.
    pub async fn settled(&self) {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in &self.nodes {
            until_true("the cluster to be settled", || async {
                let info: String =
                    node.redis.try_run(&["CLUSTER", "INFO"]).await.unwrap_or_default();
                let assigned = format!("cluster_slots_assigned:{SLOTS}\r");
                info.contains("cluster_state:ok")
                    && info.contains(&assigned)
                    && info.contains(&known)
            })
            .await;
        }
    }

    /// From now on no replica receives the writes to this node; the cluster's own messages all
    /// arrive.
    pub fn starve(&self, index: usize) {
        self.others(index).for_each(|other| self.nodes[index].starve(other));
    }

    /// From now on nothing passes between this node and the others.
    pub fn cut_off(&self, index: usize) {
        for other in self.others(index) {
            self.nodes[index].is_deaf_to(other);
            other.is_deaf_to(&self.nodes[index]);
        }
    }

    /// Ends what [`Self::starve`] and [`Self::cut_off`] began.
    pub fn heal(&self) {
        self.nodes.iter().for_each(Node::heal);
    }

    fn others(&self, index: usize) -> impl Iterator<Item = &Node> {
        self.nodes.iter().enumerate().filter(move |(at, _)| *at != index).map(|(_, node)| node)
    }

    /// A raw connection to one node.
    pub async fn raw(&self, index: usize) -> RespClient {
        RespClient::connect(&self.nodes[index].redis.address()).await
    }

    /// Reply of one node to one command.
    pub async fn call_node(&self, index: usize, words: &[&str]) -> Resp {
        self.raw(index).await.call(words).await
    }
}

/// The id of the master of a row of `CLUSTER SLOTS`, if the slot is in it.
fn owner_in(row: Value, slot: u16) -> Option<String> {
    let Value::Array(fields) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &fields[..] else {
        return None;
    };
    let Some(Value::BulkString(id)) = master.get(2) else { return None };
    (*first..=*last).contains(&i64::from(slot)).then(|| String::from_utf8_lossy(id).into_owned())
}
