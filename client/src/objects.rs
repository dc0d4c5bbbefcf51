//! Objects behind the guard. Every fenced operation takes a lease.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use fence_protocol::wire::fence::{FencePage, FenceReply, Guarantee, SealReply};
use fence_protocol::wire::lane::{LaneLine, LanePage, QuarantineRequest};
use fence_protocol::{
    Code, FENCING_GUARANTEE, FENCING_MARK, FENCING_TOKEN, IDEMPOTENCY_REPLAYED, LockName, Owner,
    Problem, Token,
};
use percent_encoding::utf8_percent_encode;
use reqwest::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, RequestBuilder};

use crate::locks::{CALL_TIMEOUT, ENCODED};
use crate::object_change::{OBJECT_BYTES_MAX, OpId, of_guard};
use crate::transport::{Effect, Endpoint, Failure, OF_GUARD, Reply};
use crate::{Error, ErrorKind, Fence, object_change};

/// Time-out of one request about an object.
const OBJECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The objects behind the guard.
///
/// A call with a lease that can no longer be trusted fails without a request.
///
/// A write or delete without a reply is retried up to twice, while its lease can be trusted, under
/// one idempotency key (`Idempotency-Key`): the guard applies it once and replies to a retry with
/// the outcome of the first attempt. No other call is retried: an error's [`kind`](Error::kind)
/// says whether a retry would help. Dropping a future does not undo a request that was sent.
#[derive(Clone, Debug)]
pub struct FencedStore {
    pub(crate) endpoint: Endpoint,
    owner: Owner,
}

/// An object that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The content, at most 256 MiB.
    pub body: Bytes,
    /// The media type, if it has one.
    pub content_type: Option<String>,
    /// The version, for [`PutRequest::if_match`].
    pub etag: Option<String>,
    /// The guard's statement about the read.
    pub applied: Applied,
}

/// The guard's statement about an operation that was applied.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Applied {
    /// The mark of the lock: the guard applies nothing with a lower token from now on.
    pub mark: Option<Token>,
    /// The guard's guarantee for its store, if this client knows it.
    pub guarantee: Option<Guarantee>,
    /// The version of the object after the operation.
    pub etag: Option<String>,
    /// `true` if an earlier attempt with the same idempotency key was applied, and this is its
    /// reply.
    pub replayed: bool,
}

impl FencedStore {
    pub(crate) fn new(endpoint: Endpoint, owner: Owner) -> Self {
        Self { endpoint, owner }
    }

    /// Reads an object; `None` if it does not exist. Raises the mark, so that an older holder can
    /// no longer change what was read.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the lease is lost (nothing is sent), [`ErrorKind::Stale`] if the
    /// guard has seen a higher token.
    pub async fn get(&self, lease: &impl Fence, key: &str) -> Result<Option<Object>, Error> {
        let request = self.fenced(Method::GET, lease, &object_path(key)?)?;
        self.read(request, key).await
    }

    /// Reads an object without a token. The guard may refuse that; if it does not, any holder may
    /// change the object at any time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the guard requires a token.
    pub async fn get_unfenced(&self, key: &str) -> Result<Option<Object>, Error> {
        let request = self.endpoint.request(Method::GET, &object_path(key)?, OBJECT_TIMEOUT);
        self.read(request, key).await
    }

    async fn read(&self, request: RequestBuilder, key: &str) -> Result<Option<Object>, Error> {
        let replied = self.endpoint.send(request, OBJECT_BYTES_MAX).await;
        match replied.and_then(of_guard).and_then(of_object) {
            Ok(reply) => Ok(Some(Object {
                content_type: text(&reply.headers, CONTENT_TYPE.as_str()),
                etag: text(&reply.headers, ETAG.as_str()),
                applied: applied(&reply),
                body: reply.body,
            })),
            Err(Failure::Refused(problem, _)) if is_absent(&problem) => Ok(None),
            Err(failure) => Err(failure.into_error(&format!("get {key}"), Effect::Reads)),
        }
    }

