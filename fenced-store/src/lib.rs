//! The guard: it stands in front of a datastore and refuses every operation whose fencing token is
//! lower than the highest it has seen.
//!
//! [`guard`] is the rule, [`rules`] say which lock protects which resource, [`store`] is the seam
//! to the datastore, [`api`] and [`proxy`] are the front doors, and [`app`] puts them together.

pub mod access;
pub mod api;
pub mod app;
mod commit;
pub mod config;
pub mod counters;
mod credible;
pub mod etag;
pub mod fail_points;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod guard;
pub mod key;
pub mod observe;
pub mod process;
pub mod proxy;
pub mod redis_port;
pub mod refusals;
pub mod report;
pub mod rules;
pub mod service;
pub mod settings;
pub mod store;

pub use commit::FolderError;
