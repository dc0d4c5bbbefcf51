//! etcd's own lock over gRPC, with the least of HTTP/2 and protobuf that it takes: one connection,
//! one call at a time.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Time to live of a client's lease, in seconds: longer than a benchmark.
const TTL_SEC: u64 = 3_600;

/// Start of a connection: the preface, SETTINGS that change nothing, and the largest window
/// for replies, so that it need never be opened further.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
                       \0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0";

// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
// Flags of frames: the second is of SETTINGS and PING, the last of HEADERS.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Bytes before a message: whether it is compressed, and its length.
const ENVELOPE: usize = 5;

/// A client with a connection and an etcd lease of its own.
pub(super) struct EtcdLock {
    stream: TcpStream,
    authority: String,
    /// Number of the next call's stream.
    next_stream: u32,
    out: Vec<u8>,
    received: Vec<u8>,
    /// Bytes of `received` that were read already.
    read: usize,
    lease: u64,
    /// Key that the lock is held by.
    key: Vec<u8>,
}

impl EtcdLock {
    /// Connects to `HOST:PORT` and begins a lease.
    pub(super) async fn open(at: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(at).await.map_err(|error| format!("{at}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut client = Self {
            stream,
            authority: at.to_owned(),
            next_stream: 1,
            out: BEGIN.to_vec(),
            received: Vec::with_capacity(4096),
            read: 0,
            lease: 0,
            key: Vec::new(),
        };
        let request = number_field(1, TTL_SEC);
        let granted = client.call("/etcdserverpb.Lease/LeaseGrant", &request).await?;
        client.lease = field(&granted, 2).ok_or("a grant without an id")?.0;
        Ok(client)
    }

    /// Waits until this client holds the lock.
    pub(super) async fn lock(&mut self, name: &str) -> Result<(), String> {
        let request = [bytes_field(1, name.as_bytes()), number_field(2, self.lease)].concat();
        let locked = self.call("/v3lockpb.Lock/Lock", &request).await?;
        self.key = field(&locked, 2).ok_or("a lock without a key")?.1.to_vec();
        Ok(())
    }

    pub(super) async fn unlock(&mut self) -> Result<(), String> {
        self.call("/v3lockpb.Lock/Unlock", &bytes_field(1, &self.key)).await.map(drop)
    }

    /// Sends a request and returns the message of the reply. Where etcd refuses there is no
    /// message: its reason is in the trailers, which are not decoded.
    async fn call(&mut self, path: &str, request: &[u8]) -> Result<Vec<u8>, String> {
        let stream = self.next_stream;
        self.next_stream += 2;
        frame(&mut self.out, HEADERS, END_HEADERS, stream, &headers(path, &self.authority));
        frame(&mut self.out, DATA, END_STREAM, stream, &enveloped(request));
        let mut message = Vec::new();
        loop {
            if !self.out.is_empty() {
                self.stream.write_all(&self.out).await.map_err(|error| error.to_string())?;
                self.out.clear();
            }
            let (kind, flags, payload) = self.frame().await?;
            match kind {
                DATA => message.extend_from_slice(&self.received[payload]),
                SETTINGS if flags & ACK == 0 => frame(&mut self.out, SETTINGS, ACK, 0, b""),
                PING if flags & ACK == 0 => {
                    frame(&mut self.out, PING, ACK, 0, &self.received[payload]);
                }
                RST_STREAM | GOAWAY => return Err(format!("{path}: etcd broke off the call")),
                _ => {}
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                let message = message.split_off(message.len().min(ENVELOPE));
                return match message.is_empty() {
                    true => Err(format!("{path}: etcd refused the call")),
                    false => Ok(message),
                };
            }
        }
    }

    /// Kind, flags and payload of the next frame.
    async fn frame(&mut self) -> Result<(u8, u8, std::ops::Range<usize>), String> {
        if self.read == self.received.len() {
            self.received.clear();
            self.read = 0;
        }
        loop {
            if let Some(&[a, b, c, kind, flags, ..]) = self.received.get(self.read..self.read + 9) {
                let begin = self.read + 9;
                let end = begin + u32::from_be_bytes([0, a, b, c]) as usize;
                if end <= self.received.len() {
                    self.read = end;
                    return Ok((kind, flags, begin..end));
                }
            }
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err("etcd closed the connection".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

fn enveloped(message: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(message);
    out
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Headers of a gRPC call (RFC 7541): entries of the static table, and literals that no table
/// keeps.
fn headers(path: &str, authority: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http`.
    let mut out = vec![0x83, 0x86];
    // `:path`, `:authority` and `content-type` by their numbers, 4, 1 and 31; `te` by its name.
    let literals: [(&[u8], &str); 4] = [
        (&[4], path),
        (&[1], authority),
        (&[15, 16], "application/grpc"),
        (&[0, 2, b't', b'e'], "trailers"),
    ];
    for (name, value) in literals {
        out.extend_from_slice(name);
        // None of them is as long as 127 bytes, where the length would take a second byte.
        out.push(u8::try_from(value.len()).unwrap_or(0));
        out.extend_from_slice(value.as_bytes());
    }
    out
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
    out
}

fn number_field(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes_field(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

/// A field of a message: its number or its length, and its bytes.
fn field(mut message: &[u8], wanted: u64) -> Option<(u64, &[u8])> {
    loop {
        let tag = read_varint(&mut message)?;
        let value = read_varint(&mut message)?;
        let bytes = match tag & 7 {
            0 => &[],
            2 => message.split_off(..usize::try_from(value).ok()?)?,
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some((value, bytes));
        }
    }
}

fn read_varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = message.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_others() {
        let other = bytes_field(1, &[0x12; 200]);
        let name = bytes_field(2, b"bench/1/7");
        let message = [other, name, number_field(3, u64::MAX)].concat();
        assert_eq!(field(&message, 2), Some((9, &b"bench/1/7"[..])));
        assert_eq!(field(&message, 3), Some((u64::MAX, &b""[..])));
        assert_eq!(field(&message, 4), None);
        for cut in 0..message.len() {
            assert_eq!(field(&message[..cut], 3), None, "{cut}");
        }
    }

    #[test]
    fn a_connection_begins_with_two_frames() {
        let mut frames = Vec::new();
        frame(&mut frames, SETTINGS, 0, 0, b"");
        frame(&mut frames, 8, 0, 0, &(0x7fff_ffff_u32 - 65_535).to_be_bytes());
        assert_eq!(BEGIN.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Some(&frames[..]));
    }

    #[test]
    fn frames_and_headers_are_as_the_standards_say() {
        let mut out = Vec::new();
        frame(&mut out, PING, ACK, 5, b"12345678");
        assert_eq!(out, b"\x00\x00\x08\x06\x01\x00\x00\x00\x0512345678");
        assert_eq!(enveloped(b"abc"), b"\x00\x00\x00\x00\x03abc");
        let expected =
            b"\x83\x86\x04\x02/a\x01\x01h\x0f\x10\x10application/grpc\x00\x02te\x08trailers";
        assert_eq!(headers("/a", "h"), expected);
    }
}
