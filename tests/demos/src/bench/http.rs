//! The smallest HTTP/1.1 client that can measure a server: one connection, one request at a time.

use std::io::Write as _;

use fence_client::BearerToken;
use fence_terminal::exit::{Failure, code};
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A keep-alive connection.
pub(super) struct Connection {
    stream: TcpStream,
    host: String,
    /// The Authorization line; empty without access control.
    authorization: String,
    out: Vec<u8>,
    received: Vec<u8>,
}

impl Connection {
    /// Connects to `http://HOST:PORT`; `auth` is the bearer token, if any.
    pub(super) async fn open(url: &str, auth: Option<&BearerToken>) -> Result<Self, String> {
        let host = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let stream = connect(&host).await?;
        let header = auth.map(BearerToken::header);
        let value = header.as_ref().and_then(|value| value.to_str().ok());
        let authorization =
            value.map(|value| format!("authorization: {value}\r\n")).unwrap_or_default();
        let out = Vec::new();
        let received = Vec::with_capacity(4096);
        Ok(Self { stream, host, authorization, out, received })
    }

    /// Replaces the connection by a new one.
    pub(super) async fn reopen(&mut self) -> Result<(), String> {
        self.stream = connect(&self.host).await?;
        Ok(())
    }

    /// Sends a request and returns the status and the body.
    pub(super) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Result<(u16, Vec<u8>), String> {
        self.begin(method, path, headers, body).await?;
        self.reply().await
    }

    /// Sends a request and does not wait for the reply.
    pub(super) async fn begin(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Result<(), String> {
        self.out.clear();
        write!(
            self.out,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{}content-length: {}\r\n{headers}\r\n",
            self.host,
            self.authorization,
            body.len()
        )
        .map_err(|error| error.to_string())?;
        self.out.extend_from_slice(body);
        self.stream.write_all(&self.out).await.map_err(|error| error.to_string())
    }

    async fn reply(&mut self) -> Result<(u16, Vec<u8>), String> {
        self.received.clear();
        let (head_len, length) = loop {
            self.more().await?;
            if let Some(at) = self.received.windows(4).position(|end| end == b"\r\n\r\n") {
                break (at + 4, content_length(&self.received[..at])?);
            }
        };
        while self.received.len() < head_len + length {
            self.more().await?;
        }
        let status = self.received.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        let status = status.and_then(|digits| digits.parse().ok()).ok_or("no status line")?;
        Ok((status, self.received[head_len..head_len + length].to_vec()))
    }

    async fn more(&mut self) -> Result<(), String> {
        match self.stream.read_buf(&mut self.received).await {
            Ok(0) => Err("the server closed the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

async fn connect(host: &str) -> Result<TcpStream, String> {
    let unreachable = |error| format!("http://{host} cannot be reached: {error}");
    let stream = TcpStream::connect(host).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    Ok(stream)
}

fn content_length(head: &[u8]) -> Result<usize, String> {
    let head = String::from_utf8_lossy(head);
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match lengths.next() {
        Some((_, value)) => value.trim().parse().map_err(|_| "a strange content-length".to_owned()),
        None => Ok(0),
    }
}

/// The tokens of a grant.
#[derive(Deserialize)]
pub(super) struct Granted {
    /// Value of the header.
    pub(super) fencing_token: String,
    /// The same in a form that goes into a password.
    pub(super) fencing_credential: String,
}

/// Acquires a lease of ten minutes on `lock`.
pub(super) async fn lease(locks: &str, lock: &str) -> Result<Granted, Failure> {
    let unreachable = |error: String| Failure::new(code::UNAVAILABLE, error);
    let mut connection = Connection::open(locks, None).await.map_err(unreachable)?;
    let path = format!("/v1/locks/{}/acquire", lock.replace('/', "%2F"));
    let headers = "content-type: application/json\r\n";
    let reply = connection.send("POST", &path, headers, b"{\"ttl_ms\":600000}").await;
    let (status, body) = reply.map_err(unreachable)?;
    if status != 200 {
        let body = String::from_utf8_lossy(&body);
        return Err(unreachable(format!("acquire: {status} {body}")));
    }
    serde_json::from_slice(&body).map_err(|error| unreachable(error.to_string()))
}
