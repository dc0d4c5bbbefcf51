//! A client of HTTP/2 that sends any frame, and shows each that it gets.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A test that waits longer than this hangs. Packages without this crate use this file as well, so
/// that it is a limit of its own.
const HANG: Duration = Duration::from_secs(120);

/// First bytes of a connection.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames (RFC 9113 section 6).
#[allow(missing_docs, reason = "the names of the RFC say all")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Error codes of RST_STREAM and GOAWAY (RFC 9113 section 7).
#[allow(missing_docs, reason = "the names of the RFC say all")]
pub mod code {
    pub const NO_ERROR: u32 = 0;
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const REFUSED_STREAM: u32 = 7;
    pub const CANCEL: u32 = 8;
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

/// Flag of the last frame of a stream, and of the reply to SETTINGS and PING.
pub const END_STREAM: u8 = 1;
/// Flag of the last frame of a head.
pub const END_HEADERS: u8 = 4;

/// One unit of RFC 9113 section 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Type, one of [`kind`].
    pub kind: u8,
    /// Bits whose meaning depends on the type.
    pub flags: u8,
    /// Stream; 0 is the connection.
    pub stream: u32,
    /// Bytes behind the frame's own head.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Error code of RST_STREAM or GOAWAY.
    ///
    /// # Panics
    /// If it is another frame.
    pub fn code(&self) -> u32 {
        match self.kind {
            kind::RST_STREAM => self.number_at(0),
            kind::GOAWAY => self.number_at(4),
            _ => panic!("no error: {self:?}"),
        }
    }

    fn number_at(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }

    /// Status of a head, if it is one: the first field of a reply.
    fn status(&self) -> Option<u16> {
        let mut head = self.payload.as_slice();
        // Updates of the size of the table, to the zero that the client asked for.
        while let [0x20, rest @ ..] = head {
            head = rest;
        }
        match *head {
            [indexed @ 0x88..=0x8e, ..] => {
                Some([200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)])
            }
            [0x08 | 0x18 | 0x48, length, ..] if length & 0x80 == 0 => {
                std::str::from_utf8(head.get(2..5)?).ok()?.parse().ok()
            }
            [0x08 | 0x18 | 0x48, length, ..] => {
                digits(head.get(2..2 + usize::from(length & 0x7f))?)
            }
            _ => None,
        }
    }
}

/// Three digits in the Huffman code of HPACK: 0 to 2 have five bits, the others six.
fn digits(bytes: &[u8]) -> Option<u16> {
    let bits: Vec<u16> = bytes
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1)))
        .collect();
    let number = |bits: &[u16]| bits.iter().fold(0, |number, bit| number * 2 + bit);
    let mut at = 0;
    let mut value = 0;
    for _ in 0..3 {
        let short = number(bits.get(at..at + 5)?);
        let (digit, length) =
            if short < 3 { (short, 5) } else { (number(bits.get(at..at + 6)?) - 22, 6) };
        at += length;
        value = value * 10 + digit;
    }
    Some(value)
}

/// A reply on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Http2Reply {
    /// Status of the final head.
    pub status: u16,
    /// Text of all DATA frames.
    pub body: String,
}

