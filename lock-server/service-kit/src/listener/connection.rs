//! One connection, from accept until it is closed.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Shared;
use super::handler::Handler;
use super::stream::{Activity, Stream};
use crate::socket;

/// A connection that this server closes is read on until its client has been quiet for this long.
/// Closing with unread bytes resets it, and the client could lose the reply that says why.
const LINGER_QUIET: Duration = Duration::from_secs(1);
/// The longest time, and the most bytes, for which it is read on.
const LINGER_MAX: Duration = Duration::from_secs(10);
const LINGER_BYTES: usize = 64 * 1024 * 1024;
const LINGER_READ_BYTES: usize = 16 * 1024;

/// Serves one connection; when shutdown begins, the request in flight is its last.
pub(super) async fn run(stream: TcpStream, shared: &Shared) {
    socket::tune_accepted(&stream);
    let activity = Arc::new(Activity::new());
    let stream = Stream::new(stream, activity.clone(), &shared.options);
    let handler = Handler::new(shared, activity);
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
            () = linger(stream.into_inner()) => {}
            () = shared.shutdown.cancelled() => {}
        }
    }
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

async fn linger(mut stream: TcpStream) {
    let read_on = async {
        stream.shutdown().await?;
        let mut scrap = vec![0; LINGER_READ_BYTES];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match tokio::time::timeout(LINGER_QUIET, stream.read(&mut scrap)).await {
                Err(_) | Ok(Ok(0)) => break,
                Ok(bytes) => left = left.saturating_sub(bytes?),
            }
        }
        io::Result::Ok(())
    };
    // Whatever comes of it, the connection is closed now.
    let _ = tokio::time::timeout(LINGER_MAX, read_on).await;
}
