//! Fuzz target: replies of a cluster's nodes, as a client gets them.

use bytes::BytesMut;

use super::super::resp::Protocol;
use super::super::resp::reply::{ReplyScanner, Scan};
use super::super::resp::request::{Parsed, RequestLimits, RequestParser};
use super::reply;
use super::shape::Shape;

/// A command and the reply to it. In both protocols a client gets one reply, whole: what is in it
/// cannot end it early.
pub(crate) fn replies(input: &[u8]) {
    let mut parser = RequestParser::new(RequestLimits::default());
    let Ok(Parsed::Complete { len, .. }) = parser.parse(input) else { return };
    let command = parser.command(input);
    let Ok(value) = redis::parse_redis_value(&input[len..]) else { return };
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut out = BytesMut::new();
        reply::encode(&mut out, value.clone(), Shape::from_command(command, protocol), protocol);
        let scan = ReplyScanner::new().scan(&out);
        let expected = Scan { consumed: out.len(), done: true };
        assert_eq!(scan, Ok(expected), "{protocol:?}: {}", out.escape_ascii());
    }
    let direction = super::slots::direction(&String::from_utf8_lossy(&input[len..]), "host:1");
    assert!(direction.len() <= input.len() * 3 + 8);
}
