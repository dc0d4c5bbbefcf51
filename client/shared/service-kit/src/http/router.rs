//! A router with everything around it.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use axum::routing::future::RouteFuture;
use tower::{Service, service_fn};

use super::HandlerFuture;
use super::edge::{Edge, EdgeFuture};
use super::fold::{Fold, fold_name};
use super::lock_route::LockRoute;

/// A router that is ready to be served; [`finish`](super::finish) or
/// [`finish_single`](super::finish_single) makes it. Cheap to clone.
///
/// Slashes in names are folded before a route is looked for. That is no layer of the router, which
/// would run every request through a second router.
#[derive(Clone, Debug)]
pub struct ApiRouter(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Routes { routes: Router, found: Arc<[FoundRoute]>, folds: &'static [Fold] },
    Single(Edge<SingleHandler>),
}

type FoundRoute = (LockRoute, Edge<()>);

impl ApiRouter {
    pub(super) fn new(routes: Router, found: Arc<[FoundRoute]>, folds: &'static [Fold]) -> Self {
        Self(Kind::Routes { routes, found, folds })
    }

    pub(super) fn single(handler: Edge<SingleHandler>) -> Self {
        Self(Kind::Single(handler))
    }
}

fn fold<B>(request: &mut Request<B>, folds: &[Fold]) {
    let path = request.uri().path();
    if let Some(fold) = folds.iter().find(|fold| path.starts_with(fold.prefix)) {
        let uri = std::mem::take(request.uri_mut());
        *request.uri_mut() = fold_name(fold, uri);
    }
}

type HandlerFunction = dyn Fn(Request) -> HandlerFuture + Send + Sync;

/// The one handler of every path and method. Cheap to clone.
#[derive(Clone)]
pub(super) struct SingleHandler(pub(super) Arc<HandlerFunction>);

impl fmt::Debug for SingleHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleHandler").finish_non_exhaustive()
    }
}

impl Service<Request> for SingleHandler {
    type Response = Response;
    type Error = Infallible;
    type Future = SingleFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> SingleFuture {
        SingleFuture((self.0)(request))
    }
}

/// The reply of a [`SingleHandler`] or a [`LockRoute`], to come.
pub(super) struct SingleFuture(HandlerFuture);

impl Future for SingleFuture {
    type Output = Result<Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

/// The reply of an [`ApiRouter`], to come.
#[derive(Debug)]
pub struct ApiFuture(Reply);

#[expect(clippy::large_enum_variant, reason = "a box would cost every request an allocation")]
enum Reply {
    Route(RouteFuture<Infallible>),
    Single(EdgeFuture<SingleFuture>),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

impl Future for ApiFuture {
    type Output = Result<Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Reply::Route(reply) => Pin::new(reply).poll(cx),
            Reply::Single(reply) => Pin::new(reply).poll(cx),
        }
    }
}

impl From<Router> for ApiRouter {
    fn from(routes: Router) -> Self {
        Self::new(routes, Arc::new([]), &[])
    }
}

impl<B> Service<Request<B>> for ApiRouter
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = ApiFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A Router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> ApiFuture {
        match &mut self.0 {
            Kind::Single(handler) => ApiFuture(Reply::Single(handler.call(request.map(Body::new)))),
            Kind::Routes { routes, found, folds } => {
                let found = found
                    .iter()
                    .find_map(|(route, edge)| route.find(&request).map(|lock| (route, edge, lock)));
                if found.as_ref().is_none_or(|(route, ..)| route.is_folded) {
                    fold(&mut request, folds);
                }
                match found {
                    Some((route, edge, lock)) => {
                        let handler =
                            service_fn(|request| SingleFuture(route.handle(lock.clone(), request)));
                        let reply = edge.around(handler).call(request.map(Body::new));
                        ApiFuture(Reply::Single(reply))
                    }
                    None => ApiFuture(Reply::Route(routes.call(request))),
                }
            }
        }
    }
}
