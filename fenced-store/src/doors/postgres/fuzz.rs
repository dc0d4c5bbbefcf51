//! Entry points of the fuzzer.

use bytes::BytesMut;

use super::startup::FirstPacket;
use super::traffic::Traffic;

/// Reads any bytes as a first packet, and as both directions of a session.
pub(crate) fn frames(data: &[u8]) {
    let _ = FirstPacket::read(data);
    let (one, two) = data.split_at(data.len() / 2);
    let mut traffic = Traffic::new();
    let mut out = BytesMut::new();
    let _ = traffic.sent(one).and_then(|()| traffic.sent(two));
    let _ = traffic.received(one, &mut out).and_then(|()| traffic.received(two, &mut out));
    assert!(out.len() <= data.len(), "bytes were made up");
}
