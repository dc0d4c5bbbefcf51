//! The Redis port over real processes: an existing Redis, raw protocol, and everything that may
//! happen to both between two steps of a hand-over.

mod after_fenced;
mod bad_input;
mod bad_store;
mod cluster;
mod confinement;
mod denials;
mod facts;
mod fail_points;
mod flush;
mod handover;
pub(crate) mod judges;
mod keyless;
mod link;
mod lost_marks;
mod matrix;
mod memory;
mod observing;
mod one_record;
mod order;
mod own;
mod password;
mod pipelines;
mod restart;
mod script_keys;
mod sentinel;
mod servers;
mod sessions;
mod silence;
mod spares;
mod state;
mod streams;
mod tls;

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::RULES;
use fence_tests::resp_client::RespClient;
use fence_tests::servers::{Server, Setup};
use fence_tests::tcp_queues;
use fence_tests::wait::until_true;

/// A guard with a port.
pub(crate) struct Port {
    pub(crate) server: Server,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
}

/// `fenced-store --store URL --redis-listen …` with the rules of the journal.
pub(crate) fn setup(url: &str) -> Setup {
    bare_setup(url).args(&["--redis-listen", "127.0.0.1:0"])
}

/// Without the address of the port.
pub(crate) fn bare_setup(url: &str) -> Setup {
    Setup::fenced_store(url).args(&RULES)
}

/// Starts it and waits until both listen.
pub(crate) async fn port(setup: &Setup) -> Port {
    let mut server = setup.start().await;
    let address = server.redis_port().await;
    Port { server, address }
}

/// Guards that keep the connections of tokens that were refused.
pub(crate) fn keeping_setup(url: &str) -> Setup {
    setup(url).args(&["--after-fenced", "keep"])
}

/// A guard whose rules protect nothing.
pub(crate) fn bare_open_setup(url: &str) -> Setup {
    Setup::fenced_store(url).args(&["--redis-listen", "127.0.0.1:0", "--default-rule", "open"])
}

/// As many of these before one Redis.
pub(crate) async fn keeping_ports(redis: &Redis, count: usize) -> Vec<Port> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(port(&keeping_setup(&redis.url())).await);
    }
    all
}

/// As many guards before one Redis.
pub(crate) async fn ports(redis: &Redis, count: usize) -> Vec<Port> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(port(&setup(&redis.url())).await);
    }
    all
}

/// Reads from a client whose reply began until its guard has received the whole reply: a hand-over
/// ends the connection to Redis, and what the guard has not read by then ends with it.
async fn receive_until_guard_has_all(client: &mut RespClient, redis: &Redis) {
    until_true("Redis to have sent the reply", || async {
        let list: String = redis.run(&["CLIENT", "LIST"]).await;
        list.lines().all(|line| line.contains(" oll=0 "))
    })
    .await;
    let address = redis.address();
    let (_, port) = address.rsplit_once(':').expect("a port");
    let port = port.parse().expect("a number");
    while !tcp_queues::are_empty(port) {
        // The guard reads no more than the client does.
        assert!(client.receive_some().await, "closed before the hand-over");
    }
}
