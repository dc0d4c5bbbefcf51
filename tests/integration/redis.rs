//! Both servers on a real Redis, and what may happen to it.

pub(crate) mod acl;
mod by_hand;
mod clock;
mod cluster;
mod differential;
mod faults;
mod forged;
mod guards;
mod hang_up;
mod key_prefix;
pub(crate) mod kinds;
mod late_replies;
mod lineage;
mod loss;
mod record_store;
mod recorded_locks;
mod records;
mod repeats;
mod replicas;
mod sentinel;
mod shared;
mod tls;
mod verdicts;
mod versions;

use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};

/// Milliseconds by which a pause may be longer than the lease that it waits for: the bound
/// in Redis is ahead by a second, and by the time that a commit is on its way.
const LATE_MS: u64 = 5_000;

/// A server that waits for a Redis that is slow, and that others do not soon take for dead.
pub(crate) async fn lock_server(redis: &Redis) -> Server {
    let patient = ["--store-timeout", "30s", "--liveness", "60s"];
    Setup::lock_server(&redis.url()).args(&patient).start().await
}
