//! A real Redis Cluster for one test.

use redis::{FromRedisValue, Value};
use service_kit::redis_link::{SLOTS, slot_of};

use crate::ports;
use crate::redis_server::Redis;
use crate::resp_client::{Resp, RespClient};
use crate::wait::until_true;

/// Masters that share the slots evenly, without replicas; gone when dropped.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Node>,
}

/// One node.
#[derive(Debug)]
struct Node {
    redis: Redis,
    id: String,
    bus_port: u16,
}

impl RedisCluster {
    /// Three masters.
    pub async fn start() -> Self {
        Self::of(3).await
    }

    /// So many masters. Nodes that are left over after one died go on with their own slots.
    ///
    /// # Panics
    /// Where they do not find each other.
    pub async fn of(masters: u16) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..masters {
            nodes.push(Node::start().await);
        }
        for (index, node) in (0..).zip(&nodes) {
            let first = |index: u16| u32::from(SLOTS) * u32::from(index) / u32::from(masters);
            let range = [first(index).to_string(), (first(index + 1) - 1).to_string()];
            let _: () = node.redis.run(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).await;
        }
        let cluster = Self { nodes };
        for node in &cluster.nodes[1..] {
            cluster.nodes[0].meet(node).await;
        }
        cluster.settled().await;
        cluster
    }

    /// `redis-cluster://127.0.0.1:PORT,…` with every node.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.nodes.iter().map(|node| node.redis.address()).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }

    /// The nodes, in the order of the slots that they began with.
    pub fn node(&self, index: usize) -> &Redis {
        &self.nodes[index].redis
    }

    /// The same, to stop and start it.
    pub fn node_mut(&mut self, index: usize) -> &mut Redis {
        &mut self.nodes[index].redis
    }

    /// Adds a replica of a master, and returns its number among the nodes.
    pub async fn add_replica(&mut self, of: usize) -> usize {
        let node = Node::start().await;
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
        replica
    }

    /// Which node owns a slot, as the nodes say themselves.
    ///
    /// # Panics
    /// Where none says that it does.
    pub async fn owner(&self, slot: u16) -> usize {
        match self.try_owner(slot).await {
            Some(index) => index,
            None => panic!("nobody owns slot {slot}"),
        }
    }

    /// The same; `None` where none of those that answer says that it does.
    pub async fn try_owner(&self, slot: u16) -> Option<usize> {
        for (index, node) in self.nodes.iter().enumerate() {
            let Ok(Value::Array(rows)) = node.redis.try_run(&["CLUSTER", "SLOTS"]).await else {
                continue;
            };
            let owner = rows.into_iter().find_map(|row| owner_in(row, slot));
            if owner.is_some_and(|id| id == node.id) {
                return Some(index);
            }
        }
        None
    }

    /// Waits until a node is the replica of another, and in step with it.
    pub async fn follows(&self, index: usize, master: usize) {
        let address = self.nodes[master].redis.address();
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
    /// Where it fails.
    pub async fn run<T: FromRedisValue>(&self, key: &str, words: &[&str]) -> T {
        let owner = self.owner(slot_of(key.as_bytes())).await;
        self.nodes[owner].redis.run(words).await
    }

    /// Begins to move a slot: from now on new keys are taken by `to`.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, from, to) = (slot.to_string(), &self.nodes[from], &self.nodes[to]);
        let _: () = to.redis.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id]).await;
        let _: () = from.redis.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id]).await;
    }

    /// Moves one key of the slot that is on its way, or the first that there is; `false` when
    /// there is none left.
    pub async fn move_key(&self, slot: u16, from: usize, to: usize, key: Option<&str>) -> bool {
        let (text, source) = (slot.to_string(), &self.nodes[from].redis);
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
        let _: String = source.run(&["MIGRATE", host, port, &key, "0", "5000"]).await;
        true
    }

    /// Gives the slot to `to`, once all keys are there.
    pub async fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let (text, id) = (slot.to_string(), &self.nodes[to].id);
        for index in [to, from] {
            let node = &self.nodes[index].redis;
            let _: () = node.run(&["CLUSTER", "SETSLOT", &text, "NODE", id]).await;
        }
        // The others hear of it by themselves.
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

    /// A raw connection to one node.
    pub async fn raw(&self, index: usize) -> RespClient {
        RespClient::connect(&self.nodes[index].redis.address()).await
    }

    /// What one node answers to one command.
    pub async fn ask(&self, index: usize, words: &[&str]) -> Resp {
        self.raw(index).await.call(words).await
    }
}

impl Node {
    /// Whether it has heard of the replica of a master, and of the slots of that master: a replica
    /// that does not know these would not take over.
    async fn knows_replica(&self, replica: &str, master: &str) -> bool {
        let nodes: String = self.redis.try_run(&["CLUSTER", "NODES"]).await.unwrap_or_default();
        let line = |id: &str| nodes.lines().find(|line| line.starts_with(id)).unwrap_or_default();
        let is_known = line(replica).split(' ').nth(3) == Some(master);
        is_known && line(master).split(' ').nth(8).is_some()
    }

    async fn start() -> Self {
        // The default bus port, 10000 above, could be another test's.
        let bus_port = ports::unused();
        let options = [
            ("cluster-enabled", "yes"),
            ("cluster-port", &bus_port.to_string()),
            ("cluster-node-timeout", "1500"),
            ("cluster-require-full-coverage", "no"),
            ("cluster-replica-validity-factor", "0"),
            // A full copy begins at once: the default waits five seconds for more replicas.
            ("repl-diskless-sync-delay", "0"),
        ];
        let redis = Redis::with(&options).await;
        let id = redis.run(&["CLUSTER", "MYID"]).await;
        Self { redis, id, bus_port }
    }

    async fn meet(&self, other: &Self) {
        let address = other.redis.address();
        let (host, port) = address.split_once(':').expect("host:port");
        let bus_port = other.bus_port.to_string();
        let _: () = self.redis.run(&["CLUSTER", "MEET", host, port, &bus_port]).await;
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
