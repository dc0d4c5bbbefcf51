//! Commands that wait while their client leaves replies unread.
//!
//! Many clients send all commands of a pipeline before they read a reply. So the port receives on
//! while replies wait. It stops at a quarter of what one buffer may hold, and disconnects a client
//! that reads nothing then either: neither side could continue.

use std::net::SocketAddr;

use super::budget::{Budget, FREE};
use super::session::Identity;

/// The error of a client whose bytes do not fit into the memory of all clients.
pub(super) const BUFFERS_FULL: &str = "UNAVAILABLE the guard's buffers are full \
                                       (--max-redis-buffer-bytes); nothing of this command was \
                                       sent. Try again later, or send smaller commands";

/// Why a client is disconnected for which no more replies can be held.
pub(super) const REPLIES_FULL: &str = "the client has left more replies unread than its share of \
                                       the buffers holds, or other clients need their memory";

/// Why no error reaches a client that left.
pub(super) const LEFT_FULL: &str = "the client left while it read no replies, with as many \
                                    commands as may wait behind these";

/// Returns the number of bytes of commands from which on nothing more is received while the client
/// leaves replies unread. The last read may have brought [`READ_MAX`] beyond it, and as many bytes
/// of replies may wait before them: together half of what one buffer may hold.
///
/// [`READ_MAX`]: crate::doors::tcp::client_socket::READ_MAX
pub(super) fn limit(identity: &Identity, budget: &Budget) -> usize {
    match identity.is_stranger() {
        true => FREE,
        false => FREE.max(budget.share() / 4),
    }
}

/// Returns the error of a client that has read nothing at the limit; `reason` says for how long.
pub(super) fn error(
    reason: &str,
    unread: usize,
    held: usize,
    identity: &Identity,
    budget: &Budget,
) -> String {
    let limit = limit(identity, budget);
    let remedy = match identity.is_stranger() {
        true => "Present a token first, or read replies while you send",
        false => {
            "Read replies while you send, send shorter pipelines, or raise --max-redis-buffer-bytes"
        }
    };
    format!(
        "UNAVAILABLE {reason}: {unread} bytes of replies are unread, and {held} bytes of commands \
         wait behind them, where {limit} are the limit. This command and those behind it were not \
         sent. {remedy}"
    )
}

/// Logs that a client is disconnected.
pub(super) fn log_cut(identity: &Identity, unread: usize, reason: &str) {
    tracing::warn!(
        client = identity.id,
        address = identity.peer().as_ref().map(tracing::field::display::<&SocketAddr>),
        unread_bytes = unread,
        reason,
        "a client of the Redis port is disconnected: its share of --max-redis-buffer-bytes is full"
    );
}
