//! Lock servers as processes, three on the same nodes, under load on few locks, while nodes and
//! servers are killed and stand still. Checked: tokens rise lock by lock, no two holders at once as
//! clients see it, no id is granted twice, and everybody gets on.
//!
//! Leases are short here, so that what a dead server or a client that gave up leaves behind ends
//! within the run. Short by default; `FENCE_LONG=1` makes it long, and `FENCE_SEED` repeats a run's
//! choices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Locks, Reply};
use fence_tests::history::{Granted, History};
use fence_tests::key_file::lease_id;
use fence_tests::ports;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::seed::{Seed, rounds};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::redlock::judge;

pub(super) const SERVERS: usize = 3;
const WORKERS: usize = 6;
const LOCKS: [&str; 2] = ["a", "b"];
const TTL_MS: u64 = 3_000;
/// After this a client drops a request: a paused server answers nothing.
const GIVE_UP: Duration = Duration::from_secs(4);

/// Lock servers on the same nodes; a place is empty while its server is dead.
pub(super) struct Fleet {
    setups: Vec<Setup>,
    servers: Vec<Option<Server>>,
    pub(super) bases: Vec<String>,
}

impl Fleet {
    async fn on(nodes: &QuorumNodes) -> Self {
        Self::at([&nodes.url(); SERVERS]).await
    }

    /// Each by a URL of its own for the nodes.
    pub(super) async fn at(urls: [&String; SERVERS]) -> Self {
        let mut fleet = Self { setups: Vec::new(), servers: Vec::new(), bases: Vec::new() };
        for url in urls {
            let setup = Setup::lock_server(url).arg("--ended-retention").arg("10s");
            let setup = setup.listen(format!("127.0.0.1:{}", ports::unused()));
            let server = setup.start().await;
            fleet.bases.push(server.base.clone());
            fleet.servers.push(Some(server));
            fleet.setups.push(setup);
        }
        fleet
    }

    fn kill(&mut self, at: usize) {
        self.servers[at].take().expect("it is alive").process.kill();
    }

    async fn rise(&mut self, at: usize) {
        self.servers[at] = Some(self.setups[at].start().await);
    }

    fn process(&self, at: usize) -> &fence_tests::process::Process {
        &self.servers[at].as_ref().expect("it is alive").process
    }
}

/// Clients at work.
pub(super) struct Load {
    history: Arc<History>,
    grants: Arc<Vec<AtomicU64>>,
    stop: CancellationToken,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Client `n` keeps to server `n % 3`, but where it repeats a request that got no answer.
    pub(super) fn start(fleet: &Fleet, seed: &mut Seed) -> Self {
        let history = Arc::new(History::new());
        let grants: Arc<Vec<AtomicU64>> =
            Arc::new((0..WORKERS).map(|_| AtomicU64::new(0)).collect());
        let stop = CancellationToken::new();
        let locks: Vec<Locks> = fleet.bases.iter().map(|base| Locks::new(base)).collect();
        let worker = |number: usize| {
            let client = Client {
                number,
                locks: locks.clone(),
                history: history.clone(),
                seed: seed.fork(),
            };
            let grants = grants.clone();
            let stop = stop.clone();
            tokio::spawn(client.run(grants, stop))
        };
        let workers = (0..WORKERS).map(worker).collect();
        Self { history, grants, stop, workers }
    }

    fn grants_of(&self, worker: usize) -> u64 {
        self.grants[worker].load(Ordering::SeqCst)
    }

    /// Waits until there were so many more grants, at any client.
    async fn progress(&self, more: u64) {
        let all = || (0..WORKERS).map(|worker| self.grants_of(worker)).sum::<u64>();
        let goal = all() + more;
        until_true("the clients to make progress", || async {
            assert!(!self.workers.iter().any(JoinHandle::is_finished), "a client panicked");
            all() >= goal
        })
        .await;
    }

    /// Waits until each client was granted a lock once more, but those of these servers.
    pub(super) async fn everybody(&self, but_of_servers: &[usize]) {
        let workers = (0..WORKERS).filter(|worker| !but_of_servers.contains(&(worker % SERVERS)));
        let goals: Vec<(usize, u64)> =
            workers.map(|worker| (worker, self.grants_of(worker) + 1)).collect();
        for (worker, goal) in goals {
            let what = format!("client {worker} to get its turn");
            until_true(&what, || async { self.grants_of(worker) >= goal }).await;
        }
    }

    pub(super) async fn judge(self) {
        self.everybody(&[]).await;
        self.stop.cancel();
        for worker in self.workers {
            soon("a client to finish", worker).await.expect("no client panicked");
        }
        judge(&self.history);
    }
}

struct Client {
    number: usize,
    locks: Vec<Locks>,
    history: Arc<History>,
    seed: Seed,
}

