//! Requests as the origin reads them.

use std::time::Instant;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// One whole request. A part of one has no effect.
#[derive(Debug)]
pub(super) struct OriginRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) token: u64,
    /// Name of the operation, from its `x-op` header.
    pub(super) op: String,
    /// Time at which the last part of it was read.
    pub(super) arrived: Instant,
}

impl OriginRequest {
    /// Reads one; `None` where the connection ends first.
    ///
    /// # Panics
    /// If it is none that the guard may send: without an exact length, or with a body of another
    /// operation.
    pub(super) async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Self> {
        let mut part = vec![0; 1 << 16];
        loop {
            if let Some((request, length)) = parse(buffer) {
                buffer.drain(..length);
                return Some(request);
            }
            match stream.read(&mut part).await {
                Ok(read) if read > 0 => buffer.extend_from_slice(&part[..read]),
                _ => return None,
            }
        }
    }
}

/// A request and its length in bytes; `None` while part of it is missing.
fn parse(bytes: &[u8]) -> Option<(OriginRequest, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).expect("a head of ASCII");
    let mut line = head.lines().next()?.split(' ');
    let method = line.next()?.to_owned();
    let path = line.next()?.to_owned();
    let header = |name: &str| {
        let lines = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.to_owned());
        assert!(found.next().is_none(), "two of {name}: {head}");
        value
    };
    assert_eq!(header("transfer-encoding"), None, "{head}");
    let length = header("content-length").map_or(0, |length| length.parse().expect("a length"));
    let body = bytes.get(end..end + length)?;
    let token = header("fencing-token").expect("a token");
    let token = token.split(';').next()?.parse().expect("a number");
    let op = header("x-op").expect("a name");
    assert!(
        length == 0 || body.starts_with(op.as_bytes()),
        "the body of another operation: {head}"
    );
    Some((OriginRequest { method, path, token, op, arrived: Instant::now() }, end + length))
}
