//! Connections to the PostgreSQL behind the guard: login, and simple queries of the guard itself.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use postgres_link::{PostgresSocket, PostgresTarget};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;
use service_kit::login::Password;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::cancel::CancelTarget;
use super::frames;
use super::version::{CANCEL_KEY_MAX, NEWEST, OLDEST};
use crate::doors::tcp::client_socket::{ClientReader, ClientSocket, ClientWriter};

/// Limit of a connection to the server, and of a login on it.
const LOGIN_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait for the rows of a statement: longer than the server itself runs one of the guard's.
const ROWS_WITHIN: Duration = Duration::from_secs(35);
/// Query for the process behind a session. It has no name that a client's search_path could change.
const IDENTITY: &str = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.encode(\
    pg_catalog.timestamptz_send(pg_catalog.pg_postmaster_start_time()), 'hex')";
/// The longest frame that the guard reads for itself.
const FRAME_MAX: usize = 1 << 20;

/// A role that logs in, and its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLogin {
    /// Name of the role.
    pub user: String,
    /// Its password, if it has one.
    pub password: Option<Password>,
}

/// ErrorResponse of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ErrorFrame {
    pub(super) raw: Bytes,
    fields: HashMap<u8, String>,
}

impl ErrorFrame {
    /// Reads a whole frame; `None` if it is not well formed.
    pub(super) fn read(frame: &[u8]) -> Option<Self> {
        let body = frame.get(frames::HEADER..)?.strip_suffix(&[0])?;
        let mut fields = HashMap::new();
        for field in body.split(|byte| *byte == 0) {
            if let Some((kind, text)) = field.split_first() {
                fields.insert(*kind, String::from_utf8_lossy(text).into_owned());
            }
        }
        Some(Self { raw: Bytes::copy_from_slice(frame), fields })
    }

    fn field(&self, kind: u8) -> &str {
        self.fields.get(&kind).map_or("", String::as_str)
    }

    pub(super) fn sqlstate(&self) -> &str {
        self.field(b'C')
    }

    pub(super) fn message(&self) -> &str {
        self.field(b'M')
    }

    /// The field `V` is never translated.
    pub(super) fn is_fatal(&self) -> bool {
        matches!(self.field(b'V'), "FATAL" | "PANIC")
    }
}

/// Failure at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerError {
    /// The server sent this error.
    Refused(ErrorFrame),
    /// It could not be reached, broke, or does not speak the protocol.
    Broken(String),
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(frame) => write!(f, "{} ({})", frame.message(), frame.sqlstate()),
            Self::Broken(reason) => f.write_str(reason),
        }
    }
}

/// A row: texts of its columns.
pub(super) type Row = Vec<Option<String>>;

/// A session at the server.
#[derive(Debug)]
pub(super) struct ServerSession {
    stream: PostgresSocket,
    inbox: BytesMut,
    /// ParameterStatus frames and notices of the login.
    pub(super) greeting: BytesMut,
    at: usize,
    pub(super) pid: i32,
    /// Key for cancel requests.
    secret: Bytes,
}

impl ServerSession {
    /// Connects to one of the addresses and logs in; dropping the future closes the connection.
    ///
    /// # Errors
    /// The server's own error, or what failed.
    pub(super) async fn open(
        target: &PostgresTarget,
        at: usize,
        login: &ServerLogin,
        parameters: &[(&str, &str)],
    ) -> Result<Self, ServerError> {
        match Self::open_by(NEWEST, target, at, login, parameters).await {
            // PostgreSQL replies with a version of its own; what stands before it may not.
            Err(ServerError::Refused(error)) if ["08P01", "0A000"].contains(&error.sqlstate()) => {
                Self::open_by(OLDEST, target, at, login, parameters).await
            }
            opened => opened,
        }
    }

    async fn open_by(
        version: u32,
        target: &PostgresTarget,
        at: usize,
        login: &ServerLogin,
        parameters: &[(&str, &str)],
    ) -> Result<Self, ServerError> {
        let stream = target.open(at, LOGIN_WITHIN).await.map_err(ServerError::Broken)?;
        let inbox = BytesMut::new();
        let greeting = BytesMut::new();
        let mut session = Self { stream, inbox, greeting, at, pid: 0, secret: Bytes::new() };
        let logging_in = session.log_in(version, login, parameters);
        match tokio::time::timeout(LOGIN_WITHIN, logging_in).await {
            Ok(logged_in) => logged_in.map(|()| session),
            Err(_) => {
                let text = format!("{target} did not complete a login within {LOGIN_WITHIN:?}");
                Err(ServerError::Broken(text))
            }
        }
    }

