//! A request at the proxy: checked, received whole, passed through its lane.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use fence_protocol::wire::fence::Mode;
use fence_protocol::{Code, FENCING_MARK, Token};
use http::HeaderValue;
use http::header::CONTENT_LENGTH;
use http_body_util::{Either, Full};
use service_kit::problem::Reject;
use service_kit::{clock, trace};

use super::body::StreamedRequest;
use super::client::Client;
use super::forward::{Checked, Forwarded, Forwarder, is_safe};
use super::headers;
use super::lane::Kind;
use super::lanes::{Entry, Lanes};
use super::second_name;
use super::ticket::Ticket;
use super::upstream::Upstream;
use crate::doors::objects::handler_state::HandlerState;
use crate::doors::objects::{Upload, owner};
use crate::fencing::Intent;
use crate::key::ObjectKey;
use crate::service::{Failure, Guard, RequestSummary};
use crate::store::Fences as _;
use crate::verdict::Fence;

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
            client: Client::new(upstream, &shared.guard().kit.tasks),
            host: HeaderValue::try_from(upstream.url.authority().as_str())
                .unwrap_or(HeaderValue::from_static("upstream")),
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

/// Largest body that is received before its lane is entered: until then its sender holds up no
/// other request, and a sender that leaves has changed nothing.
const WHOLE_BYTES: usize = 1 << 20;

/// Checks, receives and forwards a request. A client that disconnects can take a request out of
/// the lane, never back from the upstream.
pub(super) async fn forward(
    State(proxy): State<Proxy>,
    request: Request,
) -> Result<Response, Failure> {
    let (summary, key) = check(&proxy, &request)?;
    let (head, body) = request.into_parts();
    let (upload, rest) = Upload::receive(&head.headers, body, &proxy.shared, WHOLE_BYTES).await?;
    let body = match rest {
        None => Either::Left(Full::new(upload.body.clone())),
        Some(rest) => {
            let length = head.headers.get(CONTENT_LENGTH);
            let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
            let body = StreamedRequest::new(upload.body.clone(), rest, length);
            Either::Right(Body::new(body))
        }
    };
    let kind = if is_safe(&head.method) { Kind::Read } else { Kind::Write };
    let query = head.uri.query().map(ToOwned::to_owned);
    let checked = Checked { method: head.method, key, query, headers: head.headers, body };
    let ticket = match &summary.fence {
        Some(fence) if proxy.guard().observer.mode() == Mode::Enforce => {
            Some(proxy.enter(&summary, fence, &checked.key, kind).await?)
        }
        _ => None,
    };
    let tasks = proxy.guard().kit.tasks.clone();
    let work = async move {
        let response = proxy.pass(&summary, checked, kind, ticket).await;
        drop(upload);
        response
    };
    Ok(tasks.finish(trace::carry(work)).await)
}

fn check(proxy: &Proxy, request: &Request) -> Result<(RequestSummary, ObjectKey), Failure> {
    let method = request.method();
    second_name::check_method(method)?;
    second_name::check_depth(method, request.headers())?;
    second_name::check_query(request.uri().query())?;
    headers::check_request(request.headers())?;
    let path = request.uri().path();
    let key = ObjectKey::from_path(path.strip_prefix('/').unwrap_or(path))?;
    let intent = if is_safe(method) { Intent::Read } else { Intent::Write };
    let guard = proxy.guard();
    let fence = guard.fence(&key, request.headers(), intent)?;
    let text = format!("{method} {key}");
    let owner = owner(request.headers())?;
    Ok((RequestSummary { fence, kind: "forward", text, owner }, key))
}

impl Proxy {
    /// Waits for the operation's turn in its lane.
    async fn enter(
        &self,
        summary: &RequestSummary,
        fence: &Fence,
        key: &ObjectKey,
        kind: Kind,
    ) -> Result<Ticket, Failure> {
        match self.lanes.enter(fence, kind).await {
            Ok(Entry::Admitted(ticket)) => Ok(ticket),
            Ok(Entry::Refused(outcome)) => {
                let outcome = Ok(outcome);
                self.guard().count_refusal(summary, key, &outcome);
                Err(self.refuse(summary, outcome))
            }
            Err(error) => Err(self.refuse(summary, Err(error))),
        }
    }

    async fn pass(
        &self,
        summary: &RequestSummary,
        request: Checked,
        kind: Kind,
        ticket: Option<Ticket>,
    ) -> Response {
        if self.guard().observer.mode() == Mode::Observe {
            return self.watch(summary, request, kind).await;
        }
        let forwarded = self.send(request, kind).await;
        match ticket {
            Some(ticket) if forwarded.is_unknown => ticket.unanswered(),
            Some(ticket) => ticket.ended(),
            None => {}
        }
        render(forwarded, summary.fence.as_ref().map(|fence| fence.presented.token))
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
