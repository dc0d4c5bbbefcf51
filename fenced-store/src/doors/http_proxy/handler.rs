//! A request at the proxy: checked, received whole, passed through its lane.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use fence_protocol::wire::fence::{Guarantee, Mode};
use fence_protocol::{Code, Token};
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use http_body::Body as _;
use http_body_util::{Either, Full};
use service_kit::problem::Reject;
use service_kit::trace;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::StreamedRequest;
use super::conditional::{Conditional, client_condition};
use super::conditions::probe::PROBED_BYTES;
use super::conditions::{Conditions, has_vendor_condition, is_signed};
use super::forward::{Checked, Forwarded, Forwarder};
use super::lane::Kind;
use super::lanes::Entry;
use super::leadership::ServedTerm;
use super::path_key::PathKey;
use super::received::ReplyLimits;
use super::sender::Sender;
use super::service::LaneService;
use super::ticket::Ticket;
use super::upstream::Upstream;
use super::{headers, second_name};
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http::headers::{complete, fenced, owner};
use crate::doors::http::unread::Unread;
use crate::doors::http::upload::Upload;
use crate::etag::Condition;
use crate::guard::{Failure, Guard, RequestSummary};
use crate::rules::{Intent, Resource};
use crate::stores::contract::Fences as _;
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
    pub fn new(
        shared: HandlerState,
        lanes: Arc<LaneService>,
        upstream: &Upstream,
        operations_max: usize,
    ) -> Self {
        let bytes_max = shared.max_object_bytes;
        let reply_limits = ReplyLimits { bytes_max, budget: shared.reply_budget.clone() };
        let forwarder = Forwarder::new(upstream, reply_limits);
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
        let conditions = self.lanes.conditions()?;
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
/// other request, and a sender that leaves has changed nothing. A body without a stated length is
/// received whole, because it may turn out to be too large.
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
    let length = head.headers.get(CONTENT_LENGTH);
    let length: Option<u64> = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let first_bytes = length.map_or(proxy.shared.max_object_bytes, |_| WHOLE_BYTES);
    let (upload, rest) = Upload::receive(&head.headers, body, &proxy.shared, first_bytes).await?;
    let body = match (rest, length) {
        (Some(rest), Some(length)) => {
            let body = StreamedRequest::new(upload.body.clone(), rest, length, unread.clone());
            Either::Right(Body::new(body))
        }
        _ => {
            unread.read();
            Either::Left(Full::new(upload.body.clone()))
        }
    };
    // The probe has shown nothing of a larger one: it is sent under its condition all the same, and
    // its lane does not rely on that.
    let bytes = length.unwrap_or(upload.body.len() as u64);
    let is_probed = bytes <= PROBED_BYTES as u64;
    let in_lane = if kind == Kind::ConditionalPut && !is_probed { Kind::Write } else { kind };
    let query = head.uri.query().map(ToOwned::to_owned);
    let checked = Checked { method: head.method, key, query, headers: head.headers, body };
    let place = proxy.place()?;
    let ticket = match &summary.fence {
        Some(fence) if proxy.guard().observer.mode() == Mode::Enforce => {
            Some(proxy.enter(&term, &summary, fence, checked.resource(), in_lane).await?)
        }
        _ => None,
    };
    let tasks = proxy.guard().kit.tasks.clone();
    let proxy = Arc::clone(proxy);
    let work = Box::pin(async move {
        let passed = match ticket {
            Some(ticket) if kind.is_conditional() => {
                proxy.pass_conditionally(&term, &summary, checked, client, ticket).await
            }
            ticket => Ok((proxy.pass(&term, &summary, checked, kind, ticket).await, false)),
        };
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

    /// Waits for the operation's turn in its lane.
    async fn enter(
        &self,
        term: &ServedTerm,
        summary: &RequestSummary,
        fence: &Fence,
        resource: Resource<'_>,
        kind: Kind,
    ) -> Result<Ticket, Failure> {
        match term.lanes.enter(fence, kind).await {
            Ok(Entry::Admitted(ticket)) => Ok(ticket),
            Ok(Entry::Refused(outcome)) => {
                let outcome = Ok(outcome);
                self.guard().count_refusal(summary, resource, &outcome);
                Err(self.refuse(summary, outcome))
            }
            Err(error) => Err(self.refuse(summary, Err(error))),
        }
    }

    async fn pass(
        &self,
        term: &ServedTerm,
        summary: &RequestSummary,
        request: Checked,
        kind: Kind,
        ticket: Option<Ticket>,
    ) -> Response {
        if self.guard().observer.mode() == Mode::Observe {
            return self.watch(term, summary, request, kind).await;
        }
        let forwarded = self.sender.send(term, request, kind).await;
        if let Some(ticket) = ticket {
            settle(ticket, &forwarded);
        }
        fenced(summary.fence.as_ref().map(token), forwarded.response)
    }

    /// Sends a write under the version of its resource; without a condition, in a turn of its own,
    /// if the upstream gives no version. Returns the reply, and whether it is `atomic`.
    async fn pass_conditionally(
        &self,
        term: &ServedTerm,
        summary: &RequestSummary,
        mut request: Checked,
        client: Condition,
        ticket: Ticket,
    ) -> Result<(Response, bool), Failure> {
        let Some(fence) = &summary.fence else { return Err(no_fence().into()) };
        let is_repeatable = request.is_repeatable();
        let kind = ticket.kind();
        let was_quarantined = term.lanes.is_quarantined(&fence.lock);
        let (mut result, mut ticket) =
            self.try_conditionally(term, &mut request, &client, ticket).await;
        if result.shows_a_state() {
            // A lower write of unknown outcome may still change what this reply would show; only
            // one that was applied stops it. So it waits as a read does.
            ticket.ended();
            let was_quarantined = was_quarantined || term.lanes.is_quarantined(&fence.lock);
            let resource = request.resource();
            ticket = self.enter(term, summary, fence, resource, Kind::Read).await?;
            if was_quarantined && is_repeatable {
                ticket.ended();
                ticket = self.enter(term, summary, fence, request.resource(), kind).await?;
                (result, ticket) =
                    self.try_conditionally(term, &mut request, &client, ticket).await;
            }
        }
        let (forwarded, is_atomic) = match result {
            Conditional::Forwarded { forwarded, is_atomic, .. } => {
                (forwarded, is_atomic && kind.is_conditional())
            }
            Conditional::NotApplied(outcome) => {
                ticket.ended();
                return Err(self.refuse(summary, outcome));
            }
            Conditional::Unconditional => {
                ticket.ended();
                let resource = request.resource();
                let ticket = self.enter(term, summary, fence, resource, Kind::Write).await?;
                let response = self.pass(term, summary, request, Kind::Write, Some(ticket)).await;
                return Ok((response, false));
            }
        };
        settle(ticket, &forwarded);
        Ok((fenced(summary.fence.as_ref().map(token), forwarded.response), is_atomic))
    }

    /// Tries a conditional write once; the ticket knows if it lost its condition.
    async fn try_conditionally(
        &self,
        term: &ServedTerm,
        request: &mut Checked,
        client: &Condition,
        mut ticket: Ticket,
    ) -> (Conditional, Ticket) {
        let result = match self.conditions() {
            Some(conditions) => {
                self.sender.conditionally(term, conditions, request, client.clone()).await
            }
            None => Conditional::Unconditional,
        };
        if let Conditional::Forwarded { is_conditional: false, .. } = result {
            ticket.lose_condition();
        }
        (result, ticket)
    }

    /// Records the token and forwards at once (observe mode).
    async fn watch(
        &self,
        term: &ServedTerm,
        summary: &RequestSummary,
        request: Checked,
        kind: Kind,
    ) -> Response {
        let mark = match &summary.fence {
            None => None,
            Some(fence) => {
                let noted = self.lanes.record(fence.clone()).await;
                self.guard().let_pass(summary, request.resource(), &noted)
            }
        };
        let forwarded = self.sender.send(term, request, kind).await;
        if forwarded.is_unknown {
            self.guard().counters.unknown_outcomes.inc();
        }
        fenced(mark, forwarded.response)
    }

    fn refuse(
        &self,
        summary: &RequestSummary,
        outcome: Result<crate::stores::contract::FenceOutcome, crate::stores::contract::StoreError>,
    ) -> Failure {
        match self.guard().account(summary, outcome) {
            Err(failure) => failure,
            Ok(_) => Reject::new(Code::Internal, "a refusal was accounted as a success").into(),
        }
    }
}

fn settle(ticket: Ticket, forwarded: &Forwarded) {
    if forwarded.is_unknown {
        ticket.unanswered();
    } else {
        ticket.ended();
    }
}

fn token(fence: &Fence) -> Token {
    fence.presented.token
}

fn no_fence() -> Reject {
    Reject::new(Code::Internal, "a conditional write has no fence")
}
