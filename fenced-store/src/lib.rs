//! The guard: it stands in front of a datastore and refuses every operation whose fencing token is
//! lower than the highest it has seen.
//!
//! [`verdict`] is the rule, [`rules`] say which lock protects which resource, [`fencing`] reads the
//! token of a request, [`stores`] are the datastores, [`doors`] are the front doors, and
//! [`app`] puts them together.

pub mod app;
pub mod config;
pub mod counters;
mod credible;
pub mod doors;
pub mod etag;
pub mod fail_points;
mod failure;
pub mod fencing;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod guard;
pub mod https;
pub mod key;
pub mod lock_servers;
pub mod observe;
mod postgres_pack;
pub mod process;
pub mod refusals;
pub mod report;
pub mod rules;
pub mod settings;
pub mod stores;
pub mod verdict;

pub use stores::commit::FolderError;
