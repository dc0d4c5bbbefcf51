//! Replies of the listener itself, to what hyper never gets to see.
//!
//! Other heads that cannot be read are refused by hyper, with an empty 400 or 431.

use fence_protocol::{Code, Problem};

use crate::ids;

/// A problem, 408, for a head that did not arrive in time.
pub(super) fn late_head() -> Vec<u8> {
    let detail = "the head of the request did not arrive in time";
    reply("408 Request Timeout", Problem::new(Code::RequestTimeout, detail))
}

/// A problem, 400, for a client that speaks no TLS on a port that does.
pub(super) fn plain_text() -> Vec<u8> {
    let detail = "this port speaks TLS, and the client does not: begin the URL with https://";
    reply("400 Bad Request", Problem::new(Code::InvalidRequest, detail))
}

/// The whole bytes of a reply, after which the connection is closed.
fn reply(status: &str, problem: Problem) -> Vec<u8> {
    let id = ids::request_id();
    let body = serde_json::to_string(&problem.with("request_id", &id)).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\n\
         x-request-id: {id}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
