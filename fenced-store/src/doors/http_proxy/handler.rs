//! A request at the proxy: checked, received whole, passed through its lane.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use fence_protocol::wire::fence::{Guarantee, Mode};
use fence_protocol::{Code, Token};
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use http_body::Body as _;
use http_body_util::{Either, Full};
use service_kit::problem::Reject;
use service_kit::trace;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::{ReplyLimits, StreamedRequest};
use super::conditional::{Conditional, client_condition};
use super::conditions::probe::PROBED_BYTES;
use super::conditions::{Conditions, has_vendor_condition, is_signed};
use super::forward::{Checked, Forwarded, Forwarder, Sender};
use super::lane::Kind;
use super::lanes::Entry;
use super::leadership::ServedTerm;
use super::path_key::PathKey;
use super::service::LaneService;
use super::ticket::Ticket;
use super::{headers, second_name};
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http::headers::{complete, fenced, owner};
use crate::doors::http::unread::Unread;
use crate::doors::http::upload::Upload;
use crate::etag::Condition;
use crate::guard::{Failure, Guard, RequestSummary};
use crate::rules::{Intent, Resource};
use crate::stores::contract::{FenceOutcome, Fences as _, StoreError};
use crate::verdict::Fence;

/// State of the proxy's handler.
#[derive(Debug)]
pub struct Proxy {
    shared: HandlerState,
    lanes: Arc<LaneService>,
    sender: Sender,
    /// Permits of operations. One continues without its client, whose connection counts no more.
    places: Arc<Semaphore>,
    guarantee: Guarantee,
}

impl Proxy {
    /// Makes a handler. At most `operations_max` operations are in its lanes and at the upstream,
    /// those of clients that have left included.
    pub fn new(shared: HandlerState, lanes: Arc<LaneService>, operations_max: usize) -> Self {
        let bytes_max = shared.max_object_bytes;
        let reply_limits = ReplyLimits { bytes_max, budget: shared.reply_budget.clone() };
        let forwarder = Forwarder::new(&lanes.upstream, reply_limits);
        let sender = Sender::new(forwarder, &shared.guard.counters);
        let guarantee = shared.guard.guarantee();
        let places = Arc::new(Semaphore::new(operations_max.clamp(1, Semaphore::MAX_PERMITS)));
        Self { shared, lanes, sender, places, guarantee }
    }

    pub(super) fn guard(&self) -> &Arc<Guard> {
        &self.shared.guard
    }

    /// Returns the conditions under which writes of protected paths are sent, if any.
    fn conditions(&self) -> Option<&Arc<Conditions>> {
        let conditions = self.lanes.conditions.as_ref()?;
        (conditions.is_trusted() && self.guard().observer.mode() == Mode::Enforce)
            .then_some(conditions)
    }

