//! Objects behind the guard. Every operation takes the lease that it is done under.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use fence_protocol::wire::fence::{FencePage, FenceReply, Guarantee, SealReply};
use fence_protocol::{
    FENCING_GUARANTEE, FENCING_MARK, FENCING_TOKEN, IDEMPOTENCY_REPLAYED, LockName, Owner, Token,
};
use percent_encoding::utf8_percent_encode;
use reqwest::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, RequestBuilder};

use crate::locks::{CALL_TIMEOUT, ENCODED};
use crate::object_change::{OBJECT_BYTES_MAX, OpId};
use crate::transport::{Effect, Endpoint, Failure, Reply};
use crate::{Error, ErrorKind, Fence, object_change};

/// How long an operation on an object may take.
const OBJECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The guard's objects.
///
/// A lease that can no longer be trusted is refused here, without a request.
///
/// A write or delete that got no reply is repeated up to twice, for as long as its lease can be
/// trusted: under one name (`Idempotency-Key`), so that the guard answers a repeat with what became
/// of the first and does nothing twice. Nothing else is repeated by itself: an error's
/// [`kind`](Error::kind) says whether that would help. Dropping a future does not undo what has been
/// sent.
#[derive(Clone, Debug)]
pub struct FencedStore {
    endpoint: Endpoint,
    owner: Owner,
}

/// An object that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its bytes.
    pub body: Bytes,
    /// What kind of bytes.
    pub content_type: Option<String>,
    /// Its version, for [`PutRequest::if_match`].
    pub etag: Option<String>,
    /// What the guard said beside it.
    pub applied: Applied,
}

/// What the guard says about an operation that was done.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Applied {
    /// The mark of the lock: nothing below it is applied from now on.
    pub mark: Option<Token>,
    /// What the guard guarantees for its store.
    pub guarantee: Option<Guarantee>,
    /// The version of the object after it.
    pub etag: Option<String>,
    /// Whether it had been done before under its name, and this is the account of that.
    pub replayed: bool,
}

impl FencedStore {
    pub(crate) fn new(endpoint: Endpoint, owner: Owner) -> Self {
        Self { endpoint, owner }
    }

    /// Reads an object; `None` where there is none. Raises the mark, so that an older holder can no
    /// longer change what was read.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] for a lease that is lost here, [`ErrorKind::Stale`] where a newer
    /// holder has been at the data.
    pub async fn get(&self, lease: &impl Fence, key: &str) -> Result<Option<Object>, Error> {
        let request = self.fenced(Method::GET, lease, &object_path(key)?)?;
        self.read(request, key).await
    }

    /// Reads an object without a token. The guard may refuse that; where it does not, what comes
    /// back may be overtaken by any holder.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the guard wants a token.
    pub async fn get_unfenced(&self, key: &str) -> Result<Option<Object>, Error> {
        let request = self.endpoint.request(Method::GET, &object_path(key)?, OBJECT_TIMEOUT);
        self.read(request, key).await
    }

    async fn read(&self, request: RequestBuilder, key: &str) -> Result<Option<Object>, Error> {
        match self.endpoint.send(request, OBJECT_BYTES_MAX).await {
            Ok(reply) => Ok(Some(Object {
                content_type: text(&reply.headers, CONTENT_TYPE.as_str()),
                etag: text(&reply.headers, ETAG.as_str()),
                applied: applied(&reply),
                body: reply.body,
            })),
            Err(Failure::Refused(problem, _)) if problem.status == 404 => Ok(None),
            Err(failure) => Err(failure.into_error(&format!("get {key}"), Effect::Reads)),
        }
    }

    /// Begins to write an object; await it to send it.
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

    /// Deletes an object and raises the mark. Deleting what is not there is a success, so that a
    /// repeated request is.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`ErrorKind::OutcomeUnknown`] where no reply came to it and to
    /// its repeats.
    pub async fn delete(&self, lease: &impl Fence, key: &str) -> Result<Applied, Error> {
        let path = object_path(key)?;
        let request = || self.fenced(Method::DELETE, lease, &path);
        let what = format!("delete {key}");
        let reply = object_change::send(&self.endpoint, &what, &OpId::random(), request).await?;
        Ok(applied(&reply))
    }

