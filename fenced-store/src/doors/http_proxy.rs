//! Front door before any HTTP datastore: a reverse proxy that drains.
//!
//! The datastore cannot compare tokens, so check and effect cannot be one step. [`lane`] waits
//! instead, and its guarantee is `bounded`. It holds if no request takes effect later than the
//! stated maximum request lifetime after its connection broke, if no client writes around the
//! proxy, and if only one proxy at a time is active for a lock. `conditions` make some writes
//! `atomic`.
//!
//! It also relies on HTTP: safe methods (GET, HEAD, OPTIONS) change nothing, and after a complete
//! final reply the upstream is done with the request, unless its status leaves the outcome unknown:
//! 202, 502, 504, 520 to 527 and those of `--upstream-unknown-status`. The path names the one
//! resource of a request: `second_name` refuses the known ways around it.

use std::sync::Arc;

use service_kit::http::{ApiRouter, HandlerFuture, HostNames, HttpOptions, finish_single};

use crate::stores::commit::FolderError;
use crate::stores::contract::StoreError;

mod body;
mod client;
mod conditional;
mod conditions;
mod election;
mod forward;
mod handler;
mod headers;
mod journal;
pub mod lane;
mod lanes;
mod leadership;
mod path_key;
mod second_name;
mod service;
mod term;
mod ticket;
mod upstream;

pub use handler::Proxy;
pub use path_key::PathKey;
pub use service::{LaneService, open};
pub use upstream::{
    ElectionOptions, LaneState, Upstream, UpstreamTlsFlags, error_status, probe_folder,
    upstream_url,
};

/// A state that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The folder cannot be opened.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The folder cannot be read.
    #[error("the proxy's state cannot be read: {0}")]
    State(#[from] StoreError),
    /// The Redis of a shared state cannot be used.
    #[error("the proxy's state: {0}")]
    Redis(String),
    /// The upstream does not pass the probe.
    #[error(
        "{url} fails the probe of --etag-probe under /{folder}: {reason}. Correct the upstream, or \
         leave --etag-probe out; then all writes are bounded"
    )]
    Probe {
        /// Address of the upstream.
        url: String,
        /// Folder of the probe.
        folder: String,
        /// The check that failed, and what was seen.
        reason: String,
    },
}

/// Makes the routes of the proxy: every path is the upstream's.
pub fn router(proxy: Proxy, options: HttpOptions, names: &HostNames) -> ApiRouter {
    let kit = proxy.guard().kit.clone();
    let proxy = Arc::new(proxy);
    let handle =
        move |request| -> HandlerFuture { Box::pin(handler::reply(Arc::clone(&proxy), request)) };
    finish_single(handle, "/{*path}", &kit, options, names)
}

#[cfg(test)]
mod tests;
