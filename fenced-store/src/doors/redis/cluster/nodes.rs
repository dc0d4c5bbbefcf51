//! The nodes: a verified link to each master, and the map of slots to masters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis_link::{
    ClusterTarget, LinkOptions, LinkState, Product, RedisLink, Script, Verifier, info_field,
    load_scripts,
};
use service_kit::Kit;
use service_kit::health::Status;
use tokio::sync::{Notify, OnceCell};

use super::super::commands::CommandTable;
use super::super::server_facts::ServerFacts;
use super::slots::{SlotMap, direction};
use crate::stores::redis::judge;

/// Interval of reading the map in the background.
const REFRESH_EVERY: Duration = Duration::from_secs(15);
/// The least time between two readings of the map, in milliseconds.
const REFRESH_PAUSE_MS: u64 = 100;
/// Pause before an unreachable node is retried, in milliseconds.
const UNREACHABLE_MS: u64 = 500;
/// Name of the readiness check.
const HEALTH: &str = "redis-cluster";

/// Links and map. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    inner: Arc<NodesParts>,
}

#[derive(Debug)]
struct NodesParts {
    target: ClusterTarget,
    verifier: Arc<NodeVerifier>,
    kit: Kit,
    options: LinkOptions,
    map: RwLock<SlotMap>,
    links: Mutex<HashMap<String, Arc<Node>>>,
    wanted: Notify,
    /// When the map was read last, on the monotonic clock; one reading at a time.
    reading: tokio::sync::Mutex<Option<u64>>,
}

#[derive(Debug, Default)]
struct Node {
    link: OnceCell<RedisLink>,
    /// Time and reason of the last failed connection attempt.
    failed: Mutex<Option<(u64, String)>>,
}

impl Nodes {
    /// Reads the map from the first seed that answers, links every master, and follows the cluster
    /// from then on.
    ///
    /// # Errors
    /// A sentence with the address and the cause, also where a slot has no owner.
    pub(super) async fn open(
        target: ClusterTarget,
        script: Script,
        kit: &Kit,
    ) -> Result<Self, String> {
        let verifier =
            Arc::new(NodeVerifier { script, table: RwLock::default(), facts: RwLock::default() });
        let nodes = Self {
            inner: Arc::new(NodesParts {
                target,
                verifier,
                kit: kit.clone(),
                options: LinkOptions::default(),
                map: RwLock::new(SlotMap::new(0, &[])),
                links: Mutex::default(),
                wanted: Notify::new(),
                reading: tokio::sync::Mutex::default(),
            }),
        };
        nodes.read_map().await?;
        let map = nodes.map();
        if let Some(slot) = (0..16384).find(|slot| map.owner(*slot).is_none()) {
            return Err(format!(
                "the cluster {} serves no slot {slot}: assign all slots to its masters",
                nodes.inner.target
            ));
        }
        for address in map.masters() {
            nodes.link(address).await?;
        }
        kit.tasks.spawn(follow(nodes.clone()));
        Ok(nodes)
    }

