//! Several nodes of etcd, and a network between them that can be split. Each node's peer port is
//! hidden behind a listener that finds out which node a connection comes from, and carries it
//! through a [`FaultProxy`] of that pair.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{Etcd, EtcdCluster, Place};
use crate::fault_proxy::{Fault, FaultProxy};

/// Nodes with ways between them; gone when dropped.
#[derive(Debug)]
pub struct EtcdNetwork {
    cluster: EtcdCluster,
    ways: Arc<Ways>,
    _accepting: Vec<AbortOnDropHandle<()>>,
}

/// The way from each node to each other one, by the place of both in the cluster.
#[derive(Debug)]
struct Ways {
    proxies: BTreeMap<(usize, usize), FaultProxy>,
    /// The nodes' process ids, once they are started.
    pids: watch::Sender<Vec<u32>>,
    /// Number of connections that each way has carried.
    carried: Mutex<BTreeMap<(usize, usize), usize>>,
}

impl EtcdNetwork {
    /// So many nodes, with a leader.
    ///
    /// # Panics
    /// If no ports are free, or the nodes do not find each other through the network.
    pub async fn start(count: usize) -> Self {
        let mut places: Vec<Place> = (0..count).map(Place::new).collect();
        let mut listeners = Vec::new();
        let mut proxies = BTreeMap::new();
        for (to, place) in places.iter_mut().enumerate() {
            let address = format!("127.0.0.1:{}", place.peer_port);
            for from in (0..count).filter(|from| *from != to) {
                proxies.insert((from, to), FaultProxy::before(&address).await);
            }
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            place.known_port = listener.local_addr().expect("an address").port();
            listeners.push(listener);
        }
        let ways = Ways { proxies, pids: watch::Sender::default(), carried: Mutex::default() };
        let ways = Arc::new(ways);
        let accepting = listeners.into_iter().enumerate().map(|(to, listener)| {
            let task = tokio::spawn(accept(listener, to, ways.clone()));
            AbortOnDropHandle::new(task)
        });
        let accepting = accepting.collect();
        let mut cluster = EtcdCluster::at(places);
        let pids = (0..count).map(|node| cluster.node(node).process().pid()).collect();
        ways.pids.send_replace(pids);
        cluster.ready().await;
        let network = Self { cluster, ways, _accepting: accepting };
        network.is_used().await;
        network
    }

    /// Its nodes.
    pub fn cluster(&self) -> &EtcdCluster {
        &self.cluster
    }

    /// One node.
    pub fn node(&self, index: usize) -> &Etcd {
        self.cluster.node(index)
    }

    /// From now on nothing passes between this node and the others, in either direction; nothing is
    /// closed either.
    pub fn cut_off(&self, node: usize) {
        for ((from, to), proxy) in &self.ways.proxies {
            if *from == node || *to == node {
                proxy.set(Fault::Blackhole);
            }
        }
    }

    /// Everything passes again; what was sent meanwhile comes late.
    pub fn heal(&self) {
        self.ways.proxies.values().for_each(FaultProxy::heal);
    }

    /// Waits until every node has reached every other one this way: otherwise a cut would cut
    /// nothing.
    async fn is_used(&self) {
        crate::wait::until_true("the nodes to use the network", || async {
            let carried = self.ways.carried.lock().unwrap();
            self.ways.proxies.keys().all(|way| carried.contains_key(way))
        })
        .await;
    }
}

async fn accept(listener: TcpListener, to: usize, ways: Arc<Ways>) {
    while let Ok((client, peer)) = listener.accept().await {
        tokio::spawn(carry(client, peer.port(), to, ways.clone()));
    }
}

/// Carries a connection, unless it is closed before its owner can be found.
async fn carry(mut client: TcpStream, port: u16, to: usize, ways: Arc<Ways>) {
    let mut started = ways.pids.subscribe();
    let Ok(pids) = started.wait_for(|pids| !pids.is_empty()).await.map(|pids| pids.clone()) else {
        return;
    };
    // The kernel takes its time where the machine has had many connections lately.
    let looking = tokio::task::spawn_blocking(move || owner(&pids, port));
    let Ok(Some(from)) = looking.await else { return };
    let Some(proxy) = ways.proxies.get(&(from, to)) else { return };
    *ways.carried.lock().unwrap().entry((from, to)).or_default() += 1;
    if let Ok(mut server) = TcpStream::connect(proxy.address()).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

/// Index of the process that has a connection from this port of 127.0.0.1, as the kernel reports.
fn owner(pids: &[u32], port: u16) -> Option<usize> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    // number, local address, remote address, state (01: established), …, and the inode in tenth
    // place.
    let local = format!(": 0100007F:{port:04X} ");
    let mut lines = table.lines().filter(|line| line.contains(&local));
    let fields = lines.find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(3) == Some(&"01")).then_some(fields)
    })?;
    let socket = format!("socket:[{}]", fields.get(9)?);
    pids.iter().position(|pid| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        targets.any(|target| target.to_str() == Some(&socket))
    })
}
