//! Messages as they arrive, and what a status means, for the fuzz target of etcd.

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue};

use super::envelope::{next_message, status_of};
use super::verdict::{judge, shortened};

/// The longest message that is taken.
const BYTES_MAX: usize = 64;

/// Bytes as messages one after the other.
pub(crate) fn messages(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    let mut left = buffer.len();
    while let Ok(Some(message)) = next_message(&mut buffer, BYTES_MAX) {
        assert!(message.len() <= BYTES_MAX && left == buffer.len() + message.len() + 5);
        left = buffer.len();
    }
}

/// Bytes as the message of a status.
pub(crate) fn verdicts(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from_static("8"));
    if let Ok(message) = HeaderValue::from_bytes(bytes) {
        headers.insert("grpc-message", message);
    }
    let Some((8, message)) = status_of(&headers) else { panic!("{headers:?}") };
    for code in 0..=17 {
        let _ = judge(code, &message, None);
    }
    let line = shortened(&String::from_utf8_lossy(bytes));
    assert!(line.len() <= 200 && !line.contains(char::is_control), "{line:?}");
}
