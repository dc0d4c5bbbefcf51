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

use std::future::Future;

use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Locks, Reply};
use fence_tests::etcd_server::Etcd;
use fence_tests::key_file::lease_id;
use fence_tests::load::{Load, Rig};
use fence_tests::seed::Seed;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{until, until_true};
use serde_json::json;

/// A time to live that no test outlasts, and the longest wait that a request may ask for.
const LONG_MS: u64 = 300_000;
const WORKERS: usize = 6;
/// Prefix of the keys of locks: part of every commit of a lock, and of no sign of life.
const LOCK_KEY: &str = "fencepost/default/l/";

/// A lock server on this etcd, with a short time-out for replies of etcd.
fn setup(url: &str) -> Setup {
    Setup::lock_server(url).args(&["--store-timeout", "3s"])
}

/// A lock server on an etcd to which nothing is done, or that is killed: a busy machine may be slow
/// to reply.
fn patient(url: &str) -> Setup {
    Setup::lock_server(url).args(&["--store-timeout", "20s"])
}

async fn lock_server(etcd: &Etcd) -> Server {
    patient(&etcd.url()).start().await
}

async fn until_ready(server: &Server) {
    let api = server.locks().0;
    until_true("readyz", || async { api.get("/readyz").await.status == 200 }).await;
}

/// The answer to a request that is repeated while etcd takes longer than the server's time-out: a
/// busy machine may be that slow, also when the server is ready.
async fn answered<F: Future<Output = Reply>>(mut ask: impl FnMut() -> F) -> Reply {
    until("an answer", || {
        let reply = ask();
        async move { Some(reply.await).filter(|reply| !matches!(reply.status, 503 | 504)) }
    })
    .await
}

/// A grant that must be had, as soon as etcd answers in time.
async fn granted_soon(locks: &Locks, lock: &str, ttl_ms: u64) -> LeaseReply {
    let ask = json!({"ttl_ms": ttl_ms, "lease_id": lease_id()});
    answered(|| locks.acquire(lock, ask.clone())).await.lease()
}

/// Clients that compete for three locks at these servers.
async fn load(locks: Vec<Locks>, seed: &mut Seed) -> (Load, Server) {
    let guard = Setup::fenced_store("memory:").start().await;
    let names = ["a", "b", "c"].map(str::to_owned).to_vec();
    let rig = Rig { locks, guards: vec![guard.guard()], names };
    (Load::start(&rig, WORKERS, seed), guard)
}
