//! Conditional writes at the proxy: carries out the steps of an [`Attempt`].

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use fence_protocol::Code;
use http::header::IF_UNMODIFIED_SINCE;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt as _, Either, Full};
use service_kit::problem::Reject;
use service_kit::{Kit, ids};
use tokio::sync::oneshot;

use super::body::{ReplyLimits, StreamedRequest};
use super::client::{Client, UpstreamBody};
use super::conditions::Conditions;
use super::conditions::attempt::{
    Attempt, AttemptStep, End, Precondition, Seen, Written, strong_tag,
};
use super::conditions::probe::{self, Origin, PROBED_BYTES, Reply};
use super::forward::{APPLIED, Checked, Forwarded, Forwarder, Sender};
use super::lane::Kind;
use super::leadership::ServedTerm;
use super::path_key::PathKey;
use super::term::Term;
use super::upstream::Upstream;
use crate::counters::Counters;
use crate::doors::http::body_budget::BodyBudget;
use crate::doors::http::headers::condition;
use crate::doors::http::unread::Unread;
use crate::etag::Condition;
use crate::rules::Intent;
use crate::stores::contract::{FenceOutcome, StoreError};

/// Largest reply to the probe, in bytes.
const MAX_PROBE_REPLY_BYTES: usize = 1 << 20;

/// Result of a conditional write.
pub(super) enum Conditional {
    /// There is a reply; `is_atomic` if the upstream applied the write under its condition.
    /// Without `is_conditional` a write of unknown outcome may take effect whatever the version is.
    Forwarded { forwarded: Forwarded, is_atomic: bool, is_conditional: bool },
    /// Nothing was applied.
    NotApplied(Result<FenceOutcome, StoreError>),
    /// Nothing was applied, and the request must be sent without a condition.
    Unconditional,
}

impl Conditional {
    /// `true` if the write was not applied and its reply would show the state of the resource.
    pub(super) fn shows_a_state(&self) -> bool {
        match self {
            Self::Forwarded { forwarded, .. } => {
                !forwarded.is_unknown && !forwarded.response.status().is_success()
            }
            Self::NotApplied(outcome) => outcome.is_ok(),
            Self::Unconditional => false,
        }
    }
}

/// Reads a client's condition on a write that gets one of the guard's own.
///
/// # Errors
/// 400 for a malformed condition, and for one that the guard's would replace unchecked.
pub(super) fn client_condition(headers: &HeaderMap) -> Result<Condition, Reject> {
    if headers.contains_key(IF_UNMODIFIED_SINCE) {
        let detail = "If-Unmodified-Since is refused: this proxy sends writes under an ETag, which \
                      an upstream checks in its place; use If-Match";
        return Err(Reject::new(Code::InvalidRequest, detail));
    }
    Ok(condition(headers)?)
}

impl Sender {
    /// Sends a PUT or DELETE under the version of its resource until its outcome is certain, or
    /// cannot be.
    pub(super) async fn conditionally(
        &self,
        term: &ServedTerm,
        conditions: &Conditions,
        request: &mut Checked,
        client: Condition,
    ) -> Conditional {
        let is_delete = request.method == Method::DELETE;
        let slot = conditions.versions.slot(&request.target());
        let Ok(mut known) =
            tokio::time::timeout(self.forwarder.upstream.timeout, slot.lock()).await
        else {
            let text = "earlier writes of the same resource are under way".to_owned();
            return Conditional::NotApplied(Err(StoreError::Unavailable(text)));
        };
        let mut attempt = Attempt::new(is_delete, client, known.take(), request.is_repeatable());
        let mut last = None;
        let mut unknown = None;
        let end = loop {
            match attempt.step() {
                AttemptStep::End(end) => break end,
                AttemptStep::Look => {
                    let forwarded = self.forwarder.head(&term.client, request.head()).await;
                    attempt.looked(seen(&forwarded));
                    last = Some(forwarded);
                }
                AttemptStep::Send(precondition) => {
                    let mut write = request.take();
                    precondition.apply(&mut write.headers);
                    let forwarded = self.send(term, write, Kind::Write).await;
                    attempt.replied(written(&forwarded));
                    if forwarded.is_unknown {
                        unknown.get_or_insert(forwarded);
                    } else {
                        last = Some(forwarded);
                    }
                }
            }
        };
        let doubt = attempt.doubt();
        if let Some(doubt) = doubt {
            conditions.doubt(request.key.encoded(), doubt);
        }
        let is_sound = conditions.is_trusted();
        if attempt.is_unknown() && matches!(end, End::Replied | End::Settled) {
            self.counters.settled_outcomes.inc();
            tracing::info!(key = %request.key, "a write of unknown outcome was settled");
        }
        *known = attempt.version();
        drop(known);
        let forwarded = match end {
            End::Replied | End::Looked => last,
            End::Settled => unknown.map(|forwarded| Forwarded { is_unknown: false, ..forwarded }),
            End::Unsettled => unknown,
            End::Failed { current: etag } => {
                let failed = FenceOutcome::PreconditionFailed { etag, mark: None };
                return Conditional::NotApplied(Ok(failed));
            }
            End::Contended => {
                let text = "the resource changed before each attempt to write it".to_owned();
                return Conditional::NotApplied(Err(StoreError::Unavailable(text)));
            }
            End::Unconditional => return Conditional::Unconditional,
        };
        let Some(forwarded) = forwarded else {
            let text = "the write ended without a reply".to_owned();
            return Conditional::NotApplied(Err(StoreError::Unknown(text)));
        };
        let is_applied = end == End::Replied && forwarded.response.status().is_success();
        Conditional::Forwarded {
            is_atomic: is_applied && !is_delete && is_sound,
            is_conditional: doubt.is_none(),
            forwarded,
        }
    }
}

