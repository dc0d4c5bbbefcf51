//! A router with everything around it.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::future::RouteFuture;
use tower::Service;

use super::fold::{Fold, fold_name};

/// A router that is ready to be served; [`finish`](super::finish) makes it. Cheap to clone.
///
/// Slashes in names are folded before a route is looked for. That is no layer of the router, which
/// would run every request through a second router.
#[derive(Clone, Debug)]
pub struct ApiRouter {
    routes: Router,
    folds: &'static [Fold],
}

impl ApiRouter {
    pub(super) fn new(routes: Router, folds: &'static [Fold]) -> Self {
        Self { routes, folds }
    }
}

impl From<Router> for ApiRouter {
    fn from(routes: Router) -> Self {
        Self::new(routes, &[])
    }
}

impl<B> Service<Request<B>> for ApiRouter
where
    Router: Service<
            Request<B>,
            Response = Response,
            Error = Infallible,
            Future = RouteFuture<Infallible>,
        >,
{
    type Response = Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A Router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        if let Some(fold) = self.folds.iter().find(|fold| path.starts_with(fold.prefix)) {
            let uri = std::mem::take(request.uri_mut());
            *request.uri_mut() = fold_name(fold, uri);
        }
        self.routes.call(request)
    }
}
