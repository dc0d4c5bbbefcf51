//! SIGKILL at random moments under load. Short by default; `FENCE_LONG=1` makes it long, and
//! `FENCE_SEED` repeats a run's choices.

use fence_tests::load::{Load, Rig, check};
use fence_tests::ports;
use fence_tests::postgres_server::Postgres;
use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};
use fence_tests::servers::{DataDir, Server, Setup};

const WORKERS: usize = 6;

fn rig(locks: &[&Server], guards: &[&Server]) -> Rig {
    Rig {
        locks: locks.iter().map(|server| server.locks()).collect(),
        guards: guards.iter().map(|server| server.guard()).collect(),
        names: ["a", "b", "c"].map(str::to_owned).to_vec(),
    }
}

/// A server that comes back at the same address.
struct Phoenix {
    setup: Setup,
    server: Server,
}

impl Phoenix {
    async fn new(setup: Setup) -> Self {
        let setup = setup.listen(format!("127.0.0.1:{}", ports::unused()));
        let server = setup.start().await;
        Self { setup, server }
    }

    async fn die_and_rise(&mut self, seed: &mut Seed) {
        self.server.process.kill();
        tokio::time::sleep(seed.time_ms(0, 60)).await;
        self.server = self.setup.start().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_server_embedded() {
    let mut seed = Seed::of_run("crash::lock_server_embedded");
    let data = DataDir::new();
    let mut locks = Phoenix::new(Setup::lock_server(&data.store())).await;
    let guard = Setup::fenced_store("memory:").start().await;
    let load = Load::start(&rig(&[&locks.server], &[&guard]), WORKERS, &mut seed);
    for _ in 0..rounds(5, 200) {
        load.progress(3).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        locks.die_and_rise(&mut seed).await;
    }
    load.progress(6).await;
    let (history, finally) = load.stop().await;
    check(&history, &finally);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fenced_store_embedded() {
    let mut seed = Seed::of_run("crash::fenced_store_embedded");
    let data = DataDir::new();
    let locks = Setup::lock_server("memory:").start().await;
    let mut guard = Phoenix::new(Setup::fenced_store(&data.store())).await;
    let load = Load::start(&rig(&[&locks], &[&guard.server]), WORKERS, &mut seed);
    for _ in 0..rounds(5, 200) {
        load.progress(10).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        guard.die_and_rise(&mut seed).await;
    }
    load.progress(6).await;
    let (history, finally) = load.stop().await;
    check(&history, &finally);
}

/// Two of each on one Redis; any of the five may die.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_on_redis() {
    let mut seed = Seed::of_run("crash::everything_on_redis");
    let mut redis = Redis::start().await;
    // Checks that answered grants are kept, and not that grants wait after a possible loss.
    let lock_server = || Setup::lock_server(&redis.url()).args(&["--after-loss", "grant"]);
    let fenced_store = || Setup::fenced_store(&redis.url());
    let mut servers = [
        Phoenix::new(lock_server()).await,
        Phoenix::new(lock_server()).await,
        Phoenix::new(fenced_store()).await,
        Phoenix::new(fenced_store()).await,
    ];
    let [first, second, third, fourth] = &servers;
    let rig = rig(&[&first.server, &second.server], &[&third.server, &fourth.server]);
    let load = Load::start(&rig, WORKERS, &mut seed);
    for _ in 0..rounds(6, 200) {
        load.progress(3).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        match seed.below(6) {
            server @ 0..=3 => {
                let server = usize::try_from(server).expect("small");
                servers[server].die_and_rise(&mut seed).await;
            }
            _ => {
                redis.kill();
                tokio::time::sleep(seed.time_ms(0, 60)).await;
                redis.start_again().await;
            }
        }
    }
    load.progress(6).await;
    let (history, finally) = load.stop().await;
    check(&history, &finally);
}

/// Two lock servers on one PostgreSQL; any of the three may die.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_servers_on_postgres() {
    let mut seed = Seed::of_run("crash::lock_servers_on_postgres");
    let mut postgres = Postgres::start().await;
    let lock_server = || Setup::lock_server(&postgres.url()).args(&["--liveness", "500ms"]);
    let mut servers = [Phoenix::new(lock_server()).await, Phoenix::new(lock_server()).await];
    let guard = Setup::fenced_store("memory:").start().await;
    let rig = rig(&[&servers[0].server, &servers[1].server], &[&guard]);
    let load = Load::start(&rig, WORKERS, &mut seed);
    for _ in 0..rounds(6, 200) {
        load.progress(3).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        match seed.below(4) {
            server @ 0..=1 => {
                let server = usize::try_from(server).expect("small");
                servers[server].die_and_rise(&mut seed).await;
            }
            _ => {
                postgres.kill();
                tokio::time::sleep(seed.time_ms(0, 60)).await;
                postgres.start_again().await;
            }
        }
    }
    load.progress(6).await;
    let (history, finally) = load.stop().await;
    check(&history, &finally);
}
