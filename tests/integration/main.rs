//! Whole servers, as processes or in this one, over real stores, in one test binary.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests panic on failure and own their tasks"
)]

mod access;
mod campaign;
mod cli;
mod conformance;
mod console;
mod crash;
mod demos;
mod deploy;
mod docs;
mod doctor;
mod elect;
mod etcd;
mod fence_run;
mod generated;
mod guard;
mod guides;
mod harness;
mod https;
mod locks;
mod many_servers;
mod observability;
mod postgres;
mod postgres_pack;
mod postgres_port;
mod quorum;
mod redis;
mod redis_port;
mod refusals;
mod sdk;
mod sdk_packages;
mod sdk_scenarios;
mod session_faults;
mod standby;
mod start;
mod tidy;
mod tls;
mod watch;
mod web_pages;
