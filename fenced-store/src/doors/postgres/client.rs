//! One client: from its first packet until it is admitted.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use fence_protocol::LockName;
use service_kit::socket;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::cancel::CancelKey;
use super::frames;
use super::refusal::{Refusal, sqlstate};
use super::relay::{Relay, RelayEnd};
use super::server::{ServerLogin, ServerSession};
use super::startup::{FirstPacket, PACKET_MAX, Startup};
use super::thread::PortThread;
use crate::doors::client_socket::{ClientReader, ClientSocket, ClientWriter, Sink as _};
use crate::fencing::FencingPolicy;
use crate::rules::{Protects, Resolved};
use crate::verdict::Fence;
use service_kit::login::Password;

/// The longest password message.
const PASSWORD_MAX: usize = 80 << 10;

/// End of a client before it was admitted.
pub(super) enum Early {
    /// Its socket failed, or it left.
    Gone,
    /// It is refused.
    Refused(Refusal),
}

impl From<io::Error> for Early {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

impl From<Refusal> for Early {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Serves a client until it ends. What only its first and last steps need is boxed: an idle client
/// keeps little more than its relay.
pub(super) async fn serve(thread: Rc<PortThread>, stream: TcpStream, stop: CancellationToken) {
    let Some(mut relay) = Box::pin(admit(&thread, stream, &stop)).await else { return };
    thread.port.counters.clients.inc();
    let end = relay.run(&stop).await;
    thread.port.counters.clients.dec();
    Box::pin(finish(relay.into_client(), end)).await;
}

/// Returns the relay of a client once it is admitted; `None` if it left or was refused.
async fn admit(
    thread: &Rc<PortThread>,
    stream: TcpStream,
    stop: &CancellationToken,
) -> Option<Relay> {
    let port = &thread.port;
    let limit = port.settings.login_within;
    let first = tokio::time::timeout(limit, introduce(thread, stream, stop)).await;
    let Ok(Ok(Some((mut client, startup)))) = first else { return None };
    let login = tokio::time::timeout(limit, log_in(thread, &mut client, startup));
    let admitted = login.await.unwrap_or_else(|_| {
        let text = "the login did not complete in time";
        let hint = "Connect again later.";
        Err(Refusal::new(sqlstate::NOT_AUTHORIZED, text, "nothing was executed", hint).into())
    });
    match admitted {
        Ok(admitted) => Some(Relay::new(Rc::clone(thread), client, admitted)),
        Err(Early::Gone) => None,
        Err(Early::Refused(refusal)) => {
            port.counters.refused.inc();
            finish(client.writer, RelayEnd::Refused(refusal.frame())).await;
            None
        }
    }
}

/// Sends the last frame, if there is one, and ends the connection.
async fn finish(writer: ClientWriter, end: RelayEnd) {
    if let RelayEnd::Refused(frame) = end {
        let sending = async {
            write_all(&writer, &frame).await?;
            writer.finish().await;
            io::Result::Ok(())
        };
        // A client that does not read gets no more.
        let _ = tokio::time::timeout(super::LINGER, sending).await;
    } else {
        writer.say_end();
    }
}

/// A client's socket while it logs in.
pub(super) struct Client {
    pub(super) reader: ClientReader,
    pub(super) writer: ClientWriter,
    /// Bytes that were received and not read.
    pub(super) inbox: BytesMut,
}

impl Client {
    /// Reads a frame; its tag is in it.
    async fn frame(&mut self, max: usize) -> Result<Bytes, Early> {
        loop {
            let header = frames::header(&self.inbox)
                .map_err(|bad| Refusal::protocol(format!("invalid message length {}", bad.len)))?;
            if let Some((_, len)) = header {
                if len > max {
                    return Err(Refusal::protocol("the password message is too long").into());
                }
                if self.inbox.len() >= len {
                    return Ok(self.inbox.split_to(len).freeze());
                }
            }
            if self.reader.read_buf(&mut self.inbox).await? == 0 {
                return Err(Early::Gone);
            }
        }
    }

