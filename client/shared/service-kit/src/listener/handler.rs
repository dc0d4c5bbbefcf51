//! Between hyper and the router: marks when a request is in flight, and times its body.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body as AxumBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::{Request, Response};
use tower::Service as _;

use super::body::TimedBody;
use super::stream::Activity;
use super::{ListenOptions, Shared};
use crate::http::{ApiFuture, ApiRouter};
use crate::tls::ClientNames;

#[derive(Clone, Debug)]
pub(super) struct Handler {
    router: ApiRouter,
    options: ListenOptions,
    activity: Arc<Activity>,
    /// Of a connection in TLS.
    names: Option<ClientNames>,
}

impl Handler {
    pub(super) fn new(
        shared: &Shared,
        activity: Arc<Activity>,
        names: Option<ClientNames>,
    ) -> Self {
        Self { router: shared.router.clone(), options: shared.options, activity, names }
    }

    /// Activity of the connection.
    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl hyper::service::Service<Request<Incoming>> for Handler {
    type Response = Response<InFlight>;
    type Error = Infallible;
    type Future = Reply;

    fn call(&self, request: Request<Incoming>) -> Reply {
        self.activity.request_began();
        Reply { inner: self.begin(request), activity: Some(self.activity.clone()) }
    }
}

impl Handler {
    /// Passes a request to the router, with the time limits of its body.
    pub(super) fn begin<B>(&self, request: Request<B>) -> ApiFuture
    where
        B: Body<Data = Bytes, Error: Into<axum::BoxError>> + Unpin + Send + 'static,
    {
        let mut request = request.map(|body| TimedBody::new(body, &self.options));
        if let Some(names) = &self.names {
            request.extensions_mut().insert(names.clone());
        }
        self.router.clone().call(request)
    }
}

/// The reply to come.
pub(super) struct Reply {
    inner: ApiFuture,
    activity: Option<Arc<Activity>>,
}

impl Future for Reply {
    type Output = Result<Response<InFlight>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let reply = Pin::new(&mut this.inner).poll(cx);
        if let Some(activity) = &this.activity {
            activity.request_waits(reply.is_pending());
        }
        let reply = ready!(reply);
        let activity = this.activity.take();
        Poll::Ready(reply.map(|response| response.map(|inner| InFlight { inner, activity })))
    }
}

/// The body of a reply. hyper drops it once it has taken the last byte, and with that the request
/// is over.
#[derive(Debug)]
pub(super) struct InFlight {
    inner: AxumBody,
    activity: Option<Arc<Activity>>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(activity) = &self.activity {
            activity.request_ended();
        }
    }
}

impl Body for InFlight {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
