//! Lanes of the HTTP proxy, as stores keep them.

use fence_protocol::Token;

/// State of an open lane: which writes may be at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Lowest token of these writes.
    pub token: Token,
    /// All of them are conditional.
    pub is_conditional: bool,
}
