//! Both servers on a real Redis, and what may happen to it.

mod differential;
mod faults;
mod guards;
mod kinds;
mod lineage;
mod records;
mod repeats;
mod shared;
mod verdicts;

use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};

pub(crate) async fn lock_server(redis: &Redis) -> Server {
    Setup::lock_server(&redis.url()).start().await
}