impl Client {
    async fn run(mut self, grants: Arc<Vec<AtomicU64>>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let at = usize::try_from(self.seed.below(LOCKS.len() as u64)).expect("small");
            if let Some(lease) = self.acquire(LOCKS[at]).await {
                grants[self.number].fetch_add(1, Ordering::SeqCst);
                self.hold(LOCKS[at], &lease).await;
            }
        }
    }

    /// One request, at its own server or, for a repeat, at the next one.
    async fn post(&self, lock: &str, verb: &str, body: &Value, attempt: usize) -> Option<Reply> {
        let locks = &self.locks[(self.number + attempt) % SERVERS];
        let asked = locks.try_post(lock, verb, body.clone());
        tokio::time::timeout(GIVE_UP, asked).await.ok()?.ok()
    }

    /// A grant, by the first try or by a repeat of the same request; sometimes it stops trying, and
    /// leaves the outcome to its time to live.
    async fn acquire(&mut self, lock: &str) -> Option<LeaseReply> {
        let lease = lease_id();
        let owner = format!("client {}", self.number);
        let ask = json!({"lease_id": lease, "ttl_ms": TTL_MS, "wait_ms": 2_000, "owner": owner});
        let invoked_ns = self.history.now_ns();
        let tries = 1 + usize::try_from(self.seed.below(3)).expect("small");
        for attempt in 0..tries {
            match self.post(lock, "acquire", &ask, attempt).await {
                Some(reply) if reply.status == 200 => {
                    let granted = reply.lease();
                    self.history.granted(Granted {
                        lock: lock.to_owned(),
                        lease,
                        token: granted.token.get(),
                        ttl_ms: TTL_MS,
                        span: self.history.since(invoked_ns),
                        released_ns: None,
                        kept_ns: None,
                    });
                    return Some(granted);
                }
                Some(reply) if matches!(reply.status, 410 | 423) => return None,
                Some(reply) if matches!(reply.status, 503 | 504) => {}
                Some(reply) => panic!("acquire {lock}: {reply:?}"),
                None => {}
            }
            tokio::time::sleep(self.seed.time_ms(5, 40)).await;
        }
        None
    }

    async fn hold(&mut self, lock: &str, lease: &LeaseReply) {
        let ask = json!({"lease_id": lease.lease_id});
        tokio::time::sleep(self.seed.time_ms(0, 10)).await;
        if self.seed.below(3) == 0 {
            let invoked_ns = self.history.now_ns();
            let attempt = usize::try_from(self.seed.below(2)).expect("small");
            match self.post(lock, "renew", &ask, attempt).await {
                Some(reply) if reply.status == 200 => {
                    let renewed = reply.lease();
                    assert_eq!(renewed.token, lease.token, "a renewal changed the token");
                    self.history.kept(lease.lease_id, invoked_ns, TTL_MS);
                }
                Some(reply) => assert!(matches!(reply.status, 410 | 503 | 504), "{reply:?}"),
                None => {}
            }
        }
        self.history.releasing(lease.lease_id);
        for attempt in 0..SERVERS {
            let reply = self.post(lock, "release", &ask, attempt).await;
            if reply.is_some_and(|reply| matches!(reply.status, 200 | 410)) {
                return;
            }
        }
    }
}

/// Of three nodes one at a time is killed, and comes back with its votes; another is paused, and
/// resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_at_a_time_dies_or_is_paused() {
    let mut seed = Seed::of_run("quorum::fleet::a_node_at_a_time_dies_or_is_paused");
    let mut nodes = QuorumNodes::start(3).await;
    let fleet = Fleet::on(&nodes).await;
    let load = Load::start(&fleet, &mut seed);
    for round in 0..rounds(3, 60) {
        load.progress(6).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        nodes.node_mut(round % 3).kill();
        load.progress(6).await;
        nodes.node_mut(round % 3).start_again().await;
        load.progress(6).await;
        let still = nodes.node((round + 1) % 3).process();
        still.pause();
        load.progress(6).await;
        still.resume();
    }
    load.judge().await;
}

/// Of five nodes any two are away: dead, standing still, or one of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_nodes_are_away() {
    let mut seed = Seed::of_run("quorum::fleet::two_of_five_nodes_are_away");
    let mut nodes = QuorumNodes::start(5).await;
    let fleet = Fleet::on(&nodes).await;
    let load = Load::start(&fleet, &mut seed);
    for round in 0..rounds(2, 40) {
        load.progress(6).await;
        let dead = round % 5;
        let still = (round + 2) % 5;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        nodes.node_mut(dead).kill();
        nodes.node(still).process().pause();
        load.progress(6).await;
        nodes.node(still).process().resume();
        nodes.node_mut(still).kill();
        load.progress(6).await;
        nodes.node_mut(dead).start_again().await;
        nodes.node_mut(still).start_again().await;
    }
    load.judge().await;
}

/// A lock server dies in the middle of its proposals, and its clients repeat them elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_at_a_time_dies() {
    let mut seed = Seed::of_run("quorum::fleet::a_server_at_a_time_dies");
    let nodes = QuorumNodes::start(3).await;
    let mut fleet = Fleet::on(&nodes).await;
    let load = Load::start(&fleet, &mut seed);
    for round in 0..rounds(4, 100) {
        load.progress(4).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        fleet.kill(round % SERVERS);
        load.progress(4).await;
        fleet.rise(round % SERVERS).await;
    }
    load.judge().await;
}

/// A lock server is paused for longer than every lease that it has granted, and resumes its work:
/// no client that holds a lock by then is harmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_at_a_time_is_paused() {
    let mut seed = Seed::of_run("quorum::fleet::a_server_at_a_time_is_paused");
    let nodes = QuorumNodes::start(3).await;
    let fleet = Fleet::on(&nodes).await;
    let load = Load::start(&fleet, &mut seed);
    for round in 0..rounds(2, 40) {
        load.progress(4).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        let still = round % SERVERS;
        fleet.process(still).pause();
        // Their clients get what it held when its time is over, and what comes after.
        load.everybody(&[still]).await;
        tokio::time::sleep(Duration::from_millis(TTL_MS)).await;
        load.everybody(&[still]).await;
        fleet.process(still).resume();
        load.everybody(&[]).await;
    }
    load.judge().await;
}
