//! A write over a slow connection: the head and half of the body now, the rest later.

use std::io::{Error, ErrorKind};

use fence_client::protocol::FENCING_TOKEN;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::answers::answer;
use crate::demo::orders::Answer;

/// The longest reply that is read, in bytes.
const REPLY_BYTES_MAX: u64 = 1 << 20;

/// A PUT whose body has not been sent whole.
#[derive(Debug)]
pub(super) struct SlowWrite {
    stream: TcpStream,
    body: Vec<u8>,
    sent: usize,
}

impl SlowWrite {
    /// Connects, and sends the head and the first half of the body.
    pub(super) async fn begin(url: &str, token: Option<&str>, body: String) -> Result<Self, Error> {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let token = token.map(|token| format!("{FENCING_TOKEN}: {token}\r\n")).unwrap_or_default();
        let head = format!(
            "PUT /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n{token}\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        let sent = body.len() / 2;
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body.as_bytes()[..sent]).await?;
        stream.flush().await?;
        Ok(Self { stream, body: body.into_bytes(), sent })
    }

    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    pub(super) fn len(&self) -> usize {
        self.body.len()
    }

    /// Sends the second half and reads the reply.
    pub(super) async fn finish(mut self) -> Result<Answer, Error> {
        self.stream.write_all(&self.body[self.sent..]).await?;
        self.stream.flush().await?;
        let mut reply = Vec::new();
        (&mut self.stream).take(REPLY_BYTES_MAX).read_to_end(&mut reply).await?;
        parse(&reply).ok_or_else(|| Error::new(ErrorKind::InvalidData, "the reply is not HTTP"))
    }
}

/// Reads a reply that ended with its connection and has a plain body.
fn parse(reply: &[u8]) -> Option<Answer> {
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&reply[..end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(answer(status, &reply[end + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read() {
        let reply = b"HTTP/1.1 204 No Content\r\n\r\n";
        let answer = parse(reply).unwrap();
        assert_eq!(answer.status, Some(204));
        assert!(parse(b"HTTP/1.1 200").is_none());
        assert!(parse(b"nonsense\r\n\r\n").is_none());
    }
}
