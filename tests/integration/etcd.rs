//! The lock server over real etcds, one node and several, and what happens when they are hurt.

mod another_life;
mod bad_input;
mod believers;
mod clock;
mod cluster;
mod faults;
mod flush;
mod hanging;
mod holes;
mod leaders;
mod loss;
mod lost;
mod pause;
mod reported_ttl;
mod restore;
mod same_id;
mod servers;
mod sessions;
mod split;
mod tools;

use fence_tests::api::Locks;
use fence_tests::etcd_server::Etcd;
use fence_tests::load::{Load, Rig};
use fence_tests::seed::Seed;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::until_true;

/// A time to live that no test outlasts.
const LONG_MS: u64 = 60_000;
const WORKERS: usize = 6;
/// Prefix of the keys of locks: part of every commit of a lock, and of no sign of life.
const LOCK_KEY: &str = "fencepost/default/l/";

/// A lock server on this etcd, with a short time-out for replies of etcd.
fn setup(url: &str) -> Setup {
    Setup::lock_server(url).args(&["--store-timeout", "3s"])
}

async fn lock_server(etcd: &Etcd) -> Server {
    setup(&etcd.url()).start().await
}

async fn until_ready(server: &Server) {
    let api = server.locks().0;
    until_true("readyz", || async { api.get("/readyz").await.status == 200 }).await;
}

/// Clients that compete for three locks at these servers.
async fn load(locks: Vec<Locks>, seed: &mut Seed) -> (Load, Server) {
    let guard = Setup::fenced_store("memory:").start().await;
    let names = ["a", "b", "c"].map(str::to_owned).to_vec();
    let rig = Rig { locks, guards: vec![guard.guard()], names };
    (Load::start(&rig, WORKERS, seed), guard)
}
