//! One connection, from accept until it is closed.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::Shared;
use super::handler::Handler;
use super::stream::{Activity, Stream};
use super::transport::Transport;
use crate::socket;
use crate::tls::{ClientNames, ServerTls};

/// Longest time for the alert that ends TLS.
const END_OF_TLS: Duration = Duration::from_secs(1);

/// Serves one connection; when shutdown begins, the request in flight is its last.
pub(super) async fn run(stream: TcpStream, shared: &Shared) {
    socket::tune_accepted(&stream);
    let Some((transport, names)) = open(stream, shared).await else { return };
    let activity = Arc::new(Activity::new());
    let stream = Stream::new(transport, activity.clone(), &shared.options);
    let handler = Handler::new(shared, activity, names);
    let mut connection = shared.http.serve_connection(TokioIo::new(stream), handler);
    let mut shutdown = pin!(shared.shutdown.cancelled());
    let outcome = tokio::select! {
        biased;
        outcome = &mut connection => outcome,
        () = &mut shutdown => {
            std::pin::Pin::new(&mut connection).graceful_shutdown();
            tokio::select! {
                biased;
                outcome = &mut connection => outcome,
                () = shared.cut.cancelled() => return,
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended");
    }
    let stream = connection.into_parts().io.into_inner();
    if !stream.peer_closed() && !shared.shutdown.is_cancelled() {
        tokio::select! {
            () = close(stream.into_inner()) => {}
            () = shared.shutdown.cancelled() => {}
        }
    }
}

/// The transport, and under TLS the names of the client; `None` if there is nothing to serve.
async fn open(stream: TcpStream, shared: &Shared) -> Option<(Transport, Option<ClientNames>)> {
    let Some(tls) = &shared.tls else { return Some((Transport::Plain(stream), None)) };
    let peer = stream.peer_addr().ok();
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        () = shared.shutdown.cancelled() => return None,
    };
    match accepted {
        Ok(stream) => {
            let names = ServerTls::client_names(&stream);
            Some((Transport::Tls(Box::new(stream)), Some(names)))
        }
        Err(error) => {
            tracing::debug!(%error, ?peer, "a TLS handshake failed");
            None
        }
    }
}

/// Ends TLS, then closes the socket as [`socket::linger`] does.
async fn close(mut transport: Transport) {
    if let Transport::Tls(stream) = &mut transport {
        // A client that takes nothing has had its time for the reply.
        let _ = tokio::time::timeout(END_OF_TLS, stream.shutdown()).await;
    }
    socket::linger(transport.into_tcp()).await;
}

/// True for an error of accept that concerns only the connection that was about to be accepted.
pub(super) fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