    /// Reads a packet without a tag, behind its length.
    async fn packet(&mut self) -> Result<Bytes, Early> {
        loop {
            if let Some(len) = self.inbox.first_chunk() {
                let len = packet_len(i32::from_be_bytes(*len))?;
                if self.inbox.len() >= len {
                    let packet = self.inbox.split_to(len).freeze();
                    return Ok(packet.slice(4..));
                }
            }
            if self.reader.read_buf(&mut self.inbox).await? == 0 {
                return Err(Early::Gone);
            }
        }
    }
}

fn packet_len(len: i32) -> Result<usize, Refusal> {
    let refuse = || Refusal::protocol(format!("invalid length of startup packet: {len}"));
    usize::try_from(len).ok().filter(|len| (8..=PACKET_MAX).contains(len)).ok_or_else(refuse)
}

pub(super) async fn write_all(writer: &ClientWriter, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match writer.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => writer.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads the first packets up to the startup; `None` if there is nothing to serve.
async fn introduce(
    thread: &PortThread,
    mut stream: TcpStream,
    stop: &CancellationToken,
) -> io::Result<Option<(Client, Startup)>> {
    let tls = thread.port.settings.tls.clone();
    let mut asked = (false, false);
    loop {
        let packet = match bare_packet(&mut stream).await {
            Ok(packet) => packet,
            Err(Early::Gone) => return Ok(None),
            Err(Early::Refused(refusal)) => return refuse_bare(stream, &refusal).await,
        };
        match packet {
            FirstPacket::Tls if !asked.0 && tls.is_some() => {
                stream.write_all(b"S").await?;
                let tasks = &thread.port.guard.kit.tasks;
                let socket = ClientSocket::prepared(stream, tls, tasks, stop).await?;
                let (reader, writer) = socket.into_split();
                let mut client = Client { reader, writer, inbox: BytesMut::new() };
                let read = client.packet().await;
                let read = read.and_then(|body| Ok(FirstPacket::read(&body)?));
                return introduced(thread, client, read).await;
            }
            FirstPacket::Tls if !asked.0 => {
                asked.0 = true;
                stream.write_all(b"N").await?;
            }
            FirstPacket::Gss if !asked.1 => {
                asked.1 = true;
                stream.write_all(b"N").await?;
            }
            // A cancellation has nothing to protect; clients send it without TLS too.
            FirstPacket::Startup(_) if tls.is_some() => {
                let text = "this port speaks TLS only";
                let hint = "Connect with sslmode=require or better.";
                let refusal = Refusal::new(sqlstate::NOT_AUTHORIZED, text, "", hint);
                return refuse_bare(stream, &refusal).await;
            }
            packet => {
                let (reader, writer) = ClientSocket::Plain(stream).into_split();
                let client = Client { reader, writer, inbox: BytesMut::new() };
                return introduced(thread, client, Ok(packet)).await;
            }
        }
    }
}

/// Reads one packet and not a byte more: a TLS handshake may follow.
async fn bare_packet(stream: &mut TcpStream) -> Result<FirstPacket, Early> {
    let len = packet_len(stream.read_i32().await?)?;
    let mut body = vec![0; len - 4];
    stream.read_exact(&mut body).await?;
    Ok(FirstPacket::read(&body)?)
}

async fn refuse_bare<T>(mut stream: TcpStream, refusal: &Refusal) -> io::Result<Option<T>> {
    stream.write_all(&refusal.frame()).await?;
    socket::finish_sending(&stream);
    Ok(None)
}

async fn introduced(
    thread: &PortThread,
    client: Client,
    read: Result<FirstPacket, Early>,
) -> io::Result<Option<(Client, Startup)>> {
    let refusal = match read {
        Ok(FirstPacket::Startup(startup)) => return Ok(Some((client, startup))),
        Ok(FirstPacket::Cancel { pid, secret }) => {
            thread.port.cancels.cancel(&thread.port, pid, secret).await;
            return Ok(None);
        }
        Ok(_) => Refusal::protocol("encryption was negotiated already"),
        Err(Early::Gone) => return Ok(None),
        Err(Early::Refused(refusal)) => refusal,
    };
    finish(client.writer, RelayEnd::Refused(refusal.frame())).await;
    Ok(None)
}

/// Rights of a session: its tokens, and the role that it runs as.
struct Admission {
    fences: Vec<Fence>,
    login: ServerLogin,
}

/// Authenticates a client, opens its session at the server and registers it there, before a byte of
/// the client is relayed.
async fn log_in(
    thread: &Rc<PortThread>,
    client: &mut Client,
    startup: Startup,
) -> Result<Admitted, Early> {
    let port = Arc::clone(&thread.port);
    if let Some(unknown) = &startup.unknown {
        write_all(&client.writer, &negotiate(unknown)).await?;
    }
    let Admission { fences, login } = authenticate(thread, client, &startup).await?;
    let mut parameters = vec![("database", startup.database.as_str())];
    parameters.extend(startup.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let address = &thread.registry.upstream.address;
    let server = ServerSession::open(address, &login, &parameters).await;
    let server = server.map_err(|error| Refusal::unreachable(&error))?;
    for fence in &fences {
        if let Err(refused) = thread.registry.admit(fence, server.pid).await {
            let refusal = refused.refusal(fence);
            port.record_refusal(fence, &refused, &refusal);
            return Err(refusal.into());
        }
    }
    let key = port.cancels.add(server.pid, server.secret);
    let mut greeting = BytesMut::from(&b"R\0\0\0\x08\0\0\0\0"[..]);
    greeting.extend_from_slice(&server.greeting);
    greeting.extend_from_slice(b"K\0\0\0\x0c");
    greeting.put_i32(server.pid);
    greeting.put_i32(key.secret());
    greeting.extend_from_slice(b"Z\0\0\0\x05I");
    write_all(&client.writer, &greeting).await?;
    Ok(Admitted { server, fences, key })
}

/// A session at the server that is registered under its tokens.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) server: ServerSession,
    pub(super) fences: Vec<Fence>,
    pub(super) key: CancelKey,
}

/// NegotiateProtocolVersion: 3.0, and the extensions that are not supported.
fn negotiate(unknown: &[String]) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_i32(3 << 16);
    body.put_i32(i32::try_from(unknown.len()).unwrap_or(i32::MAX));
    for name in unknown {
        body.extend_from_slice(name.as_bytes());
        body.put_u8(0);
    }
    let mut frame = BytesMut::from(&b"v"[..]);
    frame.put_i32(i32::try_from(body.len() + 4).unwrap_or(i32::MAX));
    frame.extend_from_slice(&body);
    frame
}

async fn authenticate(
    thread: &PortThread,
    client: &mut Client,
    startup: &Startup,
) -> Result<Admission, Early> {
    let port = &thread.port;
    let database = &thread.registry.upstream.database;
    if startup.database != *database {
        return Err(Refusal::new(
            sqlstate::NO_DATABASE,
            format!("database \"{}\" is not served at this port", startup.database),
            format!("the port serves database \"{database}\" alone"),
            "Name that database, or ask for a guard before the other one.",
        )
        .into());
    }
    let policy = &port.guard.fencing;
    let lock = needed_lock(policy, database)?;
    let is_reader = port.settings.reader.as_deref() == Some(startup.user.as_str());
    if is_reader && startup.credential.is_none() {
        // The server verifies the reader's password.
        let password = Some(Password::from(password(client).await?.as_str()));
        let login = ServerLogin { user: startup.user.clone(), password };
        return Ok(Admission { fences: Vec::new(), login });
    }
    let writer = port.settings.writer.clone();
    let credential = match &startup.credential {
        Some(credential) => credential.clone(),
        None => password(client).await?,
    };
    let fences =
        policy.credential(credential.as_bytes()).map_err(|reject| Refusal::of_reject(&reject))?;
    if let Some(lock) = lock
        && !fences.iter().any(|fence| fence.lock == lock)
    {
        let locks: Vec<&str> = fences.iter().map(|fence| fence.lock.as_str()).collect();
        return Err(Refusal::new(
            sqlstate::WRONG_LOCK,
            format!("database \"{database}\" needs a token of lock {lock}"),
            format!("the credential is of lock {}; nothing was executed", locks.join(", ")),
            "Acquire that lock, and connect with its token.",
        )
        .into());
    }
    let mut fences = fences;
    fences.sort_by(|one, two| one.lock.cmp(&two.lock));
    Ok(Admission { fences, login: writer })
}

/// Returns the lock that protects the database, by the rules; `None` if it is open.
fn needed_lock(policy: &FencingPolicy, database: &str) -> Result<Option<LockName>, Refusal> {
    let refuse = |why: String| {
        let hint = "Ask an operator for a rule that names the database's lock.";
        Refusal::new(sqlstate::WRONG_LOCK, why, "nothing was executed", hint)
    };
    let mut scratch = String::new();
    let resolved = policy.rules.resolve(database.as_bytes(), &mut scratch);
    let Resolved { protection, .. } = resolved.map_err(|error| refuse(error.to_string()))?;
    match protection {
        Protects::Lock(name) => {
            LockName::new(name).map(Some).map_err(|error| refuse(error.to_string()))
        }
        Protects::Open => Ok(None),
        Protects::Deny => Err(refuse(format!("database \"{database}\" is denied by the rules"))),
    }
}

/// Asks for the password, and reads it.
async fn password(client: &mut Client) -> Result<String, Early> {
    // AuthenticationCleartextPassword: the client is on this machine, or speaks TLS.
    write_all(&client.writer, b"R\0\0\0\x08\0\0\0\x03").await?;
    let frame = client.frame(PASSWORD_MAX).await?;
    let text = frame.get(frames::HEADER..).and_then(|body| body.strip_suffix(&[0]));
    let text = text.filter(|_| frame[0] == b'p').and_then(|text| std::str::from_utf8(text).ok());
    match text {
        Some("") => Err(Refusal::new(
            sqlstate::TOKEN_REQUIRED,
            "no token was sent",
            "nothing was executed",
            "Send the fencing_credential that the lock server gave as the password.",
        )
        .into()),
        Some(text) => Ok(text.to_owned()),
        None => Err(Refusal::protocol("expected a password").into()),
    }
}
