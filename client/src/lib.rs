//! The Rust SDK of Fencepost.
//!
//! A lock server can only promise that it grants a lock to one lease at a time. It cannot promise
//! that the holder notices the end of its lease: a process that was stopped, swapped out or
//! suspended resumes where it was. So a lease has two protections, and this crate applies both:
//!
//! - **Locally**, a lease is trusted for 0.8 of its time to live, counted from *before* the request
//!   was sent, on a clock that runs while the machine is suspended. When that time has passed, the
//!   work is cancelled ([`Lease::run`]) and fenced calls fail without being sent.
//! - **At the data**, every fenced call carries the lease's token, and the guard refuses a token
//!   that is lower than one it has seen. This holds even when the local protection came too late.
//!
//! ```no_run
//! # async fn example() -> Result<(), fence_client::Error> {
//! use std::time::Duration;
//!
//! let client = fence_client::Client::from_env()?;
//! let lease = client
//!     .lock("orders/42")
//!     .ttl(Duration::from_secs(15))
//!     .wait(Duration::from_secs(60))
//!     .acquire()
//!     .await?;
//! client.objects().put(&lease, "orders/42", "paid").await?;
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A fenced write without a lease does not compile:
//!
//! ```compile_fail,E0277
//! # async fn example(client: fence_client::Client) -> Result<(), fence_client::Error> {
//! client.objects().put(&"orders/42", "orders/42", "paid").await?;
//! # Ok(())
//! # }
//! ```
//!
//! For the unit tests of a program the feature `testing` starts both services in the process of the
//! test: `fence_client::testing::TestServers`.

pub mod acquire;
mod attempts;
pub mod auth;
pub mod client;
pub mod clock;
pub mod config;
pub mod election;
mod error;
mod event_parser;
pub mod events;
mod fence;
pub mod ids;
mod late_release;
mod lease;
mod limits;
mod lock_spec;
mod locks;
mod object_change;
mod objects;
pub mod reentrant;
mod retries;
mod sent_change;
mod session;
mod sessions;
mod settings_file;
pub mod tasks;
#[cfg(feature = "testing")]
pub mod testing;
pub mod timing;
mod transport;
mod trust;
mod wait_observer;

pub use acquire::LockRequest;
pub use auth::BearerToken;
pub use client::{Client, ClientBuilder};
pub use election::{Election, Leader, Leadership, Observed, Observer};
pub use error::{Error, ErrorKind, LostReason, NoTakeover};
pub use events::{EventStream, Events, StreamItem};
pub use fence::{Fence, HandedToken};
pub use lease::{Lease, Warnings};
pub use limits::Warning;
pub use locks::Locks;
pub use objects::{Applied, FencedStore, Object, PutRequest};
pub use reentrant::{Entry, Reentrant};
pub use session::{LeaseSet, MAX_LOCKS, Session, SessionBuilder, SessionLease, SessionLocks};
pub use sessions::Sessions;
pub use transport::in_trace;
pub use wait_observer::WaitObserver;

pub use fence_protocol as protocol;
pub use https_client::{TlsOptions, TlsSettingNames};
