//! One client: from its first packet until it is admitted.

use std::io;
use std::rc::Rc;

use bytes::{BufMut as _, BytesMut};
use service_kit::socket;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::login::{Admitted, Client, Early, READY, packet_len, within, write_all};
use super::refusal::{Refusal, sqlstate};
use super::relay::{Relay, RelayEnd};
use super::startup::{FirstPacket, Startup};
use super::{PortThread, admission, frames, late_token};
use crate::doors::tcp::client_socket::{ClientSocket, ClientWriter};
use crate::doors::tcp::front::LINGER;

/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;

/// Begin of a client's TLS.
enum TlsBegin {
    /// By PostgreSQL's own request.
    Requested,
    /// At once: `sslnegotiation=direct`.
    Direct,
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
    let admitted = match within(limit, log_in(thread, &mut client, &startup)).await {
        Ok(admitted) if admitted.fences.is_empty() => {
            late_token::await_token(thread, &mut client, &startup, admitted, stop).await
        }
        admitted => admitted,
    };
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
        let _ = tokio::time::timeout(LINGER, sending).await;
    } else {
        writer.say_end();
    }
}

/// Reads the first packets up to the startup; `None` if there is nothing to serve.
async fn introduce(
    thread: &PortThread,
    mut stream: TcpStream,
    stop: &CancellationToken,
) -> io::Result<Option<(Client, Startup)>> {
    let has_tls = thread.port.settings.front.tls.is_some();
    let mut first = [0];
    if has_tls && stream.peek(&mut first).await? == 1 && first == [HANDSHAKE] {
        return introduce_over_tls(thread, stream, stop, TlsBegin::Direct).await;
    }
    let mut asked = (false, false);
    loop {
        let packet = match bare_packet(&mut stream).await {
            Ok(packet) => packet,
            Err(Early::Gone) => return Ok(None),
            Err(Early::Refused(refusal)) => return refuse_bare(stream, &refusal).await,
        };
        match packet {
            FirstPacket::Tls if !asked.0 && has_tls => {
                stream.write_all(b"S").await?;
                return introduce_over_tls(thread, stream, stop, TlsBegin::Requested).await;
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
            FirstPacket::Startup(_) if has_tls => {
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

/// Does a TLS handshake, and reads the startup behind it.
async fn introduce_over_tls(
    thread: &PortThread,
    stream: TcpStream,
    stop: &CancellationToken,
    begin: TlsBegin,
) -> io::Result<Option<(Client, Startup)>> {
    let tls = thread.port.settings.front.tls.clone();
    let tasks = &thread.port.guard.kit.tasks;
    let socket = ClientSocket::prepared(stream, tls, tasks, stop).await?;
    // Without a request the name of the protocol (ALPN) alone shows that the client means it.
    let is_named = matches!(&socket, ClientSocket::Tls(_, session)
        if session.alpn_protocol().is_some());
    let (reader, writer) = socket.into_split();
    let mut client = Client { reader, writer, inbox: BytesMut::new() };
    let read = match begin {
        TlsBegin::Direct if !is_named => {
            Err(Refusal::protocol("TLS without a request needs ALPN postgresql").into())
        }
        _ => client.packet().await.and_then(|body| Ok(FirstPacket::read(&body)?)),
    };
    introduced(thread, client, read).await
}

/// Reads one packet and not a byte more: a TLS handshake may follow.
async fn bare_packet(stream: &mut TcpStream) -> Result<FirstPacket, Early> {
    let len = stream.read_i32().await?;
    if len.to_be_bytes()[0] == HANDSHAKE {
        let text = "this port has no certificate, and speaks no TLS";
        let hint = "Connect with sslnegotiation=postgres, or start the port with --tls-cert.";
        return Err(Refusal::new(sqlstate::NOT_SUPPORTED, text, "", hint).into());
    }
    let len = packet_len(len)?;
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
            // libpq since 17 takes an end of TLS without its alert for a failure.
            finish(client.writer, RelayEnd::Left).await;
            return Ok(None);
        }
        Ok(_) => Refusal::protocol("encryption was negotiated already"),
        Err(Early::Gone) => return Ok(None),
        Err(Early::Refused(refusal)) => refusal,
    };
    finish(client.writer, RelayEnd::Refused(refusal.frame())).await;
    Ok(None)
}

/// Authenticates a client and opens its session at the server; with a token it is registered there
/// before a byte of the client is relayed.
async fn log_in(
    thread: &PortThread,
    client: &mut Client,
    startup: &Startup,
) -> Result<Admitted, Early> {
    let port = &thread.port;
    if let Some(unknown) = &startup.unknown {
        write_all(&client.writer, &negotiate(startup.version, unknown)).await?;
    }
    let admission = admission::authenticate(thread, client, startup).await?;
    let server = admission::open(thread, &admission, startup).await?;
    let key = port.cancels.add(server.cancel_target(), startup.version);
    let (pid, secret) = key.of_client();
    let mut greeting = BytesMut::from(&b"R\0\0\0\x08\0\0\0\0"[..]);
    greeting.extend_from_slice(&server.greeting);
    greeting.extend_from_slice(&frames::frame(b'K', &[&pid.to_be_bytes()[..], secret].concat()));
    greeting.extend_from_slice(READY);
    write_all(&client.writer, &greeting).await?;
    Ok(Admitted { server, fences: admission.fences, key })
}

/// NegotiateProtocolVersion: the session's, and the extensions that are not supported.
fn negotiate(version: u32, unknown: &[String]) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_u32(version);
    body.put_i32(i32::try_from(unknown.len()).unwrap_or(i32::MAX));
    for name in unknown {
        body.extend_from_slice(name.as_bytes());
        body.put_u8(0);
    }
    frames::frame(b'v', &body)
}
