//! The smallest Redis client that can measure: one connection, one command at a time.

use std::io::Write as _;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A connection to Redis.
pub(super) struct Connection {
    stream: TcpStream,
    out: Vec<u8>,
    received: Vec<u8>,
}

impl Connection {
    /// Connects to `redis://HOST:PORT` (no password, database 0: a benchmark's own Redis).
    pub(super) async fn open(url: &str) -> Result<Self, String> {
        let host = url.trim_start_matches("redis://").trim_end_matches('/');
        let stream = TcpStream::connect(host)
            .await
            .map_err(|error| format!("{url} cannot be reached: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self { stream, out: Vec::new(), received: Vec::with_capacity(1024) })
    }

    /// Sends a command and waits for its whole reply, as it is on the wire.
    pub(super) async fn call(&mut self, args: &[&[u8]]) -> Result<&[u8], String> {
        self.send(args).await?;
        self.reply().await
    }

    /// Sends a command whose reply is to be read by [`reply`](Self::reply).
    pub(super) async fn send(&mut self, args: &[&[u8]]) -> Result<(), String> {
        self.out.clear();
        encode(&mut self.out, args);
        self.stream.write_all(&self.out).await.map_err(|error| error.to_string())
    }

    /// Whole reply to the command that was sent last; `Err` for an error reply.
    pub(super) async fn reply(&mut self) -> Result<&[u8], String> {
        self.received.clear();
        while end_of_value(&self.received, 0).is_none() {
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err("Redis closed the connection".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        if self.received.first() == Some(&b'-') {
            return Err(String::from_utf8_lossy(&self.received).trim().to_owned());
        }
        Ok(&self.received)
    }
}

/// Appends a command as Redis reads it.
pub(super) fn encode(out: &mut Vec<u8>, args: &[&[u8]]) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "*{}\r\n", args.len());
    for arg in args {
        let _ = write!(out, "${}\r\n", arg.len());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// End of the RESP2 value that begins at `at`, once it is complete.
fn end_of_value(bytes: &[u8], at: usize) -> Option<usize> {
    let line = bytes.get(at..)?.windows(2).position(|end| end == b"\r\n")?;
    let after = at + line + 2;
    let number = || std::str::from_utf8(&bytes[at + 1..at + line]).ok()?.parse::<i64>().ok();
    match bytes.get(at)? {
        b'$' => match usize::try_from(number()?) {
            Ok(length) => (bytes.len() >= after + length + 2).then_some(after + length + 2),
            Err(_) => Some(after),
        },
        b'*' => (0..number()?.max(0)).try_fold(after, |at, _| end_of_value(bytes, at)),
        _ => Some(after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_ends_where_it_ends() {
        let reply = b"*2\r\n$3\r\nabc\r\n*1\r\n:5\r\n";
        assert_eq!(end_of_value(reply, 0), Some(reply.len()));
        for cut in 0..reply.len() {
            assert_eq!(end_of_value(&reply[..cut], 0), None, "{cut}");
        }
        assert_eq!(end_of_value(b"$-1\r\n", 0), Some(5));
        assert_eq!(end_of_value(b"-ERR x\r\n", 0), Some(8));
    }

    #[test]
    fn commands_are_arrays_of_strings() {
        let mut out = Vec::new();
        encode(&mut out, &[b"SET", b"a", b""]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$0\r\n\r\n");
    }
}
