//! Requests that no well-behaved client would send, byte for byte.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wait::soon;

/// Sends exactly these bytes to `base` (`http://127.0.0.1:PORT`) and reads until the server closes
/// or has sent a complete reply with a content length.
///
/// # Panics
/// If it cannot connect, or the server neither answers nor closes.
pub async fn exchange(base: &str, bytes: &[u8]) -> String {
    let mut stream = connect(base).await;
    // A server may close before it has read everything; then its reply is what counts.
    let _ = stream.write_all(bytes).await;
    read_reply(&mut stream).await
}

/// A connection to `base`.
///
/// # Panics
/// If it cannot connect.
pub async fn connect(base: &str) -> TcpStream {
    let address = base.trim_start_matches("http://");
    soon("a connection", TcpStream::connect(address)).await.expect("a connection")
}

/// Reads one reply; what has come when the server closes.
///
/// # Panics
/// If the server neither answers nor closes.
pub async fn read_reply(stream: &mut TcpStream) -> String {
    soon("the server to answer or to close", async {
        let mut seen = Vec::new();
        let mut part = [0_u8; 4096];
        while !is_complete(&seen) {
            match stream.read(&mut part).await {
                Ok(count) if count > 0 => seen.extend_from_slice(&part[..count]),
                _ => break,
            }
        }
        String::from_utf8_lossy(&seen).into_owned()
    })
    .await
}

fn is_complete(seen: &[u8]) -> bool {
    let text = String::from_utf8_lossy(seen);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| body.len() >= length)
}

/// The status code of a raw reply; `None` where the server closed without one.
pub fn status(reply: &str) -> Option<u16> {
    reply.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}
