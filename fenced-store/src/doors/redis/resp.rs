//! RESP, the protocol of Redis and its clients, as a proxy needs it: ends of commands and replies,
//! arguments of commands, and the few replies of the guard itself.
//!
//! No I/O and no waiting. Commands are understood as Redis does or more strictly, never more
//! loosely: they are forwarded unchanged to a connection that other clients may share, where both
//! ends must agree on every boundary.

pub(crate) mod encode;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod inline;
mod length;
pub(crate) mod reply;
pub(crate) mod request;

/// The version of RESP that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    /// RESP2, the initial version of every connection.
    Resp2,
    /// RESP3, after `HELLO 3`.
    Resp3,
}

/// Bytes that are not RESP, or exceed a limit. The connection cannot be read any further.
///
/// The text follows `-ERR ` in the reply, in Redis' own words if it has any.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    /// The count behind `*` is not a plain number, or is above the limit of arguments.
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// The length behind `$` is not a plain number, or is by itself above the limit of a command.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    ExpectedBulk(u8),
    /// An argument is longer or shorter than announced. Redis would continue in the middle of it.
    #[error("Protocol error: expected CRLF after a bulk of {0} bytes")]
    BulkEnd(usize),
    /// The whole command exceeds the limit.
    #[error(
        "Protocol error: a command of at least {bytes} bytes is above the limit of {max} bytes; \
         split it, or raise the guard's limit"
    )]
    CommandTooLarge {
        /// Minimum size of the command, in bytes.
        bytes: usize,
        /// Limit, in bytes.
        max: usize,
    },
    /// More arguments than a client may send before it has presented a token.
    #[error("Protocol error: unauthenticated multibulk length; present a token first")]
    StrangersArguments,
    /// A longer argument than a client may send before it has presented a token.
    #[error("Protocol error: unauthenticated bulk length; present a token first")]
    StrangersBulk,
    /// An inline command has too many words.
    #[error("Protocol error: more than {0} arguments in an inline request")]
    InlineArguments(usize),
    /// An inline command without an end of line.
    #[error("Protocol error: too big inline request")]
    InlineTooLarge,
    /// A quote of an inline command is not closed, or something touches a closing quote.
    #[error("Protocol error: unbalanced quotes in request")]
    InlineQuotes,
    /// A zero byte in an inline command, in which Redis would never find the end of the line.
    #[error("Protocol error: zero byte in an inline request")]
    InlineZero,
    /// An HTTP request. Redis closes such connections, because a browser can be made to send them.
    #[error("Protocol error: this is an HTTP request, and this port speaks RESP")]
    Http,
    /// A reply does not begin with the type of a reply.
    #[error("Protocol error: unknown type '{}' of a reply", .0.escape_ascii())]
    ReplyType(u8),
    /// The length or count of a reply is not a plain number.
    #[error("Protocol error: invalid length of a reply")]
    ReplyLength,
    /// A bulk of a reply does not end at its length.
    #[error("Protocol error: expected CRLF after a bulk of a reply")]
    ReplyEnd,
}
