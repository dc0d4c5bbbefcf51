//! One stream: a request that is answered.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::body::Demand;

/// Headers of a connection, which HTTP/2 does not know (RFC 9113 section 8.2.2).
const OF_CONNECTION: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

/// End of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The reply has begun.
    Replied,
    /// The client has reset the stream before.
    Reset,
}

/// Permit of a stream. The library keeps bytes of a reply for a client that does not read, after
/// the stream's future has ended: they are [kept](Slot::keep) with their permit.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    _permit: Arc<dyn Send + Sync + std::fmt::Debug>,
}

impl Slot {
    pub(super) fn of_connection(permit: Arc<()>) -> Self {
        Self { _permit: permit }
    }

    pub(super) fn of_listener(permit: OwnedSemaphorePermit) -> Self {
        Self { _permit: Arc::new(permit) }
    }

    /// Returns the same bytes; the permit is in use until they are dropped.
    fn keep(&self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Kept { bytes, _slot: self.clone() })
    }
}

struct Kept {
    bytes: Bytes,
    _slot: Slot,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A stream whose request is in the hands of the router.
#[derive(Debug)]
pub(super) struct OpenStream {
    pub(super) respond: SendResponse<Bytes>,
    pub(super) is_head: bool,
    pub(super) demand: Demand,
    /// Longest time that the client may keep the window closed while bytes wait.
    pub(super) write_timeout: Duration,
    pub(super) slot: Slot,
}

/// A handler at work.
pub(super) trait Reply: Future<Output = Result<Response, Infallible>> {}

impl<F: Future<Output = Result<Response, Infallible>>> Reply for F {}

/// A stream that ended before its reply did.
struct Broken;

impl OpenStream {
    /// Sends the reply. A client that resets the stream ends the handler, as one of HTTP/1 does
    /// that hangs up.
    pub(super) async fn reply(mut self, reply: impl Reply) -> StreamEnd {
        let Some(response) = self.response(reply).await else { return StreamEnd::Reset };
        // A client that is gone needs no reply; an error is of the stream, and has reset it.
        let _ = self.send(response).await;
        StreamEnd::Replied
    }

    /// Awaits the handler; `None` if the client resets the stream first.
    async fn response(&mut self, reply: impl Reply) -> Option<Response> {
        let mut reply = pin!(reply);
        poll_fn(|cx| {
            if let Poll::Ready(reply) = reply.as_mut().poll(cx) {
                let Ok::<_, Infallible>(response) = reply;
                return Poll::Ready(Some(response));
            }
            if self.demand.take() {
                let mut go_on = http::Response::new(());
                *go_on.status_mut() = StatusCode::CONTINUE;
                // It fails where the client has gone.
                let _ = self.respond.send_informational(go_on);
            }
            self.respond.poll_reset(cx).map(|_| None)
        })
        .await
    }

    async fn send(&mut self, response: Response) -> Result<(), Broken> {
        let (mut head, body) = response.into_parts();
        for name in OF_CONNECTION {
            head.headers.remove(name);
        }
        if let Some(length) = body.size_hint().exact()
            && !body.is_end_stream()
        {
            head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
        }
        if let Some(date) = date() {
            head.headers.entry(DATE).or_insert(date);
        }
        let has_body = !matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let is_whole = self.is_head || !has_body || body.is_end_stream();
        let head = http::Response::from_parts(head, ());
        let mut stream = self.respond.send_response(head, is_whole).map_err(|_| Broken)?;
        if is_whole {
            return Ok(());
        }
        self.send_body(&mut stream, body).await
    }