    /// Returns a request to write an object; await it to send it.
    pub fn put<'a, F: Fence>(
        &'a self,
        lease: &'a F,
        key: &'a str,
        body: impl Into<Bytes>,
    ) -> PutRequest<'a, F> {
        let headers = HeaderMap::new();
        let op_id = OpId::random();
        PutRequest { store: self, lease, key, body: body.into(), headers, op_id, refused: None }
    }

    /// Deletes an object and raises the mark. Idempotent: deleting an object that does not exist
    /// succeeds.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`ErrorKind::OutcomeUnknown`] if neither the request nor its
    /// retries got a reply.
    pub async fn delete(&self, lease: &impl Fence, key: &str) -> Result<Applied, Error> {
        let path = object_path(key)?;
        let request = || self.fenced(Method::DELETE, lease, &path);
        let what = format!("delete {key}");
        let reply = object_change::send(&self.endpoint, &what, &OpId::random(), request).await?;
        Ok(applied(&reply))
    }

    /// Raises the lock's mark to this lease's token without changing data: the guard applies
    /// nothing of an older holder from now on. Not retried.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn seal(&self, lease: &impl Fence, lock: &LockName) -> Result<SealReply, Error> {
        let request = self.fenced(Method::POST, lease, &fence_path(lock, "/seal"))?;
        let reply = self.endpoint.send(request, OBJECT_BYTES_MAX).await;
        reply
            .and_then(|reply| reply.json())
            .map_err(|failure| failure.into_error(&format!("seal {lock}"), Effect::Changes))
    }

    /// Returns the guard's state of a lock: its mark and its refusals.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the guard is unreachable.
    pub async fn fence(&self, lock: &LockName) -> Result<FenceReply, Error> {
        self.endpoint
            .get(&fence_path(lock, ""), CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error(&format!("show fence {lock}"), Effect::Reads))
    }

    /// Returns a page of the guard's fences whose locks begin with `prefix` and follow `after`,
    /// ordered by name.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the guard is unreachable.
    pub async fn fences(&self, prefix: &str, after: Option<&LockName>) -> Result<FencePage, Error> {
        self.endpoint
            .get(&page_path("fences", prefix, after), CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error("list fences", Effect::Reads))
    }

    /// Returns a page of the lanes in use before an HTTP datastore, as [`fences`](Self::fences)
    /// does.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the guard is unreachable, another kind if it has no lanes.
    pub async fn lanes(&self, prefix: &str, after: Option<&LockName>) -> Result<LanePage, Error> {
        self.endpoint
            .get(&page_path("lanes", prefix, after), CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error("list lanes", Effect::Reads))
    }

    /// Resolves or extends the quarantine of a lane before an HTTP datastore, for an operator, and
    /// returns the lane. Not retried.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the lane has another quarantine than the request names, or one
    /// that cannot be resolved yet.
    pub async fn change_quarantine(
        &self,
        lock: &LockName,
        request: &QuarantineRequest,
    ) -> Result<LaneLine, Error> {
        let path = format!("/v1/lanes/{}/quarantine", utf8_percent_encode(lock.as_str(), ENCODED));
        self.endpoint.post(&path, request, CALL_TIMEOUT).await.map_err(|failure| {
            failure.into_error(&format!("change the quarantine of {lock}"), Effect::Changes)
        })
    }

    /// Builds a request with the lease's token. Checks the lease as late as possible: right before
    /// the request is sent.
    fn fenced(
        &self,
        method: Method,
        lease: &impl Fence,
        path: &str,
    ) -> Result<RequestBuilder, Error> {
        lease.check()?;
        let mut request = self
            .endpoint
            .request(method, path, OBJECT_TIMEOUT)
            .header(FENCING_TOKEN, lease.fencing_token());
        // Only for people who inspect refusals; omitted if a header cannot carry it.
        if let Ok(owner) = HeaderValue::from_str(self.owner.as_str()) {
            request = request.header("fence-owner", owner);
        }
        Ok(request)
    }
}

/// Request to write an object; see [`FencedStore::put`].
#[derive(Debug)]
#[must_use = "nothing is written before it is awaited"]
pub struct PutRequest<'a, F> {
    store: &'a FencedStore,
    lease: &'a F,
    key: &'a str,
    body: Bytes,
    headers: HeaderMap,
    op_id: OpId,
    refused: Option<Error>,
}