/// A connection.
#[derive(Debug)]
pub struct Http2Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Http2Client {
    /// Connects, and sends nothing.
    ///
    /// # Panics
    /// If the server does not accept.
    pub async fn silent(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, unread: Vec::new() }
    }

    /// Connects and sends the preface, with these SETTINGS beside a table of zero bytes: each head
    /// of the server can be read by itself.
    ///
    /// # Panics
    /// If the server does not accept.
    pub async fn connect(addr: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut client = Self::silent(addr).await;
        client.bytes(PREFACE).await;
        client.settings(&[&[(1, 0)], settings].concat()).await;
        client
    }

    /// The other end: a connection that a client has made, whose preface is read.
    ///
    /// # Panics
    /// If the client does not speak HTTP/2.
    pub async fn accepted(mut stream: TcpStream, settings: &[(u16, u32)]) -> Self {
        stream.set_nodelay(true).expect("a socket");
        let mut preface = [0; PREFACE.len()];
        let read = tokio::time::timeout(HANG, stream.read_exact(&mut preface)).await;
        read.expect("a preface in time").expect("a preface");
        assert_eq!(preface, PREFACE);
        let mut peer = Self { stream, unread: Vec::new() };
        peer.settings(settings).await;
        // In reply to its own.
        peer.send(kind::SETTINGS, 1, 0, &[]).await;
        peer
    }

    async fn settings(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::new();
        for (id, value) in settings {
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        self.send(kind::SETTINGS, 0, 0, &payload).await;
    }

    /// Sends bytes. A server that has closed is noticed by reading.
    pub async fn bytes(&mut self, bytes: &[u8]) {
        let _ = tokio::time::timeout(HANG, self.stream.write_all(bytes)).await;
    }

    /// Sends one frame.
    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.bytes(&frame(kind, flags, stream, payload)).await;
    }

    /// Sends a head in one frame.
    pub async fn head(&mut self, stream: u32, flags: u8, fields: &[(&str, &str)]) {
        self.send(kind::HEADERS, END_HEADERS | flags, stream, &block(fields)).await;
    }

    /// Sends a request of this method and path without a body.
    pub async fn request(&mut self, stream: u32, method: &str, path: &str) {
        self.head(stream, END_STREAM, &request(method, path)).await;
    }

    /// Sends the same bytes until the server closes, and reads nothing.
    pub async fn flood(mut self, bytes: &[u8]) {
        while self.stream.write_all(bytes).await.is_ok() {}
    }

    /// The next frame that is neither SETTINGS nor WINDOW_UPDATE; `None` at the end.
    ///
    /// # Panics
    /// If nothing comes.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.take_frame() {
                if !matches!(frame.kind, kind::SETTINGS | kind::WINDOW_UPDATE) {
                    return Some(frame);
                }
                continue;
            }
            let mut part = [0; 4096];
            let read = tokio::time::timeout(HANG, self.stream.read(&mut part)).await;
            match read.expect("the server neither replied nor closed") {
                Ok(count) if count > 0 => self.unread.extend_from_slice(&part[..count]),
                _ => return None,
            }
        }
    }

    fn take_frame(&mut self) -> Option<Frame> {
        let [a, b, c, kind, flags, d, e, f, g] = *self.unread.first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("it fits");
        let payload = self.unread.get(9..9 + length)?.to_vec();
        self.unread.drain(..9 + length);
        Some(Frame { kind, flags, stream: u32::from_be_bytes([d, e, f, g]), payload })
    }

    /// The next frame of this type; `None` if the connection ends without one.
    ///
    /// # Panics
    /// If nothing comes.
    pub async fn next(&mut self, kind: u8) -> Option<Frame> {
        while let Some(frame) = self.frame().await {
            if frame.kind == kind {
                return Some(frame);
            }
        }
        None
    }

    /// Awaits the reply on a stream, or the code by which it was reset. Frames of other streams are
    /// dropped.
    ///
    /// # Errors
    /// The code of RST_STREAM or GOAWAY; `None` if the connection ends without one.
    ///
    /// # Panics
    /// If nothing comes.
    pub async fn reply(&mut self, stream: u32) -> Result<Http2Reply, Option<u32>> {
        let mut reply = Http2Reply::default();
        loop {
            let frame = self.frame().await.ok_or(None)?;
            match frame.kind {
                kind::GOAWAY if frame.code() != code::NO_ERROR => return Err(Some(frame.code())),
                _ if frame.stream != stream => continue,
                kind::RST_STREAM => return Err(Some(frame.code())),
                kind::HEADERS => reply.status = frame.status().unwrap_or(reply.status),
                kind::DATA => reply.body.push_str(&String::from_utf8_lossy(&frame.payload)),
                _ => continue,
            }
            let is_interim = frame.kind == kind::HEADERS && reply.status < 200;
            if frame.flags & END_STREAM != 0 || is_interim {
                return Ok(reply);
            }
        }
    }

    /// Sends a request without a body and awaits its reply.
    ///
    /// # Errors
    /// As [`reply`](Self::reply).
    pub async fn exchange(
        &mut self,
        stream: u32,
        fields: &[(&str, &str)],
    ) -> Result<Http2Reply, Option<u32>> {
        self.head(stream, END_STREAM, fields).await;
        self.reply(stream).await
    }
}

/// Fields of a request to localhost.
pub fn request<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
    [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
}

/// Bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Fields as HPACK writes what it neither compresses nor keeps.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(text.len(), &mut block);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn length(length: usize, block: &mut Vec<u8>) {
    let Some(mut rest) = length.checked_sub(127) else {
        block.push(u8::try_from(length).expect("below 127"));
        return;
    };
    block.push(127);
    while rest >= 128 {
        block.push(0x80 | u8::try_from(rest % 128).expect("below 128"));
        rest /= 128;
    }
    block.push(u8::try_from(rest).expect("below 128"));
}
