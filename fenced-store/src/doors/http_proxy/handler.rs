//! A request at the proxy: checked, received whole, passed through its lane.

use std::sync::Arc;

use axum::extract::{FromRequest as _, Request, State};
use axum::response::Response;
use fence_protocol::wire::fence::Mode;
use fence_protocol::{Code, FENCING_MARK, Token};
use http::{HeaderValue, Method};
use service_kit::problem::Reject;
use service_kit::{clock, trace};
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::forward::{Checked, Forwarded, Forwarder, is_safe};
use super::headers;
use super::lane::Kind;
use super::lanes::{Entry, Lanes};
use super::second_name;
use super::upstream::Upstream;
use crate::doors::objects::handler_state::HandlerState;
use crate::doors::objects::{Upload, owner};
use crate::fencing::Intent;
use crate::key::ObjectKey;
use crate::service::{Failure, Guard, RequestSummary};
use crate::store::Fences as _;

/// State of the proxy's handler. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    shared: HandlerState,
    lanes: Arc<Lanes>,
    forwarder: Forwarder,
}

impl Proxy {
    pub(super) fn new(shared: HandlerState, lanes: Arc<Lanes>, upstream: &Upstream) -> Self {
        let forwarder = Forwarder {
            client: Client::new(upstream),
            url: upstream.url.clone(),
            timeout: upstream.timeout,
            max_reply_bytes: shared.max_object_bytes(),
        };
        Self { shared, lanes, forwarder }
    }

    fn guard(&self) -> &Arc<Guard> {
        self.shared.guard()
    }
}

/// Checks, receives and forwards a request. Once the body is received, a tracked task does the
/// rest: a client that disconnects can take a request out of the queue, never back from the
/// upstream.
pub(super) async fn forward(
    State(proxy): State<Proxy>,
    request: Request,
) -> Result<Response, Failure> {
    let (summary, method, key) = check(&proxy, &request)?;
    let query = request.uri().query().map(ToOwned::to_owned);
    let headers = request.headers().clone();
    // The body is received before the lane is entered: a slow sender holds up no other request.
    let upload = Upload::from_request(request, &proxy.shared).await?;
    let checked = Checked { method, key, query, headers, body: upload.body.clone() };
    let gone = CancellationToken::new();
    let _when_the_client_leaves = gone.clone().drop_guard();
    let tasks = proxy.guard().kit.tasks.clone();
    let task = tasks.spawn(trace::carry(async move {
        let response = proxy.pass(summary, checked, &gone).await;
        drop(upload);
        response
    }));
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a forward's task ended without a result");
        Err(Reject::new(Code::Internal, "the forward's task ended without a result").into())
    })
}

fn check(proxy: &Proxy, request: &Request) -> Result<(RequestSummary, Method, ObjectKey), Failure> {
    let method = request.method().clone();
    second_name::check_method(&method)?;
    second_name::check_depth(&method, request.headers())?;
    second_name::check_query(request.uri().query())?;
    headers::check_request(request.headers())?;
    let path = request.uri().path();
    let key = ObjectKey::from_path(path.strip_prefix('/').unwrap_or(path))?;
    let intent = if is_safe(&method) { Intent::Read } else { Intent::Write };
    let guard = proxy.guard();
    let fence = guard.fence(&key, request.headers(), intent)?;
    let text = format!("{method} {key}");
    let owner = owner(request.headers())?;
    Ok((RequestSummary { fence, kind: "forward", text, owner }, method, key))
}

impl Proxy {
    async fn pass(
        &self,
        summary: RequestSummary,
        request: Checked,
        gone: &CancellationToken,
    ) -> Result<Response, Failure> {
        let kind = if is_safe(&request.method) { Kind::Read } else { Kind::Write };
        if self.guard().observer.mode() == Mode::Observe {
            return Ok(self.watch(&summary, request, kind).await);
        }
        let Some(fence) = &summary.fence else {
            let forwarded = self.send(request, kind).await;
            return Ok(render(forwarded, None));
        };
        let mark = fence.presented.token;
        let ticket = match self.lanes.enter(fence, kind, gone).await {
            Ok(Entry::Admitted(ticket)) => ticket,
            Ok(Entry::Refused(outcome)) => {
                let outcome = Ok(outcome);
                self.guard().count_refusal(&summary, &request.key, &outcome);
                return Err(self.refuse(&summary, outcome));
            }
            Err(error) => return Err(self.refuse(&summary, Err(error))),
        };
        let forwarded = self.send(request, kind).await;
        if forwarded.is_unknown {
            ticket.unanswered();
        } else {
            ticket.ended();
        }
        Ok(render(forwarded, Some(mark)))
    }

    /// Records the token and forwards at once (observe mode).
    async fn watch(&self, summary: &RequestSummary, request: Checked, kind: Kind) -> Response {
        let mark = match &summary.fence {
            None => None,
            Some(fence) => {
                let noted = self.lanes.record(fence.clone()).await;
                self.guard().let_pass(summary, &request.key, &noted)
            }
        };
        let forwarded = self.send(request, kind).await;
        if forwarded.is_unknown {
            self.guard().counters.unknown_outcomes.inc();
        }
        render(forwarded, mark)
    }

    fn refuse(
        &self,
        summary: &RequestSummary,
        outcome: Result<crate::store::FenceOutcome, crate::store::StoreError>,
    ) -> Failure {
        match self.guard().account(summary, outcome) {
            Err(failure) => failure,
            Ok(_) => Reject::new(Code::Internal, "a refusal was accounted as a success").into(),
        }
    }

    async fn send(&self, request: Checked, kind: Kind) -> Forwarded {
        let counters = &self.guard().counters;
        counters.in_flight.inc();
        let begun = clock::now();
        let forwarded = match kind {
            Kind::Write => self.forwarder.write(request).await,
            Kind::Read | Kind::Seal => self.forwarder.read(request).await,
        };
        counters.in_flight.dec();
        counters.called("forward", begun);
        counters.count("forward", forwarded.verdict);
        forwarded
    }
}

fn render(forwarded: Forwarded, mark: Option<Token>) -> Response {
    let mut response = forwarded.response;
    if let Some(mark) = mark {
        response.headers_mut().insert(FENCING_MARK, HeaderValue::from(mark.get()));
    }
    response
}
