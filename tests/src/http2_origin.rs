//! A datastore that speaks HTTP/2, frame by frame as its test says.

use tokio::net::TcpListener;

use crate::http2_frames::{END_STREAM, Frame, Http2Client, code, kind};
use crate::wait::soon;

/// A datastore whose connections the test serves.
#[derive(Debug)]
pub struct Http2Origin {
    base: String,
    listener: TcpListener,
}

/// One connection of a client.
#[derive(Debug)]
pub struct OriginConnection(pub Http2Client);

/// A request that has arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Stream of the request.
    pub stream: u32,
    /// Text of all DATA frames.
    pub body: String,
}

impl Http2Origin {
    /// Listens, and accepts nothing.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        Self { base, listener }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Accepts the next connection, and states these SETTINGS.
    ///
    /// # Panics
    /// If none comes.
    pub async fn accept(&self, settings: &[(u16, u32)]) -> OriginConnection {
        let accepted = soon("a connection", self.listener.accept()).await;
        let stream = accepted.expect("a connection").0;
        OriginConnection(Http2Client::accepted(stream, settings).await)
    }
}

impl OriginConnection {
    /// The next frame, after replies to PING; `None` at the end.
    ///
    /// # Panics
    /// If nothing comes.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            let frame = self.0.frame().await?;
            if frame.kind != kind::PING {
                return Some(frame);
            }
            if frame.flags == 0 {
                self.0.send(kind::PING, 1, 0, &frame.payload).await;
            }
        }
    }

    /// Awaits a request and its body.
    ///
    /// # Panics
    /// If none comes.
    pub async fn request(&mut self) -> Arrived {
        let mut body = String::new();
        loop {
            let frame = self.frame().await.expect("a request, not the end of the connection");
            match frame.kind {
                kind::HEADERS if frame.flags & END_STREAM == 0 => continue,
                kind::HEADERS => {}
                kind::DATA => body.push_str(&String::from_utf8_lossy(&frame.payload)),
                _ => continue,
            }
            if frame.flags & END_STREAM != 0 {
                return Arrived { stream: frame.stream, body };
            }
        }
    }

    /// Replies 204.
    pub async fn reply(&mut self, stream: u32) {
        self.0.head(stream, END_STREAM, &[(":status", "204")]).await;
    }

    /// Resets a stream.
    pub async fn reset(&mut self, stream: u32, reason: u32) {
        self.0.send(kind::RST_STREAM, 0, stream, &reason.to_be_bytes()).await;
    }

    /// Says that streams above `last` are not processed.
    pub async fn go_away(&mut self, last: u32) {
        let payload = [last.to_be_bytes(), code::NO_ERROR.to_be_bytes()].concat();
        self.0.send(kind::GOAWAY, 0, 0, &payload).await;
    }

    /// Awaits the frame that resets a stream, and returns its code.
    ///
    /// # Panics
    /// If the connection ends first.
    pub async fn is_reset(&mut self, stream: u32) -> u32 {
        loop {
            let frame = self.frame().await.expect("a reset, not the end of the connection");
            if frame.kind == kind::RST_STREAM && frame.stream == stream {
                return frame.code();
            }
        }
    }
}