    async fn send_body(&self, stream: &mut SendStream<Bytes>, body: Body) -> Result<(), Broken> {
        let mut body = pin!(body);
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                _ = poll_fn(|cx| stream.poll_reset(cx)) => return Err(Broken),
            };
            match frame {
                None => return stream.send_data(Bytes::new(), true).map_err(|_| Broken),
                Some(Err(_)) => {
                    stream.send_reset(Reason::INTERNAL_ERROR);
                    return Err(Broken);
                }
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    let is_last = body.is_end_stream();
                    self.send_data(stream, data, is_last).await?;
                    if is_last {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Sends as much as the client's window takes at a time: no byte waits elsewhere.
    async fn send_data(
        &self,
        stream: &mut SendStream<Bytes>,
        mut data: Bytes,
        is_last: bool,
    ) -> Result<(), Broken> {
        if is_last && data.is_empty() {
            return stream.send_data(data, true).map_err(|_| Broken);
        }
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            if stream.capacity() == 0 {
                let opened = poll_fn(|cx| stream.poll_capacity(cx));
                let Ok(opened) = tokio::time::timeout(self.write_timeout, opened).await else {
                    stream.send_reset(Reason::CANCEL);
                    return Err(Broken);
                };
                opened.ok_or(Broken)?.map_err(|_| Broken)?;
            }
            let piece = data.split_to(stream.capacity().min(data.len()));
            let is_end = is_last && data.is_empty();
            stream.send_data(self.slot.keep(piece), is_end).map_err(|_| Broken)?;
        }
        Ok(())
    }
}

/// Refuses a request that does not reach the router, as the library of HTTP/1 does: without a body.
pub(super) fn refuse(respond: &mut SendResponse<Bytes>, status: StatusCode) {
    let mut response = http::Response::new(());
    *response.status_mut() = status;
    // It fails where the client has gone.
    let _ = respond.send_response(response, true);
}

/// Date of a reply (RFC 9110 section 6.6.1).
fn date() -> Option<HeaderValue> {
    #[expect(clippy::disallowed_methods, reason = "for the client alone; nothing is decided by it")]
    let now = SystemTime::now();
    HeaderValue::try_from(httpdate::fmt_http_date(now)).ok()
}

#[cfg(test)]
mod tests {
    use futures_util::future::join;
    use h2::{client, server};
    use http::Request;

    use super::*;

    const WINDOW: u32 = 1 << 20;

    /// The client's windows are open and it does not read: the reply is in the library's buffer.
    #[tokio::test]
    async fn a_permit_is_in_use_until_the_socket_has_the_reply() {
        let (client_end, server_end) = tokio::io::duplex(256);
        let mut client = client::Builder::new();
        client.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (client, server) =
            join(client.handshake::<_, Bytes>(client_end), server::handshake(server_end)).await;
        let (mut client, client_connection) = client.unwrap();
        let mut server = server.unwrap();
        let mut client_connection = Box::pin(client_connection);
        let (mut reply, _) = client.send_request(Request::new(()), true).unwrap();
        let (request, respond) = tokio::select! {
            accepted = server.accept() => accepted.unwrap().unwrap(),
            _ = &mut client_connection => panic!("it ended"),
        };
        let permit = Arc::new(());
        let stream = OpenStream {
            respond,
            is_head: false,
            demand: Demand::new(false),
            write_timeout: Duration::from_secs(30),
            slot: Slot::of_connection(permit.clone()),
        };
        drop(request);
        let body = Body::from("x".repeat(10_000));
        let end = stream.reply(std::future::ready(Ok(Response::new(body)))).await;
        assert_eq!(end, StreamEnd::Replied);
        // The socket takes a part.
        assert!(futures_util::poll!(Box::pin(server.accept())).is_pending());
        assert!(Arc::strong_count(&permit) > 1, "the reply has not left");
        let read = async {
            let mut body = (&mut reply).await.unwrap().into_body();
            let mut length = 0;
            while let Some(data) = body.data().await {
                length += data.as_ref().map(Bytes::len).unwrap();
                let _ = body.flow_control().release_capacity(data.unwrap().len());
            }
            length
        };
        let length = tokio::select! {
            length = read => length,
            _ = server.accept() => panic!("the server ended"),
            _ = &mut client_connection => panic!("the client ended"),
        };
        assert_eq!((length, Arc::strong_count(&permit)), (10_000, 1));
    }
}