    /// Returns the form of a write of a protected resource. With a query it may concern a part of
    /// the resource, or a property, for which the upstream checks no version; what a signed one's
    /// resource is, the guard may not read.
    fn kind(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Kind {
        let is_alone = has_vendor_condition(headers) || is_signed(headers);
        match *method {
            _ if uri.query().is_some() || is_alone => Kind::Write,
            Method::PUT if self.conditions().is_some() => Kind::ConditionalPut,
            Method::DELETE if self.conditions().is_some() => Kind::ConditionalDelete,
            _ => Kind::Write,
        }
    }
}

/// Largest body that is received before its lane is entered: until then its sender holds up no
/// other request, and a sender that leaves has changed nothing.
const WHOLE_BYTES: usize = 1 << 20;

/// Forwards a request, and completes every reply, refusals too.
pub(super) async fn reply(proxy: Arc<Proxy>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let unread = Unread::new(&body);
    let (response, is_atomic) = match forward(&proxy, head, body, &unread).await {
        Ok(passed) => passed,
        Err(failure) => (failure.into_response(), false),
    };
    let guarantee = if is_atomic { Guarantee::Atomic } else { proxy.guarantee };
    complete(response, guarantee, &unread)
}

/// Checks, receives and forwards a request. A client that disconnects can take a request out of
/// the lane, never back from the upstream. Returns the reply, and whether it is `atomic`.
async fn forward(
    proxy: &Arc<Proxy>,
    head: Parts,
    body: Body,
    unread: &Unread,
) -> Result<(Response, bool), Failure> {
    let (summary, key, kind) = check(proxy, &head, body.is_end_stream())?;
    let client =
        if kind.is_conditional() { client_condition(&head.headers)? } else { Condition::None };
    let term = proxy.lanes.term().map_err(|error| proxy.refuse(&summary, Err(error)))?;
    let (upload, rest) = Upload::receive(&head.headers, body, &proxy.shared, WHOLE_BYTES).await?;
    let body = match (rest, upload.stated_bytes) {
        (Some(rest), Some(length)) => {
            let first = upload.body.clone();
            let body = StreamedRequest::new(first, rest, length as u64, unread.clone());
            Either::Right(Body::new(body))
        }
        _ => {
            unread.read();
            Either::Left(Full::new(upload.body.clone()))
        }
    };
    // The probe has shown nothing of a larger one: it is sent under its condition all the same, and
    // its lane does not rely on that.
    let is_probed = upload.stated_bytes.unwrap_or(upload.body.len()) <= PROBED_BYTES;
    let in_lane = if kind == Kind::ConditionalPut && !is_probed { Kind::Write } else { kind };
    let query = head.uri.query().map(ToOwned::to_owned);
    let checked = Checked { method: head.method, key, query, headers: head.headers, body };
    let place = proxy.place()?;
    let tasks = proxy.guard().kit.tasks.clone();
    let request = ProxiedRequest { proxy: Arc::clone(proxy), term, summary };
    let ticket = match &request.summary.fence {
        Some(fence) if request.mode() == Mode::Enforce => {
            Some(request.enter(fence, checked.resource(), in_lane).await?)
        }
        _ => None,
    };
    let work = Box::pin(async move {
        let passed = request.pass(checked, kind, client, ticket).await;
        drop((upload, place));
        passed
    });
    tasks.finish(trace::carry(work)).await
}

fn check(
    proxy: &Proxy,
    head: &Parts,
    is_empty: bool,
) -> Result<(RequestSummary, PathKey, Kind), Failure> {
    let Parts { method, uri, headers, .. } = head;
    second_name::check_method(method)?;
    second_name::check_depth(method, headers)?;
    second_name::check_query(uri.query())?;
    headers::check_request(headers)?;
    headers::check_body(method, is_empty)?;
    let path = uri.path();
    let key = PathKey::from_path(path.strip_prefix('/').unwrap_or(path))?;
    let guard = proxy.guard();
    let resource = Resource { key: key.bytes(), method: Some(method) };
    let intent = guard.fencing.rules.intent(resource);
    let fence = guard.fence(resource, headers, intent)?;
    let text = format!("{method} {key}");
    let owner = owner(headers)?;
    let kind = match intent {
        Intent::Read => Kind::Read,
        Intent::Write if fence.is_some() => proxy.kind(method, uri, headers),
        Intent::Write => Kind::Write,
    };
    Ok((RequestSummary { fence, kind: "forward", text, owner }, key, kind))
}

impl Proxy {
    /// Takes the permit of an operation, for as long as it may be at the upstream.
    ///
    /// # Errors
    /// 429 while clients that left have all of them.
    fn place(&self) -> Result<OwnedSemaphorePermit, Reject> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let detail = "too many requests of clients that have left are at the upstream";
            Reject::new(Code::LimitReached, detail).retry_after(1)
        })
    }

    fn refuse(
        &self,
        summary: &RequestSummary,
        outcome: Result<FenceOutcome, StoreError>,
    ) -> Failure {
        match self.guard().account(summary, outcome) {
            Err(failure) => failure,
            Ok(_) => Reject::new(Code::Internal, "a refusal was accounted as a success").into(),
        }
    }
}

/// A request on its way through the proxy, in one term.
struct ProxiedRequest {
    proxy: Arc<Proxy>,
    term: Arc<ServedTerm>,
    summary: RequestSummary,
}

impl ProxiedRequest {
    fn mode(&self) -> Mode {
        self.proxy.guard().observer.mode()
    }

    /// Waits for the operation's turn in its lane.
    async fn enter(
        &self,
        fence: &Fence,
        resource: Resource<'_>,
        kind: Kind,
    ) -> Result<Ticket, Failure> {
        let outcome = match self.term.lanes.enter(fence, kind).await {
            Ok(Entry::Admitted(ticket)) => return Ok(ticket),
            Ok(Entry::Refused(outcome)) => {
                let outcome = Ok(outcome);
                self.proxy.guard().count_refusal(&self.summary, resource, &outcome);
                outcome
            }
            Err(error) => Err(error),
        };
        Err(self.proxy.refuse(&self.summary, outcome))
    }

