//! One connection, from accept until it is closed.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::handler::Handler;
use super::stream::{Activity, Stream};
use super::transport::Transport;
use super::{Shared, http2};
use crate::socket;
use crate::tls::{ClientNames, ServerTls};

/// Longest time for the alert that ends TLS.
const END_OF_TLS: Duration = Duration::from_secs(1);

/// Serves one connection; when shutdown begins, the request in flight is its last.
pub(super) async fn run(stream: TcpStream, shared: &Shared) {
    socket::tune_accepted(&stream);
    let Some((transport, names)) = open(stream, shared).await else { return };
    let activity = Arc::new(Activity::new());
    let mut stream = Stream::new(transport, activity.clone(), &shared.options);
    let handler = Handler::new(shared, activity.clone(), names);
    let stream = match speaks_http2(&mut stream, shared).await {
        None => return,
        Some(Ok(false)) => match serve_http1(stream, handler, shared).await {
            Some(stream) => stream,
            None => return,
        },
        Some(Ok(true)) => {
            activity.streams_begin();
            if http2::serve(&mut stream, &handler, shared).await.is_cut() {
                return;
            }
            stream
        }
        Some(Err(error)) => {
            tracing::debug!(%error, "a connection ended");
            stream
        }
    };
    if !stream.peer_closed() && !shared.shutdown.is_cancelled() {
        tokio::select! {
            () = close(stream.into_inner()) => {}
            () = shared.shutdown.cancelled() => {}
        }
    }
}

/// Returns `true` if the client speaks HTTP/2; `None` if shutdown begins before the client has said
/// so.
async fn speaks_http2(stream: &mut Stream, shared: &Shared) -> Option<io::Result<bool>> {
    if !shared.options.http2 {
        return Some(Ok(false));
    }
    if let Transport::Tls(stream) = stream.transport() {
        return Some(Ok(ServerTls::is_http2(stream)));
    }
    shared.shutdown.run_until_cancelled(stream.begins_http2()).await
}

/// Serves requests one after the other. Returns the stream, unless it was cut.
async fn serve_http1(stream: Stream, handler: Handler, shared: &Shared) -> Option<Stream> {
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
                () = shared.cut.cancelled() => return None,
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended");
    }
    Some(connection.into_parts().io.into_inner())
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
