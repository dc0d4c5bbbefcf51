//! The reply to a head that did not arrive in time, of which hyper knows nothing.
//!
//! Other heads that cannot be read are refused by hyper itself, with an empty 400 or 431.

use fence_protocol::{Code, Problem};

use crate::ids;

/// A problem, 408, as the whole bytes of the reply; the connection is closed after it.
pub(super) fn reply() -> Vec<u8> {
    let id = ids::request_id();
    let problem =
        Problem::new(Code::RequestTimeout, "the head of the request did not arrive in time");
    let body = serde_json::to_string(&problem.with("request_id", &id)).unwrap_or_default();
    format!(
        "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/problem+json\r\n\
         x-request-id: {id}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
