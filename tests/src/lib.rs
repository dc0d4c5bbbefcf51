//! Tools of Fencepost's tests: servers as processes or in this one, tools that hurt them, a
//! recorder with checkers for the invariants, and the conformance suites of the two store traits.
//!
//! Every wait has a deadline and waits for a condition. Whatever is random comes from one seed that
//! is printed and can be given back as `FENCE_SEED`.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "this crate is test code: it panics on failure, prints what happened, and owns the \
              real clock, environment and tasks of the test run"
)]

pub mod api;
pub mod binaries;
pub mod browser;
pub mod campaign;
pub mod certificates;
pub mod checks;
mod cluster_node;
pub mod conformance;
mod engines;
pub mod etcd_certificates;
pub mod etcd_server;
pub mod event_stream;
pub mod fault_proxy;
pub mod folder;
pub mod guards_in_turns;
pub mod history;
pub mod http2_frames;
pub mod http2_origin;
pub mod http_holders;
pub mod in_process;
pub mod in_turns;
pub mod journal;
pub mod journal_origin;
pub mod key_file;
pub mod load;
pub mod openapi;
pub mod paused_store;
pub mod ports;
pub mod postgres_client;
pub mod postgres_database;
pub mod postgres_journal;
pub mod postgres_server;
pub mod process;
pub mod psql;
pub mod quorum_nodes;
pub mod raw_http;
pub mod redis_clock;
pub mod redis_cluster;
pub mod redis_flood;
pub mod redis_holders;
pub mod redis_sentinel;
pub mod redis_server;
pub mod redis_users;
pub mod redis_writes;
pub mod resp_client;
mod resp_value;
pub mod scenario;
pub mod sentinel_group;
pub mod servers;
pub mod session_client;
pub mod session_load;
pub mod store_options;
pub mod tcp_queues;
pub mod tls_client;
pub mod tls_proxy;
pub mod upstream;
pub mod versioned_origin;
pub mod wait;

pub use fence_simulation::seed;
