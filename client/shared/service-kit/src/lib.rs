//! Parts that lock-server and fenced-store share: the listener with its limits, problem responses,
//! request ids, metrics, health, telemetry, tracked tasks, clocks, ids and layered configuration.
//!
//! A server builds a [`Kit`], merges [`operational_routes`] into its own routes, passes the whole
//! through [`http::finish`] and hands the result to [`listener::serve`].

pub mod clock;
pub mod config;
pub mod data_file;
pub mod flags;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod health;
pub mod health_check;
pub mod http;
pub mod ids;
mod kit;
pub mod limit;
pub mod listener;
pub mod login;
pub mod metrics;
mod notify;
pub mod otlp;
pub mod problem;
pub mod process;
mod request;
pub mod signals;
pub mod socket;
mod spans;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod trace;

pub use kit::{Kit, is_verbose, operational_routes};