impl<F: Fence> PutRequest<'_, F> {
    fn header(mut self, name: reqwest::header::HeaderName, value: &str) -> Self {
        match HeaderValue::from_str(value) {
            Ok(value) => {
                self.headers.insert(name, value);
            }
            Err(_) => {
                let message = format!("{name} {value:?} has characters that no header can carry");
                self.refused = Some(Error::new(ErrorKind::Invalid, message));
            }
        }
        self
    }

    /// Sets the media type of the object.
    pub fn content_type(self, content_type: &str) -> Self {
        self.header(CONTENT_TYPE, content_type)
    }

    /// Writes only if the object still has this version.
    pub fn if_match(self, etag: &str) -> Self {
        self.header(IF_MATCH, etag)
    }

    /// Writes only if the object does not exist.
    pub fn if_absent(self) -> Self {
        self.header(IF_NONE_MATCH, "*")
    }

    /// Sets the idempotency key, random by default: 1 to 128 bytes of `A-Z a-z 0-9 . _ : -`. For a
    /// write with an unknown outcome that is retried later, perhaps by another process: if the
    /// guard has applied it, it does not apply it again and sends the same reply. The guard
    /// remembers the last 64 keys of a lock; it refuses a key that was used for a different write.
    pub fn op_id(mut self, op_id: &str) -> Self {
        match OpId::new(op_id) {
            Ok(op_id) => self.op_id = op_id,
            Err(invalid) => self.refused = Some(invalid.into()),
        }
        self
    }

    /// Sends the write; retries it up to twice under the same key if no reply arrives.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the lease is lost (nothing is sent), [`ErrorKind::Stale`] if the
    /// guard has seen a higher token, [`ErrorKind::Precondition`] if the object has another
    /// version, [`ErrorKind::OutcomeUnknown`] if neither the request nor its retries got a reply.
    /// After a refusal of a retry, [`Error::outcome`] is the outcome of the first attempt.
    pub async fn send(self) -> Result<Applied, Error> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let path = object_path(self.key)?;
        let request = || {
            let request = self.store.fenced(Method::PUT, self.lease, &path)?;
            Ok(request.headers(self.headers.clone()).body(self.body.clone()))
        };
        let what = format!("put {}", self.key);
        let reply = object_change::send(&self.store.endpoint, &what, &self.op_id, request).await?;
        Ok(applied(&reply))
    }
}

impl<'a, F: Fence> IntoFuture for PutRequest<'a, F> {
    type Output = Result<Applied, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Returns the reply if it has an object's version: a guard has other pages, too.
fn of_object(reply: Reply) -> Result<Reply, Failure> {
    let has_version = reply.headers.contains_key(ETAG);
    if has_version { Ok(reply) } else { Err(reply.foreign("it has no ETag header")) }
}

/// True if a guard replied that it has no such object. A lock server, or a wrong path, is 404 too.
fn is_absent(problem: &Problem) -> bool {
    problem.code == Code::NotFound && problem.extension(OF_GUARD) == Some(true)
}

fn applied(reply: &Reply) -> Applied {
    let guarantee = text(&reply.headers, FENCING_GUARANTEE);
    Applied {
        mark: text(&reply.headers, FENCING_MARK).and_then(|mark| mark.parse().ok()),
        guarantee: guarantee.and_then(|word| Guarantee::from_word(&word)),
        etag: text(&reply.headers, ETAG.as_str()),
        replayed: text(&reply.headers, IDEMPOTENCY_REPLAYED).as_deref() == Some("true"),
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn page_path(what: &str, prefix: &str, after: Option<&LockName>) -> String {
    let path = format!("/v1/{what}?prefix={}", utf8_percent_encode(prefix, ENCODED));
    match after {
        Some(after) => format!("{path}&after={}", utf8_percent_encode(after.as_str(), ENCODED)),
        None => path,
    }
}

fn fence_path(lock: &LockName, verb: &str) -> String {
    format!("/v1/fences/{}{verb}", utf8_percent_encode(lock.as_str(), ENCODED))
}

/// Path of an object: slashes stay, reserved characters are encoded. A key with an empty, `.` or
/// `..` segment is refused, because URLs drop such segments: the request would be about another
/// object.
fn object_path(key: &str) -> Result<String, Error> {
    if key.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        let message = format!("key {key:?} has an empty, . or .. segment");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let segments = key.split('/').map(|segment| utf8_percent_encode(segment, ENCODED).to_string());
    Ok(format!("/v1/objects/{}", segments.collect::<Vec<_>>().join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_slashes_and_nothing_else() {
        assert_eq!(object_path("orders/42/a b?").unwrap(), "/v1/objects/orders/42/a%20b%3F");
        assert_eq!(object_path("ü").unwrap(), "/v1/objects/%C3%BC");
        for bad in ["", "/a", "a/", "a//b", "../a", "a/./b"] {
            assert_eq!(*object_path(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