    /// Map as read last.
    pub(super) fn map(&self) -> SlotMap {
        self.inner.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Addresses and login of the nodes.
    pub(super) fn target(&self) -> &ClusterTarget {
        &self.inner.target
    }

    /// Table of commands, from the node that was verified last; `None` before the first one is.
    pub(super) fn command_table(&self) -> Option<Arc<CommandTable>> {
        self.inner.verifier.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Facts of the node that was verified last.
    pub(super) fn server_facts(&self) -> Arc<ServerFacts> {
        let facts = &self.inner.verifier.facts;
        Arc::clone(&facts.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the link to a node, and connects if there is none yet.
    ///
    /// # Errors
    /// A sentence if the node is unreachable or unusable.
    pub(super) async fn link(&self, address: &str) -> Result<RedisLink, String> {
        let node = Arc::clone(self.links().entry(address.to_owned()).or_default());
        if let Some(link) = node.link.get() {
            return Ok(link.clone());
        }
        let NodesParts { target, verifier, kit, options, .. } = &*self.inner;
        let now_ms = kit.clock.monotonic_ms();
        if let Some((at_ms, reason)) = &*lock(&node.failed)
            && now_ms < at_ms + UNREACHABLE_MS
        {
            return Err(reason.clone());
        }
        let start = async || {
            let node = target.node(address).ok_or_else(|| format!("{address} is no address"))?;
            let verifier = Arc::clone(verifier) as Arc<dyn Verifier>;
            RedisLink::start(node, *options, verifier, &kit.tasks).await
        };
        let link = node.link.get_or_try_init(start).await.cloned();
        link.inspect_err(|reason| *lock(&node.failed) = Some((now_ms, reason.clone())))
    }

    /// Returns a link to a master that can be used now.
    ///
    /// # Errors
    /// A sentence if there is none.
    pub(super) async fn any(&self) -> Result<RedisLink, String> {
        let mut last = "the cluster has no master".to_owned();
        for address in self.map().masters() {
            match self.link(address).await {
                Ok(link) => match link.state() {
                    LinkState::Up(_) => return Ok(link),
                    LinkState::Down(reason) => last = reason,
                },
                Err(reason) => last = reason,
            }
        }
        Err(last)
    }

    /// Records a MOVED reply: another node owns the slot.
    pub(super) fn moved(&self, slot: u16, message: &str, asked: &str) {
        let owner = direction(message, asked);
        let mut map = self.inner.map.write().unwrap_or_else(PoisonError::into_inner);
        let changed = map.with_owner(slot, &owner);
        *map = changed;
        drop(map);
        self.refresh_soon();
    }

    /// Requests a reading of the map in the background.
    pub(super) fn refresh_soon(&self) {
        self.inner.wanted.notify_one();
    }

    /// Reads the map, unless it changed since version `seen` or was read just before.
    pub(super) async fn refresh(&self, seen: u64) {
        let mut reading = self.inner.reading.lock().await;
        let now_ms = self.inner.kit.clock.monotonic_ms();
        let is_recent = reading.is_some_and(|at_ms| now_ms < at_ms + REFRESH_PAUSE_MS);
        if is_recent || self.map().version() != seen {
            return;
        }
        if let Err(reason) = self.read_map().await {
            tracing::debug!(reason, "the slots of the cluster are not known anew");
        }
        *reading = Some(self.inner.kit.clock.monotonic_ms());
    }

    /// Reads the map from the first node that replies, reachable ones first.
    async fn read_map(&self) -> Result<(), String> {
        let mut reasons = Vec::new();
        for address in self.informants() {
            let timeout = self.inner.options.connect_timeout;
            match self.inner.target.slots(&address, timeout).await {
                Ok(ranges) => {
                    let mut map = self.inner.map.write().unwrap_or_else(PoisonError::into_inner);
                    let read = SlotMap::new(map.version(), &ranges);
                    *map = read.clone();
                    drop(map);
                    self.forget_others(&read);
                    return Ok(());
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Err(format!(
            "no node of {} says who owns its slots: {}",
            self.inner.target,
            reasons.join("; ")
        ))
    }

    fn informants(&self) -> Vec<String> {
        let is_up = |node: &Node| {
            node.link.get().is_some_and(|link| matches!(link.state(), LinkState::Up(_)))
        };
        let mut all: Vec<String> = self
            .links()
            .iter()
            .filter(|(_, node)| is_up(node))
            .map(|(address, _)| address.clone())
            .collect();
        all.extend(self.inner.target.seeds());
        all.extend(self.map().masters().iter().cloned());
        let mut seen = std::collections::HashSet::new();
        all.retain(|address| seen.insert(address.clone()));
        all
    }

    /// Closes the links to nodes that are no masters any more.
    fn forget_others(&self, map: &SlotMap) {
        self.links().retain(|address, node| {
            let is_master = map.masters().contains(address);
            if let (false, Some(link)) = (is_master, node.link.get()) {
                link.close();
            }
            is_master
        });
    }

    /// Verifies every node again: an operator may have changed its settings. A node that fails
    /// takes its link down.
    async fn verify_again_all(&self) {
        let links: Vec<RedisLink> =
            self.links().values().filter_map(|node| node.link.get().cloned()).collect();
        for link in links {
            let _ = link.verify_again(link.generation()).await;
        }
    }

    /// Reports to readiness which masters are unusable.
    fn report(&self) {
        let map = self.map();
        let links = self.links();
        let down = map.masters().iter().find_map(|address| {
            match links.get(address).and_then(|node| node.link.get()).map(RedisLink::state) {
                Some(LinkState::Up(_)) => None,
                Some(LinkState::Down(reason)) => Some(reason),
                None => Some(format!("there is no connection to {address}")),
            }
        });
        drop(links);
        let status = down.map_or(Status::Ok, Status::Failing);
        self.inner.kit.health.set(HEALTH, status);
    }

    fn links(&self) -> MutexGuard<'_, HashMap<String, Arc<Node>>> {
        lock(&self.inner.links)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the map now and then, and whenever a direction of the cluster said that it is old.
async fn follow(nodes: Nodes) {
    let stop = nodes.inner.kit.tasks.shutdown_token();
    loop {
        nodes.report();
        tokio::select! {
            () = stop.cancelled() => return,
            () = nodes.inner.wanted.notified() => {}
            () = tokio::time::sleep(REFRESH_EVERY) => nodes.verify_again_all().await,
        }
        nodes.refresh(nodes.map().version()).await;
        for address in nodes.map().masters() {
            // `report` and the reply to each command name a node that is unreachable.
            let _ = nodes.link(address).await;
        }
    }
}

/// Checks the process behind each connection to a node.
#[derive(Debug)]
struct NodeVerifier {
    script: Script,
    table: RwLock<Option<Arc<CommandTable>>>,
    facts: RwLock<Arc<ServerFacts>>,
}

#[async_trait]
impl Verifier for NodeVerifier {
    async fn verify(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        let info: String = redis::cmd("INFO")
            .query_async(connection)
            .await
            .map_err(|error| format!("a node of the cluster did not answer INFO: {error}"))?;
        judge(&info)?;
        if info_field(&info, "cluster_enabled") != Some("1") {
            return Err("Redis is not part of a cluster; write redis:// for it".to_owned());
        }
        let commands = redis::cmd("COMMAND")
            .query_async::<redis::Value>(connection)
            .await
            .map_err(|error| format!("a node of the cluster did not answer COMMAND: {error}"))?;
        let table = CommandTable::from_reply(&commands)?;
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(table));
        let hello = redis::cmd("HELLO")
            .query_async::<redis::Value>(connection)
            .await
            .map_err(|error| format!("a node of the cluster did not answer HELLO: {error}"))?;
        let facts = ServerFacts::from_hello(hello).ok_or("the reply to HELLO cannot be read")?;
        *self.facts.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
        if let Some(untested) = Product::from_info(&info).and_then(|product| product.untested()) {
            tracing::warn!("{untested}");
        }
        load_scripts(connection, &[&self.script]).await
    }
}