fn seen(forwarded: &Forwarded) -> Seen {
    if forwarded.verdict != APPLIED {
        return Seen::Nothing;
    }
    Seen::from_reply(forwarded.response.status(), forwarded.response.headers())
}

fn written(forwarded: &Forwarded) -> Written {
    match (forwarded.is_unknown, forwarded.verdict) {
        (_, APPLIED) => {
            Written::from_reply(forwarded.response.status(), forwarded.response.headers())
        }
        (true, _) => Written::Unknown,
        (false, _) => Written::Other,
    }
}

/// Probes the upstream under a folder.
///
/// # Errors
/// A sentence: the check that failed, and what was seen.
pub(super) async fn probe(
    upstream: &Arc<Upstream>,
    folder: &PathKey,
    counters: &Counters,
    kit: &Kit,
) -> Result<Arc<Conditions>, String> {
    let name = format!("{}/fencepost-probe-{}", folder.encoded(), ids::random_hex(8));
    let key = PathKey::from_path(&name).map_err(|invalid| invalid.to_string())?;
    let client = Client::new(upstream, Term::default(), &kit.tasks);
    let bytes_max = MAX_PROBE_REPLY_BYTES;
    let reply_limits = ReplyLimits { bytes_max, budget: BodyBudget::new(bytes_max, bytes_max) };
    let forwarder = Forwarder::new(upstream, reply_limits);
    let origin = ProbedOrigin { client, forwarder, key };
    let shown = probe::examine(&origin).await?;
    Ok(Arc::new(Conditions::new(shown, counters.clone())))
}

/// A resource of the upstream for the probe.
struct ProbedOrigin {
    client: Client,
    forwarder: Forwarder,
    key: PathKey,
}

impl ProbedOrigin {
    async fn exchange(
        &self,
        method: Method,
        precondition: Option<&Precondition>,
        body: UpstreamBody,
    ) -> Result<Reply, String> {
        let mut headers = HeaderMap::new();
        if method == Method::PUT {
            let json = http::HeaderValue::from_static("application/json");
            headers.insert(http::header::CONTENT_TYPE, json);
        }
        if let Some(precondition) = precondition {
            precondition.apply(&mut headers);
        }
        let what = format!("a {method} of {}", self.key);
        let request = Checked { method, key: self.key.clone(), query: None, headers, body };
        let Forwarded { is_unknown, verdict, response } =
            self.forwarder.send(&self.client, request, Intent::Write).await;
        let (head, body) = Response::into_parts(response);
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        if is_unknown || verdict != APPLIED {
            let text = String::from_utf8_lossy(&body);
            return Err(format!("{what} got no reply: {text}"));
        }
        Ok(Reply { status: head.status, tag: strong_tag(&head.headers), body: body.to_vec() })
    }
}

impl Origin for ProbedOrigin {
    async fn send(
        &self,
        method: Method,
        precondition: Option<&Precondition>,
        body: &str,
    ) -> Result<Reply, String> {
        self.exchange(method, precondition, Either::Left(Full::from(body.to_owned()))).await
    }

    async fn put_in_halves(
        &self,
        precondition: &Precondition,
        first_is_out: oneshot::Sender<()>,
        second: oneshot::Receiver<()>,
    ) -> Result<Reply, String> {
        let mut first = Bytes::from(format!("\"{}\"", " ".repeat(PROBED_BYTES - 2)));
        let rest = first.split_off(PROBED_BYTES / 2);
        let rest = Body::from_stream(futures_util::stream::once(async move {
            // The probe may have ended.
            let _ = first_is_out.send(());
            let _ = second.await;
            Ok::<_, std::convert::Infallible>(rest)
        }));
        let length = PROBED_BYTES as u64;
        let body = StreamedRequest::new(first, rest, length, Unread::new(&Body::empty()));
        self.exchange(Method::PUT, Some(precondition), Either::Right(Body::new(body))).await
    }
}
