//! The replies that hyper makes by itself, told as problems.
//!
//! A request whose head cannot be read never reaches the router: hyper answers with an empty 400,
//! 414 or 431 and closes. Such a reply is recognised by its exact shape (nothing of ours is empty,
//! closes the connection and lacks a request id) and replaced by one with a problem body.

use fence_protocol::{Code, Problem};

use crate::ids;

/// Longer than any reply that hyper makes by itself.
const LONGEST_BYTES: usize = 200;

/// What is sent instead, and how much of it has been sent.
#[derive(Debug)]
pub(super) struct Replacement {
    bytes: Vec<u8>,
    sent: usize,
}

impl Replacement {
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes).min(self.bytes.len());
    }
}

/// The reply to send instead of `written`, when that is one that hyper made by itself.
pub(super) fn replacement_of(written: &[u8]) -> Option<Replacement> {
    if written.get(9) != Some(&b'4') || written.len() > LONGEST_BYTES {
        return None;
    }
    let head = std::str::from_utf8(written).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?;
    let plain = lines.all(|line| {
        line == "connection: close" || line == "content-length: 0" || line.starts_with("date: ")
    });
    let (reason, detail) = meaning(status)?;
    let problem = Problem::new(Code::InvalidRequest, detail)
        .hint("Send a smaller, well-formed request; nothing was changed.");
    plain.then(|| Replacement { bytes: render(status, reason, problem), sent: 0 })
}

/// The reply to a head that did not arrive in time, of which hyper knows nothing.
pub(super) fn late_head() -> Vec<u8> {
    let problem =
        Problem::new(Code::RequestTimeout, "the head of the request did not arrive in time");
    render("408", "Request Timeout", problem)
}

fn meaning(status: &str) -> Option<(&'static str, &'static str)> {
    match status {
        "400" => Some(("Bad Request", "the request is not HTTP/1.1: its head cannot be read")),
        "414" => Some(("URI Too Long", "the path and query of the request are too long")),
        "431" => Some((
            "Request Header Fields Too Large",
            "the request has more header fields, or more bytes in them, than this server takes",
        )),
        _ => None,
    }
}

fn render(status: &str, reason: &str, problem: Problem) -> Vec<u8> {
    let id = ids::request_id();
    let mut problem = problem.with("request_id", &id);
    problem.status = status.parse().unwrap_or(problem.status);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/problem+json\r\n\
         x-request-id: {id}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replies_that_hyper_made_are_replaced() {
        let own = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\
            content-length: 0\r\ndate: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n";
        let text = String::from_utf8(replacement_of(own).unwrap().bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{text}");
        assert!(text.contains("\"status\":431"), "{text}");
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\nx-request-id: a\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 4",
            b"4",
            b"",
        ] {
            assert!(replacement_of(other).is_none(), "{other:?}");
        }
    }
}
