//! One connection to the upstream.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1};

use super::UpstreamBody;
use super::io::{ProbedIo, SocketFlags};

/// A connection that the task of its request drives.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: http1::SendRequest<UpstreamBody>,
    /// Gone once the connection has ended; a request that it did not begin is handed back then.
    driver: Option<http1::Connection<ProbedIo, UpstreamBody>>,
    flags: Arc<SocketFlags>,
    /// It has carried a request before.
    is_reused: bool,
}

impl Connection {
    pub(super) fn new(
        sender: http1::SendRequest<UpstreamBody>,
        driver: http1::Connection<ProbedIo, UpstreamBody>,
        flags: Arc<SocketFlags>,
    ) -> Self {
        Self { sender, driver: Some(driver), flags, is_reused: false }
    }

    /// Returns `true` if the connection has carried a request before the current one.
    pub(crate) fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Moves bytes; `true` once the connection has ended.
    fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        drive(&mut self.driver, cx)
    }

    /// Returns `true` if the upstream has neither closed the connection nor sent anything since the
    /// last reply.
    pub(super) fn is_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_reused = true;
        self.flags.probe.store(true, Ordering::Relaxed);
        self.is_ready(cx)
    }

    /// Returns `true` if the connection can carry another request.
    pub(super) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        !self.drive(cx) && self.sender.is_ready()
    }

    /// Sends a request and awaits the head of its reply.
    ///
    /// # Errors
    /// With the request, if it was not handed to the connection; without it, if any byte may have
    /// been sent.
    pub(super) async fn send(
        &mut self,
        request: Request<UpstreamBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<UpstreamBody>>> {
        let Self { sender, driver, flags, .. } = self;
        flags.has_sent.store(false, Ordering::Relaxed);
        let mut reply = pin!(sender.try_send_request(request));
        poll_fn(|cx| {
            drive(driver, cx);
            reply.as_mut().poll(cx)
        })
        .await
    }

    /// Returns `true` if any byte of the last request was handed to the kernel.
    pub(super) fn has_sent(&self) -> bool {
        self.flags.has_sent.load(Ordering::Relaxed)
    }

    /// Notes when the first byte of the next reply comes.
    pub(super) fn await_first_byte(&self) {
        self.flags.awaits_first.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if that byte has not come.
    pub(super) fn awaits_first_byte(&self) -> bool {
        self.flags.awaits_first.load(Ordering::Relaxed)
    }

    /// Polls the next frame of the reply's body.
    pub(crate) fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.drive(cx);
        Pin::new(body).poll_frame(cx)
    }
}

/// Moves bytes; `true` once the connection has ended.
fn drive(
    driver: &mut Option<http1::Connection<ProbedIo, UpstreamBody>>,
    cx: &mut Context<'_>,
) -> bool {
    driver.take_if(|driver| Pin::new(driver).poll(cx).is_ready());
    driver.is_none()
}