    /// Raises the lock's mark to this lease's token without touching data: nothing of an older
    /// holder is applied from now on.
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

    /// What the guard knows of a lock: its mark, and what it refused.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the guard cannot be reached.
    pub async fn fence(&self, lock: &LockName) -> Result<FenceReply, Error> {
        self.endpoint
            .get(&fence_path(lock, ""), CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error(&format!("show fence {lock}"), Effect::Reads))
    }

    /// A page of the guard's fences whose locks begin with `prefix`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the guard cannot be reached.
    pub async fn fences(&self, prefix: &str, after: Option<&LockName>) -> Result<FencePage, Error> {
        let mut path = format!("/v1/fences?prefix={}", utf8_percent_encode(prefix, ENCODED));
        if let Some(after) = after {
            path = format!("{path}&after={}", utf8_percent_encode(after.as_str(), ENCODED));
        }
        self.endpoint
            .get(&path, CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error("list fences", Effect::Reads))
    }

    /// A request with the lease's token. The lease is checked here, as late as can be: right before
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
        // Only for people who look at refusals; a name that no header can carry is left out.
        if let Ok(owner) = HeaderValue::from_str(self.owner.as_str()) {
            request = request.header("fence-owner", owner);
        }
        Ok(request)
    }
}

/// An object that is about to be written.
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

    /// What kind of bytes they are.
    pub fn content_type(self, content_type: &str) -> Self {
        self.header(CONTENT_TYPE, content_type)
    }

    /// Only where the object still has this version.
    pub fn if_match(self, etag: &str) -> Self {
        self.header(IF_MATCH, etag)
    }

    /// Only where there is no object yet.
    pub fn if_absent(self) -> Self {
        self.header(IF_NONE_MATCH, "*")
    }

    /// Under this name instead of a random one: 1 to 128 bytes of `A-Z a-z 0-9 . _ : -`. For a write
    /// whose outcome was not known, to be sent again later, perhaps by another process: where the
    /// guard did it under this name it is not done again, and answered as it was then. The guard
    /// remembers the last 64 of a lock; a name that is used for another write is refused.
    pub fn op_id(mut self, op_id: &str) -> Self {
        match OpId::new(op_id) {
            Ok(op_id) => self.op_id = op_id,
            Err(invalid) => self.refused = Some(invalid.into()),
        }
        self
    }

    /// Sends it; repeats it under the same name where no reply came.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] for a lease that is lost here (nothing is sent),
    /// [`ErrorKind::Stale`] where a newer holder has been at the data,
    /// [`ErrorKind::Precondition`] where the object has another version,
    /// [`ErrorKind::OutcomeUnknown`] where no reply came to it and to its repeats. A refusal of a
    /// repeat says by [`Error::outcome`] what became of the first.
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

fn applied(reply: &Reply) -> Applied {
    let guarantee = text(&reply.headers, FENCING_GUARANTEE);
    Applied {
        mark: text(&reply.headers, FENCING_MARK).and_then(|mark| mark.parse().ok()),
        guarantee: Guarantee::ALL
            .into_iter()
            .find(|known| guarantee.as_deref() == Some(known.as_str())),
        etag: text(&reply.headers, ETAG.as_str()),
        replayed: text(&reply.headers, IDEMPOTENCY_REPLAYED).as_deref() == Some("true"),
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn fence_path(lock: &LockName, verb: &str) -> String {
    format!("/v1/fences/{}{verb}", utf8_percent_encode(lock.as_str(), ENCODED))
}

/// The path of an object: its slashes stay, everything else is encoded. A key with an empty, `.` or
/// `..` segment is refused here, because URLs do not keep such segments: the request would be about
/// another object.
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
