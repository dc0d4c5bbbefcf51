//! A client of PostgreSQL's protocol that sends what a test says, also what no driver would.

use std::collections::HashMap;

use fence_protocol::{FencingToken, credential};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::wait::soon;

/// A frame of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its tag.
    pub tag: u8,
    /// Its body.
    pub body: Vec<u8>,
}

/// An error of the server or the guard, by the kinds of its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SqlError(HashMap<char, String>);

impl SqlError {
    /// SQLSTATE.
    pub fn code(&self) -> &str {
        self.field('C')
    }

    /// A field, empty without one.
    pub fn field(&self, kind: char) -> &str {
        self.0.get(&kind).map_or("", String::as_str)
    }
}

impl Frame {
    /// The error in an ErrorResponse.
    pub fn error(&self) -> Option<SqlError> {
        let fields = self.body.split(|byte| *byte == 0).filter_map(|field| {
            let (kind, text) = field.split_first()?;
            Some((char::from(*kind), String::from_utf8_lossy(text).into_owned()))
        });
        (self.tag == b'E').then(|| SqlError(fields.collect()))
    }
}

/// A connection.
#[derive(Debug)]
pub struct PostgresClient {
    stream: TcpStream,
    /// Process id and secret for cancel requests.
    pub key: (i32, Vec<u8>),
}

/// Credential of an unsigned token; each lease number is another lease.
pub fn credential_of(lock: &str, token: u64, lease: u64) -> String {
    let lease = format!("67e55044-10b1-426f-9247-{lease:012x}");
    let header = format!("{token};lock=\"{lock}\";lease=\"{lease}\"");
    // What is no token is sent as it is.
    let token = header.parse::<FencingToken>();
    token.map_or_else(|_| credential::of_header(&header), |token| token.credential())
}

/// A frame's bytes.
pub fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend(i32::try_from(body.len() + 4).expect("a short frame").to_be_bytes());
    bytes.extend(body);
    bytes
}

/// A startup packet's bytes.
pub fn startup(version: u32, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut body = version.to_be_bytes().to_vec();
    for (name, value) in pairs {
        body.extend(format!("{name}\0{value}\0").bytes());
    }
    body.push(0);
    let mut bytes = i32::try_from(body.len() + 4).expect("short").to_be_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// Sends a cancel request to a server or guard, and waits until it was passed on.
///
/// # Panics
/// If nothing listens.
pub async fn cancel(address: &str, (pid, secret): (i32, &[u8])) {
    let len = i32::try_from(secret.len() + 12).expect("short").to_be_bytes();
    let code = 80_877_102_u32.to_be_bytes();
    let mut client = PostgresClient::connect(address).await;
    client.send(&[&len[..], &code, &pid.to_be_bytes(), secret].concat()).await;
    while client.byte().await.is_some() {}
}

impl PostgresClient {
    /// Connects, and sends nothing.
    ///
    /// # Panics
    /// If nothing listens.
    pub async fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Self { stream, key: (0, Vec::new()) }
    }

    /// Connects and logs in.
    ///
    /// # Errors
    /// The error of the server or the guard.
    pub async fn log_in(
        address: &str,
        user: &str,
        database: &str,
        password: &str,
    ) -> Result<Self, SqlError> {
        let mut client = Self::connect(address).await;
        client.send(&startup(3 << 16, &[("user", user), ("database", database)])).await;
        client.finish_login(password).await?;
        Ok(client)
    }

    /// Reads the frames of a login, and sends the password when it is asked for.
    ///
    /// # Errors
    /// The error of the server or the guard.
    ///
    /// # Panics
    /// If the connection ends.
    pub async fn finish_login(&mut self, password: &str) -> Result<(), SqlError> {
        loop {
            let frame = self.frame().await.expect("a frame");
            match (frame.tag, &frame.body[..]) {
                (b'R', [0, 0, 0, 3]) => {
                    self.send(&self::frame(b'p', format!("{password}\0").as_bytes())).await;
                }
                (b'K', [p0, p1, p2, p3, secret @ ..]) => {
                    let pid = i32::from_be_bytes([*p0, *p1, *p2, *p3]);
                    self.key = (pid, secret.to_vec());
                }
                (b'Z', _) => return Ok(()),
                (b'E', _) => return Err(frame.error().expect("an error")),
                _ => {}
            }
        }
    }

    /// Sends bytes. A connection that is gone shows in the next read.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Sends a simple query and returns the first column of its rows.
    ///
    /// # Errors
    /// The error of the server or the guard; code `lost` where the connection just ended.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<String>, SqlError> {
        self.send(&frame(b'Q', format!("{sql}\0").as_bytes())).await;
        self.rows().await
    }

    /// Reads the reply to a query.
    ///
    /// # Errors
    /// As [`PostgresClient::query`].
    pub async fn rows(&mut self) -> Result<Vec<String>, SqlError> {
        let mut rows = Vec::new();
        let mut failed = None;
        loop {
            let Some(frame) = self.frame().await else {
                let lost = SqlError(HashMap::from([('C', "lost".to_owned())]));
                return Err(failed.unwrap_or(lost));
            };
            match frame.tag {
                b'D' => rows.push(String::from_utf8_lossy(&frame.body[6..]).into_owned()),
                b'E' => failed = frame.error(),
                b'Z' => return failed.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    /// Reads one byte, as the reply to a request for encryption is.
    pub async fn byte(&mut self) -> Option<u8> {
        self.stream.read_u8().await.ok()
    }

    /// Reads a frame; `None` at the end of the connection.
    ///
    /// # Panics
    /// If none arrives for long.
    pub async fn frame(&mut self) -> Option<Frame> {
        let reading = async {
            let tag = self.stream.read_u8().await.ok()?;
            let len = self.stream.read_i32().await.ok()?;
            let mut body = vec![0; usize::try_from(len).ok()?.checked_sub(4)?];
            self.stream.read_exact(&mut body).await.ok()?;
            Some(Frame { tag, body })
        };
        soon("a frame or the end", reading).await
    }
}
