//! Requests that are completed though their client hangs up.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::Either;
use service_kit::tasks::{Finish, Tasks};
use tower::{Layer, Service};

/// Completes requests that change something, whether or not their client stays: a store may take
/// several steps, and the event, the metric and the caller's account of it come after the last.
///
/// The time limits of the store and of the body bound them. An acquire that waits is not among
/// these requests: a client that hangs up withdraws it.
#[derive(Clone, Debug)]
pub(super) struct FinishLayer {
    tasks: Tasks,
}

impl FinishLayer {
    /// Tracks the requests of clients that hung up as `tasks`.
    pub(super) fn new(tasks: &Tasks) -> Self {
        Self { tasks: tasks.clone() }
    }
}

impl<S> Layer<S> for FinishLayer {
    type Service = FinishService<S>;

    fn layer(&self, inner: S) -> FinishService<S> {
        FinishService { inner, tasks: self.tasks.clone() }
    }
}

/// A route whose requests are completed.
#[derive(Clone, Debug)]
pub(super) struct FinishService<S> {
    inner: S,
    tasks: Tasks,
}

type Answer = Result<Response, Infallible>;

impl<S> Service<Request> for FinishService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Future<Output = Answer> + Unpin + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Finish<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let is_safe = request.method().is_safe();
        let answer = self.inner.call(request);
        if is_safe { Either::Left(answer) } else { Either::Right(self.tasks.finish_unpin(answer)) }
    }
}
