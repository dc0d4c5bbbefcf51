//! HTTP/2: the streams of a connection run in its task, so that none outlives it.
//!
//! Its requests are those of HTTP/1 for the router, and count in the same budgets. A frame that
//! breaks the protocol, or a flood of frames that ask for no reply, is the library's to refuse; its
//! limits are in [`builder`].

mod body;
mod head_watch;
mod request;
mod stream;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{Method, Request};
use tokio::time::Instant;

pub(super) use self::head_watch::HeadWatch;
use self::stream::{OpenStream, Slot, StreamEnd};
use super::handler::Handler;
use super::stream::Stream;
use super::{CONNECTION_BUFFER_BYTES, Shared};
use crate::clock;

/// Requests in flight of one connection.
const MAX_STREAMS: u32 = 100;
/// Bytes of a body that a client may send before they are read, as much as on a connection of
/// HTTP/1.
const STREAM_WINDOW: u32 = CONNECTION_BUFFER_BYTES as u32;
/// The same for all streams of a connection: none can take the window of another. Each stream that
/// has bytes has a permit of [`Shared::slots`], so this is no further budget.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// Bytes of a reply that wait for the socket. The stream's [`Slot`] is in use until they have left.
const SEND_BUFFER_BYTES: usize = 32 * 1024;
/// Streams that a client may open and reset before they are looked at (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;
/// Streams that a client's errors may reset.
const MAX_ERROR_RESETS: usize = 100;
/// Requests that a client may reset in flight, beyond those that it lets end: each may leave work
/// that continues without its stream.
const RESET_CREDIT: u32 = 100;
/// Time for a client to confirm that it sends nothing more.
const GOODBYE: Duration = Duration::from_secs(1);

type ServerConnection<'a> = Connection<&'a mut Stream, Bytes>;

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By its client, by an error or by agreement.
    Closed,
    /// At the end of the drain.
    Cut,
}

impl Ended {
    pub(super) fn is_cut(self) -> bool {
        self == Self::Cut
    }
}

fn builder(shared: &Shared) -> Builder {
    let max_header_bytes = u32::try_from(shared.options.max_header_bytes).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // Of names, values and 32 bytes a field; the library bounds CONTINUATION frames by it too.
        .max_header_list_size(max_header_bytes.max(8192))
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(Some(MAX_ERROR_RESETS));
    builder
}

/// Serves a connection. When shutdown begins, its client is asked to send no further request.
pub(super) async fn serve(stream: &mut Stream, handler: &Handler, shared: &Shared) -> Ended {
    let handshake = tokio::time::timeout(
        shared.options.header_timeout,
        shared.shutdown.run_until_cancelled(builder(shared).handshake(stream)),
    );
    match handshake.await {
        Ok(Some(Ok(connection))) => run(connection, handler, shared).await,
        Ok(Some(Err(error))) => {
            tracing::debug!(%error, "a connection did not begin");
            Ended::Closed
        }
        Ok(None) | Err(_) => Ended::Closed,
    }
}

async fn run(mut connection: ServerConnection<'_>, handler: &Handler, shared: &Shared) -> Ended {
    let mut streams = FuturesUnordered::new();
    // In use while it has another owner.
    let first = Arc::new(());
    let mut credit = RESET_CREDIT;
    let mut patience = shared.options.idle_timeout;
    let mut rest = pin!(tokio::time::sleep(patience));
    let mut is_ending = false;
    loop {
        tokio::select! {
            // A flood of requests must not keep the streams from being polled.
            biased;
            Some(end) = streams.next() => {
                credit = match end {
                    StreamEnd::Replied => RESET_CREDIT.min(credit + 1),
                    StreamEnd::Reset => credit.saturating_sub(1),
                };
                if credit == 0 {
                    tracing::debug!("a client resets too many requests in flight");
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                }
                rest.as_mut().reset(Instant::from_std(clock::now() + patience));
            }
            () = handler.activity().late_head() => {
                tracing::debug!("the head of a request did not arrive in time");
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            }
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    streams.extend(begin(request, respond, &first, handler, shared));
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "a connection ended");
                    return Ended::Closed;
                }
                None => return Ended::Closed,
            },
            () = &mut rest, if streams.is_empty() => {
                if is_ending {
                    return Ended::Closed;
                }
                (is_ending, patience) = (true, GOODBYE);
                connection.graceful_shutdown();
                rest.as_mut().reset(Instant::from_std(clock::now() + patience));
            }
            () = shared.shutdown.cancelled(), if patience != GOODBYE => {
                (is_ending, patience) = (true, GOODBYE);
                connection.graceful_shutdown();
                rest.as_mut().reset(Instant::from_std(clock::now() + patience));
            }
            () = shared.cut.cancelled() => return Ended::Cut,
        }
    }
}

/// Begins a request. The first one of a connection has its connection's permit, `first`.
fn begin(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    first: &Arc<()>,
    handler: &Handler,
    shared: &Shared,
) -> Option<impl Future<Output = StreamEnd> + use<>> {
    let slot = match Arc::strong_count(first) {
        1 => Slot::of_connection(first.clone()),
        _ => match shared.slots.clone().try_acquire_owned() {
            Ok(permit) => Slot::of_listener(permit),
            Err(_) => {
                respond.send_reset(Reason::REFUSED_STREAM);
                return None;
            }
        },
    };
    let is_head = request.method() == Method::HEAD;
    match request::checked(request, shared.options.max_headers) {
        Err(status) => {
            stream::refuse(&mut respond, status);
            None
        }
        Ok((request, demand)) => {
            let reply = handler.begin(request);
            let write_timeout = shared.options.write_timeout;
            let stream = OpenStream { respond, is_head, demand, write_timeout, slot };
            Some(stream.reply(reply))
        }
    }
}
