//! Envelopes of gRPC messages, and the status behind the last one.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use prost::Message;

/// Bytes before a message: one that says whether it is compressed, and four of its length.
pub(super) const ENVELOPE: usize = 5;

/// A message as it is sent.
pub(super) fn enveloped(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(ENVELOPE + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes.freeze()
}

/// Takes the first message of a buffer that has a whole one.
///
/// # Errors
/// A sentence where it is longer than `bytes_max`, or compressed.
pub(super) fn next_message(
    buffer: &mut BytesMut,
    bytes_max: usize,
) -> Result<Option<Bytes>, String> {
    let Some((&[kind, a, b, c, d], rest)) = buffer.split_first_chunk::<ENVELOPE>() else {
        return Ok(None);
    };
    if kind != 0 {
        return Err("its reply is compressed, or none of etcd's".to_owned());
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > bytes_max {
        return Err(format!("it replies more than {bytes_max} bytes"));
    }
    if rest.len() < length {
        return Ok(None);
    }
    buffer.advance(ENVELOPE);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// The status that headers or trailers name, with its message.
pub(super) fn status_of(headers: &HeaderMap) -> Option<(u32, String)> {
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers.get("grpc-message").map(HeaderValue::as_bytes).unwrap_or_default();
    let message = String::from_utf8_lossy(message);
    Some((code, percent_decode_str(&message).decode_utf8_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole() {
        let mut buffer = BytesMut::from(&b"\0\0\0\0\x02ab\0\0\0\0\0\0\0"[..]);
        assert_eq!(next_message(&mut buffer, 2).unwrap().unwrap(), &b"ab"[..]);
        assert_eq!(next_message(&mut buffer, 2).unwrap().unwrap(), &b""[..]);
        assert_eq!(next_message(&mut buffer, 2), Ok(None));
        buffer.extend_from_slice(b"\0\0\x03");
        assert!(next_message(&mut buffer, 2).unwrap_err().contains("more than 2 bytes"));
        let mut compressed = BytesMut::from(&b"\x01\0\0\0\x01a"[..]);
        assert!(next_message(&mut compressed, 2).is_err());
    }

    #[test]
    fn a_status_has_a_message() {
        let mut headers = HeaderMap::new();
        assert_eq!(status_of(&headers), None);
        headers.insert("grpc-status", HeaderValue::from_static("14"));
        assert_eq!(status_of(&headers), Some((14, String::new())));
        headers.insert("grpc-message", HeaderValue::from_static("no%20leader%"));
        assert_eq!(status_of(&headers), Some((14, "no leader%".to_owned())));
        headers.insert("grpc-status", HeaderValue::from_static("x"));
        assert_eq!(status_of(&headers), None);
    }
}
