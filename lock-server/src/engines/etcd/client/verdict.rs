//! Meaning of an unsuccessful reply for the request. Pure: no I/O.

use bytes::Bytes;
use http::StatusCode;

/// Longest foreign text that is passed on, in bytes.
const TEXT_MAX: usize = 200;

/// The codes of gRPC that are needed.
mod code {
    pub(super) const INVALID_ARGUMENT: u32 = 3;
    pub(super) const NOT_FOUND: u32 = 5;
    pub(super) const PERMISSION_DENIED: u32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(super) const FAILED_PRECONDITION: u32 = 9;
    pub(super) const OUT_OF_RANGE: u32 = 11;
    pub(super) const UNIMPLEMENTED: u32 = 12;
    pub(super) const UNAUTHENTICATED: u32 = 16;
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// etcd took it and said no: nothing was done, here or at any other member.
    Refused {
        /// As gRPC numbers it.
        code: u32,
        /// In etcd's words.
        message: String,
    },
    /// The token of the login is not valid any more: nothing was done.
    LoginAgain,
    /// This cluster cannot do it now, or not for this user: nothing was done.
    Closed(String),
    /// etcd is full. It says so before it takes what writes, and also after it was done: where the
    /// quota was passed between the two.
    Full(String),
    /// This member did nothing; another may.
    NotDone(String),
    /// It may have been done, or may be done yet.
    Unclear(String),
}

/// The outcome of one call at one member.
#[derive(Debug)]
pub(super) enum Raw {
    /// The message of the reply.
    Reply(Bytes),
    /// A status other than OK, with its message.
    Refused(u32, String),
    /// It replies, and not in gRPC.
    Foreign(StatusCode, Bytes),
    /// The request was not sent.
    NotSent(String),
    /// The request was sent, and there is no reply.
    NoReply(String),
}

/// The verdict on the outcome of a call; [`Raw::Reply`] is read by its caller.
pub(super) fn from_raw(raw: Raw, user: Option<&str>) -> Verdict {
    match raw {
        Raw::Refused(code, message) => judge(code, &message, user),
        Raw::Foreign(status, text) => of_foreign(status, &text),
        Raw::NotSent(reason) => Verdict::NotDone(reason),
        Raw::NoReply(reason) => Verdict::Unclear(reason),
        Raw::Reply(_) => Verdict::Unclear("it replies with another message".to_owned()),
    }
}

/// The verdict on a status of gRPC that is not OK.
pub(super) fn judge(code: u32, message: &str, user: Option<&str>) -> Verdict {
    let message = shortened(message);
    let said = |what: &str| message.contains(what);
    if said("invalid auth token") || said("revision of auth store is old") {
        return Verdict::LoginAgain;
    }
    if said("user name is empty") {
        return Verdict::Closed(
            "etcd asks for a user: name one by --store-user, and its password by \
             --store-password-file"
                .to_owned(),
        );
    }
    match code {
        code::PERMISSION_DENIED => Verdict::Closed(format!(
            "etcd's user {} may not do this; grant its role readwrite on the prefix fencepost/ \
             (docs/operating/etcd.md)",
            user.unwrap_or("(none)")
        )),
        code::RESOURCE_EXHAUSTED if said("space exceeded") => Verdict::Full(
            "etcd is full: its alarm NOSPACE is raised and it takes no writes; compact, \
             defragment, then \"etcdctl alarm disarm\""
                .to_owned(),
        ),
        code::RESOURCE_EXHAUSTED if said("too many requests") => {
            Verdict::NotDone(format!("etcd refuses: {message}"))
        }
        code::UNAUTHENTICATED => Verdict::LoginAgain,
        code::UNIMPLEMENTED => Verdict::NotDone(format!(
            "it has no such call: {message}; is this the client URL of an etcd of version 3.4 or \
             later?"
        )),
        code::INVALID_ARGUMENT
        | code::NOT_FOUND
        | code::FAILED_PRECONDITION
        | code::OUT_OF_RANGE => Verdict::Refused { code, message },
        // A member without a leader turns a request away before it is proposed.
        _ if message.ends_with("no leader") => {
            Verdict::NotDone("etcd has no leader: fewer than a majority of it is up".to_owned())
        }
        // "leader changed", "request timed out", a member that stops, a reply that is too large for
        // a proxy, and whatever is not known.
        _ => Verdict::Unclear(format!("etcd replies with status {code}: {message}")),
    }
}

/// A reply that is not one of etcd's.
fn of_foreign(status: StatusCode, text: &[u8]) -> Verdict {
    let text = shortened(&String::from_utf8_lossy(text));
    let reason = format!("it replies with HTTP status {}: {text}", status.as_u16());
    match status.is_client_error() {
        true => Verdict::NotDone(format!("{reason}; is it an etcd?")),
        false => Verdict::Unclear(reason),
    }
}

/// The beginning of a text from outside, in one line.
pub(super) fn shortened(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = line.len().min(TEXT_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u32, message: &str) -> Verdict {
        judge(code, message, Some("locks"))
    }

    /// An operation that may have been carried out is never reported as not done.
    #[test]
    fn lost_leaders_leave_it_open() {
        for message in [
            "etcdserver: leader changed",
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: server stopped",
            "transport is closing",
            "context deadline exceeded",
            "anything new",
        ] {
            for code in [1, 2, 4, 13, 14] {
                assert!(matches!(refused(code, message), Verdict::Unclear(_)), "{code} {message}");
            }
        }
        assert!(matches!(refused(14, "etcdserver: no leader"), Verdict::NotDone(_)));
    }

    #[test]
    fn refusals_are_sentences() {
        let closed = |code, message: &str, expected: &str| match refused(code, message) {
            Verdict::Closed(text) => assert!(text.contains(expected), "{text}"),
            other => panic!("{message}: {other:?}"),
        };
        closed(7, "etcdserver: permission denied", "user locks may not");
        closed(3, "etcdserver: user name is empty", "--store-user");
        assert_eq!(refused(16, "etcdserver: invalid auth token"), Verdict::LoginAgain);
        assert!(matches!(refused(8, "etcdserver: too many requests"), Verdict::NotDone(_)));
        let too_large = "grpc: received message larger than max (5 vs. 4)";
        assert!(matches!(refused(8, too_large), Verdict::Unclear(_)));
        let full = refused(8, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Verdict::Full(text) if text.contains("NOSPACE")));
        let gone = refused(5, "etcdserver: requested lease not found");
        assert!(matches!(gone, Verdict::Refused { code: 5, .. }));
    }

    #[test]
    fn what_is_no_etcd_is_said_to_be_none() {
        let foreign = |status| of_foreign(StatusCode::from_u16(status).unwrap(), b"<html>");
        assert!(matches!(foreign(404), Verdict::NotDone(text) if text.contains("an etcd?")));
        assert!(matches!(foreign(502), Verdict::Unclear(_)));
        assert!(matches!(refused(12, "unknown service"), Verdict::NotDone(_)));
    }

    #[test]
    fn foreign_texts_are_short_and_one_line() {
        let long = "é\n".repeat(500);
        let text = shortened(&long);
        assert!(text.len() <= TEXT_MAX && !text.contains('\n'));
    }
}
