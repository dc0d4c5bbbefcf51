//! The reason why a server cannot be reached: no process listens, or it does not reply.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use tokio::net::TcpStream;

/// Result of a TCP connection over which nothing is sent.
#[derive(Debug)]
pub(super) enum Reachability {
    /// A process accepts connections. The system accepts them also for one that is paused.
    Open,
    /// No process accepts them, or no packet arrives there; with the cause.
    Closed(String),
    /// It could not be tried, as with a host name that is unknown; with the cause.
    Untried(String),
}

/// Connects to `host:port`, for at most `limit`.
pub(super) async fn reachability(address: &str, limit: Duration) -> Reachability {
    match tokio::time::timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Reachability::Open,
        Ok(Err(error)) if is_closed(&error) => Reachability::Closed(error.to_string()),
        Ok(Err(error)) => Reachability::Untried(error.to_string()),
        Err(_) => Reachability::Closed(format!("no connection within {} s", limit.as_secs())),
    }
}

fn is_closed(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied
            | ErrorKind::TimedOut
    )
}