    async fn log_in(
        &mut self,
        version: u32,
        login: &ServerLogin,
        parameters: &[(&str, &str)],
    ) -> Result<(), ServerError> {
        let mut out = BytesMut::new();
        let user = [("user", login.user.as_str())];
        let all = user.iter().chain(parameters).copied();
        frontend::startup_message(all, &mut out).map_err(broken)?;
        // Behind the length.
        out[4..8].copy_from_slice(&version.to_be_bytes());
        self.stream.write_all(&out).await.map_err(broken)?;
        self.authenticate(login).await?;
        loop {
            let frame = self.frame().await?;
            match frame[0] {
                b'K' => (self.pid, self.secret) = cancel_key(&frame[frames::HEADER..])?,
                b'S' | b'N' => self.greeting.extend_from_slice(&frame),
                b'Z' => return Ok(()),
                tag => return Err(unexpected(tag)),
            }
        }
    }

    async fn authenticate(&mut self, login: &ServerLogin) -> Result<(), ServerError> {
        let missing = || {
            let text =
                format!("the server wants a password of user {}, and none is set", login.user);
            ServerError::Broken(text)
        };
        let password = login.password.as_ref().map(|password| password.expose().as_bytes());
        let mut scram = None;
        loop {
            let frame = self.frame().await?;
            let mut body = &frame[frames::HEADER..];
            if frame[0] == b'v' {
                check_version(body)?;
                continue;
            }
            if frame[0] != b'R' || body.len() < 4 {
                return Err(unexpected(frame[0]));
            }
            let mut out = BytesMut::new();
            match body.get_i32() {
                0 => return Ok(()),
                5 => {
                    let salt = body.first_chunk().ok_or_else(|| unexpected(b'R'))?;
                    let password = password.ok_or_else(missing)?;
                    let hash = md5_hash(login.user.as_bytes(), password, *salt);
                    frontend::password_message(hash.as_bytes(), &mut out).map_err(broken)?;
                }
                10 => {
                    let password = password.ok_or_else(missing)?;
                    let begun = ScramSha256::new(password, ChannelBinding::unsupported());
                    frontend::sasl_initial_response(SCRAM_SHA_256, begun.message(), &mut out)
                        .map_err(broken)?;
                    scram = Some(begun);
                }
                11 => {
                    let begun = scram.as_mut().ok_or_else(|| unexpected(b'R'))?;
                    begun.update(body).map_err(broken)?;
                    frontend::sasl_response(begun.message(), &mut out).map_err(broken)?;
                }
                12 => {
                    let begun = scram.as_mut().ok_or_else(|| unexpected(b'R'))?;
                    begun.finish(body).map_err(broken)?;
                }
                kind => {
                    let text = format!("the server wants a login of kind {kind}, use SCRAM");
                    return Err(ServerError::Broken(text));
                }
            }
            self.stream.write_all(&out).await.map_err(broken)?;
        }
    }

    /// The session in cancel requests.
    pub(super) fn cancel_target(&self) -> CancelTarget {
        CancelTarget { at: self.at, pid: self.pid, secret: self.secret.clone() }
    }

