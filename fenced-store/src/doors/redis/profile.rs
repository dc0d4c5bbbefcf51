//! Profile of a connection to Redis.

use super::resp::Protocol;
use super::tokens::HeldTokens;

/// Settings of a connection to Redis. Clients with equal profiles can share a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectionProfile {
    /// Tokens that the connection is registered under.
    pub(super) tokens: HeldTokens,
    /// Selected database.
    pub(super) db: i64,
    pub(super) protocol: Protocol,
}
