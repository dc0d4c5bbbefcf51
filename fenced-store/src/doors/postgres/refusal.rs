//! Errors of the port, as PostgreSQL's ErrorResponse: SQLSTATE, message, detail and hint.

use bytes::{BufMut as _, Bytes, BytesMut};
use fence_protocol::{Code, Token};
use service_kit::problem::Reject;

use super::frames;
use super::server::ServerError;
use crate::verdict::{Fence, Mark};

/// SQLSTATEs of the port; those of class `FE` are the fence's own.
pub(super) mod sqlstate {
    /// The token is below the mark.
    pub(crate) const STALE: &str = "FE412";
    /// Another lease has the same token.
    pub(crate) const COLLISION: &str = "FE409";
    /// A token is missing.
    pub(crate) const TOKEN_REQUIRED: &str = "FE428";
    /// The token cannot be read.
    pub(crate) const MALFORMED: &str = "FE400";
    /// The token is not genuine.
    pub(crate) const BAD_SIGNATURE: &str = "FE401";
    /// The token is of another lock or namespace.
    pub(crate) const WRONG_LOCK: &str = "FE403";
    /// Protocol violation.
    pub(crate) const PROTOCOL: &str = "08P01";
    /// The connection to the server failed.
    pub(crate) const CONNECTION: &str = "08006";
    /// No connection can be made.
    pub(crate) const UNREACHABLE: &str = "08001";
    /// Not allowed to log in so.
    pub(crate) const NOT_AUTHORIZED: &str = "28000";
    /// No such database here.
    pub(crate) const NO_DATABASE: &str = "3D000";
    /// Not offered.
    pub(crate) const NOT_SUPPORTED: &str = "0A000";
    /// The guard or the server stops.
    pub(crate) const SHUTDOWN: &str = "57P01";
    /// The server takes no sessions now.
    pub(crate) const NOT_NOW: &str = "57P03";
}

/// Advice to the holder of a token below the mark.
const STALE_HINT: &str = "Stop the work that the lock protected. Acquire the lock again and \
                          connect with the new token.";

/// Outcome of the statement that was under way at the end of a session.
pub(super) fn outcome(is_unknown: bool) -> &'static str {
    match is_unknown {
        true => "the outcome of the statement under way is unknown: it may have committed",
        false => "no statement was under way; an open transaction was rolled back",
    }
}

/// A fatal error: the connection ends behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// An error of the port.
    Own(Fields),
    /// An ErrorResponse of the server, passed on as it is.
    OfServer(Bytes),
}

/// Fields of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) sqlstate: &'static str,
    pub(super) message: String,
    pub(super) detail: String,
    pub(super) hint: String,
}

impl Refusal {
    pub(super) fn new(
        sqlstate: &'static str,
        message: impl Into<String>,
        detail: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::Own(Fields {
            sqlstate,
            message: message.into(),
            detail: detail.into(),
            hint: hint.into(),
        })
    }

    pub(super) fn protocol(message: impl Into<String>) -> Self {
        let hint = "Check that the program that connects is a PostgreSQL client.";
        Self::new(sqlstate::PROTOCOL, message, "", hint)
    }

    /// A `SET fence.token` that cannot be read.
    pub(super) fn token_statement() -> Self {
        let hint = "Send SET fence.token = '…' alone, with the fencing_credential in quotes.";
        let text = "the statement that sets fence.token cannot be read";
        Self::new(sqlstate::MALFORMED, text, "nothing was executed", hint)
    }

    /// A credential that was refused before it met the mark.
    pub(super) fn of_reject(reject: &Reject) -> Self {
        let sqlstate = match reject.code() {
            Code::BadSignature => sqlstate::BAD_SIGNATURE,
            Code::WrongLock | Code::Forbidden => sqlstate::WRONG_LOCK,
            Code::TokenRequired => sqlstate::TOKEN_REQUIRED,
            _ => sqlstate::MALFORMED,
        };
        let hint = "Send the fencing_credential that the lock server gave, as the password or by \
                    options='-c fence.token=…'.";
        Self::new(sqlstate, reject.problem().detail.clone(), "nothing was executed", hint)
    }

    pub(super) fn stale(fence: &Fence, mark: Mark) -> Self {
        let message = format!("token {} of lock {} is stale", fence.presented.token, fence.lock);
        Self::new(sqlstate::STALE, message, detail_of(fence, mark.token), STALE_HINT)
    }

    pub(super) fn collision(fence: &Fence, mark: Mark) -> Self {
        let message = format!(
            "token {} of lock {} belongs to another lease",
            fence.presented.token, fence.lock
        );
        let hint = "The lock server issued one token twice: report it, and acquire the lock again.";
        Self::new(sqlstate::COLLISION, message, detail_of(fence, mark.token), hint)
    }

    /// The error of a session that a higher token ended.
    pub(super) fn preempted(fence: &Fence, mark: Token, is_unknown: bool) -> Self {
        let message = format!("a newer holder of lock {} ended this session", fence.lock);
        let detail = format!("{}; {}", detail_of(fence, mark), outcome(is_unknown));
        Self::new(sqlstate::STALE, message, detail, STALE_HINT)
    }

    pub(super) fn unreachable(error: &ServerError) -> Self {
        match error {
            ServerError::Refused(frame) => Self::OfServer(frame.raw.clone()),
            ServerError::Broken(reason) => Self::new(
                sqlstate::UNREACHABLE,
                format!("the guard cannot use the PostgreSQL behind it: {reason}"),
                "nothing was executed",
                "Connect again later.",
            ),
        }
    }

    /// The message, for logs.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Own(fields) => fields.message.clone(),
            Self::OfServer(_) => "an error of the server".to_owned(),
        }
    }

    /// Encodes an ErrorResponse, tag and length included.
    pub(super) fn frame(&self) -> Bytes {
        let fields = match self {
            Self::OfServer(frame) => return frame.clone(),
            Self::Own(fields) => fields,
        };
        let Fields { sqlstate, message, detail, hint } = fields;
        let mut body = BytesMut::new();
        let parts = [
            (b'S', "FATAL"),
            (b'V', "FATAL"),
            (b'C', sqlstate),
            (b'M', message),
            (b'D', detail),
            (b'H', hint),
        ];
        for (kind, text) in parts.into_iter().filter(|(_, text)| !text.is_empty()) {
            body.put_u8(kind);
            body.extend(text.bytes().filter(|byte| *byte != 0));
            body.put_u8(0);
        }
        body.put_u8(0);
        frames::frame(b'E', &body).freeze()
    }
}

fn detail_of(fence: &Fence, mark: Token) -> String {
    format!("lock {}, token {}, mark {mark}", fence.lock, fence.presented.token)
}

#[cfg(test)]
mod tests {
    use super::super::server::ErrorFrame;
    use super::*;

    #[test]
    fn a_frame_can_be_read_back() {
        let refusal = Refusal::new(sqlstate::STALE, "me\0ssage", "detail", "");
        let frame = refusal.frame();
        let read = ErrorFrame::read(&frame).unwrap();
        assert_eq!((read.sqlstate(), read.message()), ("FE412", "message"));
        assert!(read.is_fatal());
        assert_eq!(super::super::frames::header(&frame), Ok(Some((b'E', frame.len()))));
    }
}
