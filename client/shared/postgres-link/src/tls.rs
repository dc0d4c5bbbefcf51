//! A byte stream to a server: plain, or over TLS.

use std::io;

use service_kit::tls::{TlsClient, TlsStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::either::Either;

/// The message that asks a server for TLS: its length, and 1234 and 5679 as the protocol's version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A byte stream to a server, before any startup message: plain TCP, or TLS after the server's
/// certificate was verified for its name.
pub type PostgresSocket = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Asks the server for TLS, and speaks it.
pub(crate) async fn over_tls(
    tls: &TlsClient,
    host: &str,
    mut stream: TcpStream,
) -> io::Result<PostgresSocket> {
    stream.write_all(&SSL_REQUEST).await?;
    // One byte and no more: what an attacker sends behind it must not pass for the server's.
    match stream.read_u8().await? {
        b'S' => Ok(Either::Right(Box::new(tls.connect(host, stream).await?))),
        b'N' => Err(io::Error::other("the server does not speak TLS (its setting ssl is off)")),
        _ => Err(io::Error::other("what answers there is no PostgreSQL")),
    }
}