    /// Sends the request in its form, settles its outcome, and makes the reply. Returns the reply,
    /// and whether it is `atomic`.
    async fn pass(
        &self,
        request: Checked,
        kind: Kind,
        client: Condition,
        ticket: Option<Ticket>,
    ) -> Result<(Response, bool), Failure> {
        let is_observed = self.mode() == Mode::Observe;
        let mark = match &self.summary.fence {
            Some(fence) if is_observed => self.record(fence, request.resource()).await,
            fence => fence.as_ref().map(|fence| fence.presented.token),
        };
        let (forwarded, is_atomic, ticket) = match ticket {
            Some(ticket) if kind.is_conditional() => {
                self.send_conditionally(request, client, ticket).await?
            }
            ticket => (self.send(request, kind).await, false, ticket),
        };
        match ticket {
            Some(ticket) if forwarded.is_unknown => ticket.unanswered(),
            Some(ticket) => ticket.ended(),
            None if is_observed && forwarded.is_unknown => {
                self.proxy.guard().counters.unknown_outcomes.inc();
            }
            None => {}
        }
        Ok((fenced(mark, forwarded.response), is_atomic))
    }

    async fn send(&self, request: Checked, kind: Kind) -> Forwarded {
        self.proxy.sender.send(&self.term, request, kind).await
    }

    /// Records the token, and returns the mark for the reply (observe mode).
    async fn record(&self, fence: &Fence, resource: Resource<'_>) -> Option<Token> {
        let noted = self.proxy.lanes.record(fence.clone()).await;
        self.proxy.guard().let_pass(&self.summary, resource, &noted)
    }

    /// Sends a write under the version of its resource; without a condition, in a turn of its own,
    /// if the upstream gives no version. Returns also whether the reply is `atomic`, and the ticket
    /// to settle.
    async fn send_conditionally(
        &self,
        mut request: Checked,
        client: Condition,
        mut ticket: Ticket,
    ) -> Result<(Forwarded, bool, Option<Ticket>), Failure> {
        let Some(fence) = &self.summary.fence else { return Err(no_fence().into()) };
        let is_repeatable = request.is_repeatable();
        let kind = ticket.kind();
        let is_quarantined = || self.term.lanes.is_quarantined(&fence.lock);
        let was_quarantined = is_quarantined();
        let mut result = self.attempt(&mut request, &client, &mut ticket).await;
        if result.shows_a_state() {
            // A lower write of unknown outcome may still change what this reply would show; only
            // one that was applied stops it. So it waits as a read does.
            ticket.ended();
            let was_quarantined = was_quarantined || is_quarantined();
            ticket = self.enter(fence, request.resource(), Kind::Read).await?;
            if was_quarantined && is_repeatable {
                ticket.ended();
                ticket = self.enter(fence, request.resource(), kind).await?;
                result = self.attempt(&mut request, &client, &mut ticket).await;
            }
        }
        match result {
            Conditional::Forwarded { forwarded, is_atomic, .. } => {
                Ok((forwarded, is_atomic && kind.is_conditional(), Some(ticket)))
            }
            Conditional::NotApplied(outcome) => {
                ticket.ended();
                Err(self.proxy.refuse(&self.summary, outcome))
            }
            Conditional::Unconditional => {
                ticket.ended();
                let ticket = self.enter(fence, request.resource(), Kind::Write).await?;
                Ok((self.send(request, Kind::Write).await, false, Some(ticket)))
            }
        }
    }

    /// Tries a conditional write once; the ticket knows if it lost its condition.
    async fn attempt(
        &self,
        request: &mut Checked,
        client: &Condition,
        ticket: &mut Ticket,
    ) -> Conditional {
        let Some(conditions) = self.proxy.conditions() else { return Conditional::Unconditional };
        let sender = &self.proxy.sender;
        let result = sender.conditionally(&self.term, conditions, request, client.clone()).await;
        if let Conditional::Forwarded { is_conditional: false, .. } = result {
            ticket.lose_condition();
        }
        result
    }
}

fn no_fence() -> Reject {
    Reject::new(Code::Internal, "a conditional write has no fence")
}