    /// Runs one statement of the guard, and returns its rows. Not cancel-safe: a session whose
    /// query was dropped must not be used again.
    ///
    /// # Errors
    /// The server's error, after which the session can be used, or what broke: also if there is no
    /// end of a reply within `ROWS_WITHIN`.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<Row>, ServerError> {
        let rows = tokio::time::timeout(ROWS_WITHIN, self.rows(sql)).await;
        rows.unwrap_or_else(|_| {
            Err(ServerError::Broken(format!("no end of a reply within {ROWS_WITHIN:?}")))
        })
    }

    async fn rows(&mut self, sql: &str) -> Result<Vec<Row>, ServerError> {
        let mut out = BytesMut::new();
        frontend::query(sql, &mut out).map_err(broken)?;
        self.stream.write_all(&out).await.map_err(broken)?;
        let mut rows = Vec::new();
        let mut refused = None;
        loop {
            let frame = match self.frame().await {
                Ok(frame) => frame,
                Err(ServerError::Refused(error)) if !error.is_fatal() => {
                    refused = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match frame[0] {
                b'D' => rows.push(row(&frame[frames::HEADER..])?),
                b'Z' => match refused {
                    Some(error) => return Err(ServerError::Refused(error)),
                    None => return Ok(rows),
                },
                // Row descriptions, completions, notices, changed settings.
                _ => {}
            }
        }
    }

    /// Returns the start of the server's process, by which with its id a session is one of this
    /// server's.
    ///
    /// # Errors
    /// Also if the session has another process id than the login gave: a pooler is in between.
    pub(super) async fn server_start(&mut self) -> Result<String, ServerError> {
        let rows = self.query(IDENTITY).await?;
        match rows.into_iter().next().as_deref() {
            Some([Some(pid), Some(start)]) if *pid == self.pid.to_string() => Ok(start.clone()),
            _ => Err(ServerError::Broken(
                "a pooler stands between: sessions have other process ids than they were given; \
                 name PostgreSQL itself"
                    .to_owned(),
            )),
        }
    }

    /// Reads a frame; an ErrorResponse is an error.
    async fn frame(&mut self) -> Result<BytesMut, ServerError> {
        loop {
            let header = frames::header(&self.inbox)
                .map_err(|bad| ServerError::Broken(format!("frame of length {}", bad.len)))?;
            if let Some((tag, len)) = header {
                if len > FRAME_MAX {
                    return Err(ServerError::Broken(format!("frame of {len} bytes")));
                }
                if self.inbox.len() >= len {
                    let frame = self.inbox.split_to(len);
                    return match tag {
                        b'E' => Err(ErrorFrame::read(&frame)
                            .map_or_else(|| unexpected(b'E'), ServerError::Refused)),
                        _ => Ok(frame),
                    };
                }
            }
            if self.stream.read_buf(&mut self.inbox).await.map_err(broken)? == 0 {
                return Err(ServerError::Broken("the server closed the connection".to_owned()));
            }
        }
    }

    /// Waits until the server sends something, or closes the connection. Cancel-safe.
    pub(super) async fn received(&mut self) {
        // The relay meets an error again.
        let _ = self.stream.read_buf(&mut self.inbox).await;
    }

    /// Both directions, and bytes of the server that nothing has read yet.
    pub(super) fn into_parts(self) -> (ClientReader, ClientWriter, BytesMut) {
        let (reader, writer) = ClientSocket::of_server(self.stream).into_split();
        (reader, writer, self.inbox)
    }
}

fn broken(error: std::io::Error) -> ServerError {
    ServerError::Broken(error.to_string())
}

fn unexpected(tag: u8) -> ServerError {
    let text = format!("the server sent a message of kind {:?} out of turn", char::from(tag));
    ServerError::Broken(text)
}

/// Reads the process id and the key in a BackendKeyData.
fn cancel_key(body: &[u8]) -> Result<(i32, Bytes), ServerError> {
    match body.split_first_chunk() {
        Some((pid, key)) if (1..=CANCEL_KEY_MAX).contains(&key.len()) => {
            Ok((i32::from_be_bytes(*pid), Bytes::copy_from_slice(key)))
        }
        _ => Err(unexpected(b'K')),
    }
}

/// Checks a NegotiateProtocolVersion: a version up to the port's own, and no extension, as none was
/// asked for.
fn check_version(mut body: &[u8]) -> Result<(), ServerError> {
    let version = body.try_get_u32().unwrap_or_default();
    match (version >> 16 == 3 && version <= NEWEST, body.try_get_i32()) {
        (true, Ok(0)) => Ok(()),
        _ => Err(ServerError::Broken("the server speaks no protocol 3.0 to 3.2".to_owned())),
    }
}

/// Reads the columns of a DataRow.
fn row(mut body: &[u8]) -> Result<Row, ServerError> {
    let short = || ServerError::Broken("a row of the server is cut".to_owned());
    let count = body.try_get_i16().map_err(|_| short())?;
    let mut columns = Vec::new();
    for _ in 0..count {
        let len = body.try_get_i32().map_err(|_| short())?;
        // -1 is NULL.
        let Ok(len) = usize::try_from(len) else {
            columns.push(None);
            continue;
        };
        let (text, rest) = body.split_at_checked(len).ok_or_else(short)?;
        columns.push(Some(String::from_utf8_lossy(text).into_owned()));
        body = rest;
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_versions_are_read_and_others_refused() {
        for (len, is_read) in [(0, false), (1, true), (4, true), (256, true), (257, false)] {
            let body = [&7_i32.to_be_bytes()[..], &vec![9; len]].concat();
            assert_eq!(cancel_key(&body) == Ok((7, vec![9; len].into())), is_read, "{len}");
        }
        assert!(cancel_key(b"\0\0").is_err());
        for (body, is_read) in [
            (&b"\0\x03\0\0\0\0\0\0"[..], true),
            (b"\0\x03\0\x02\0\0\0\0", true),
            (b"\0\x03\0\x03\0\0\0\0", false),
            (b"\0\x02\0\0\0\0\0\0", false),
            (b"\0\x03\0\0\0\0\0\x01_pq_.x\0", false),
            (b"\0\x03", false),
        ] {
            assert_eq!(check_version(body).is_ok(), is_read, "{body:?}");
        }
    }

    #[test]
    fn rows_are_read_and_cut_ones_refused() {
        let body = b"\0\x02\0\0\0\x02ab\xff\xff\xff\xff";
        assert_eq!(row(body), Ok(vec![Some("ab".to_owned()), None]));
        for end in 0..body.len() {
            assert!(row(&body[..end]).is_err(), "{end}");
        }
    }
}
