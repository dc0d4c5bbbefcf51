//! Three lock servers before one Redis, and clients that send each request to the next of them.
//!
//! A lease is acquired at one server, renewed at another and released at a third; a repeat after a
//! lost reply lands somewhere else. Short by default; `FENCE_LONG=1` makes it long, and
//! `FENCE_SEED` repeats a run's choices.

mod paused_server;
mod sessions;

use fence_tests::api::Locks;
use fence_tests::load::{Load, Rig, check};
use fence_tests::ports;
use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};
use fence_tests::servers::{Server, Setup};

const SERVERS: usize = 3;
const WORKERS: usize = 6;

/// The lock servers; a place is empty while its server is dead.
struct Fleet {
    setups: Vec<Setup>,
    servers: Vec<Option<Server>>,
    bases: Vec<String>,
}

impl Fleet {
    async fn before(redis: &Redis) -> Self {
        let mut fleet = Self { setups: Vec::new(), servers: Vec::new(), bases: Vec::new() };
        for _ in 0..SERVERS {
            let address = format!("127.0.0.1:{}", ports::unused());
            // A dead server's waiters are passed over after this; the default would make the run
            // wait for it most of the time.
            let setup = Setup::lock_server(&redis.url()).args(&["--liveness", "500ms"]);
            let setup = setup.listen(address);
            let server = setup.start().await;
            fleet.bases.push(server.base.clone());
            fleet.servers.push(Some(server));
            fleet.setups.push(setup);
        }
        fleet
    }

    fn round_robin(&self) -> Locks {
        let bases: Vec<&str> = self.bases.iter().map(String::as_str).collect();
        Locks::round_robin(&bases)
    }

    fn kill(&mut self, at: usize) {
        self.servers[at].take().expect("it is alive").process.kill();
    }

    async fn rise(&mut self, at: usize) {
        self.servers[at] = Some(self.setups[at].start().await);
    }
}

async fn load(fleet: &Fleet, seed: &mut Seed) -> (Load, Locks, Server) {
    let locks = fleet.round_robin();
    let guard = Setup::fenced_store("memory:").start().await;
    let rig = Rig {
        locks: vec![locks.clone()],
        guards: vec![guard.guard()],
        names: ["a", "b", "c"].map(str::to_owned).to_vec(),
    };
    (Load::start(&rig, WORKERS, seed), locks, guard)
}

async fn judge(load: Load, locks: &Locks) {
    load.progress(10).await;
    let (history, finally) = load.stop().await;
    check(&history, &finally);
    let answers = locks.0.answers();
    assert!(answers.iter().all(|count| *count > 0), "a server took no part: {answers:?}");
}

/// One at a time dies under load and comes back while the others serve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_may_die_under_load() {
    let mut seed = Seed::of_run("many_servers::each_may_die_under_load");
    let redis = Redis::start().await;
    let mut fleet = Fleet::before(&redis).await;
    let (load, locks, _guard) = load(&fleet, &mut seed).await;
    for round in 0..rounds(6, 200) {
        load.progress(3).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        let victim = round % SERVERS;
        fleet.kill(victim);
        // The clients go on: two of three requests find a server.
        load.progress(3).await;
        fleet.rise(victim).await;
    }
    judge(load, &locks).await;
}

/// Two of three die one after the other; the last one serves alone, and what the dead had granted
/// is renewed and released there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_one_serves_alone() {
    let mut seed = Seed::of_run("many_servers::the_last_one_serves_alone");
    let redis = Redis::start().await;
    let mut fleet = Fleet::before(&redis).await;
    let (load, locks, _guard) = load(&fleet, &mut seed).await;
    for round in 0..rounds(2, 60) {
        let last = (round + 1) % SERVERS;
        let dying: Vec<usize> = (0..SERVERS).filter(|at| *at != last).collect();
        for &at in &dying {
            load.progress(3).await;
            tokio::time::sleep(seed.time_ms(0, 40)).await;
            fleet.kill(at);
        }
        load.progress(6).await;
        for &at in &dying {
            fleet.rise(at).await;
        }
    }
    judge(load, &locks).await;
}
