//! A client of etcd: several endpoints, a time-out for every request, and its outcome.
//!
//! A request that is harmless to repeat ([`Effect::Harmless`]: it reads, or says what it wants by
//! an id of its own) is tried at one endpoint after the other, and so is one that changes only what
//! it compares ([`Effect::Compared`]). Where a request that writes may have been done, the outcome
//! is [`CallError::Unknown`], and its caller reads back.

mod access;
mod calls;
mod channel;
mod envelope;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod login;
mod verdict;
mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use prost::Message;

use self::channel::{Member, Path, Replies};
use self::login::{Login, User};
use self::verdict::{Raw, Verdict};
use super::url::EtcdTarget;
use service_kit::login::StoreLogin;

/// The longest reply that is read, in bytes.
const REPLY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Effect of a request: decides whether it may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// A second time changes nothing more, and the answer is the same.
    Harmless,
    /// It only reads.
    Reads,
    /// It compares what it changes, so that a second time changes nothing; but whether the first
    /// one was done, its answer does not say.
    Compared,
}

/// Why there is no answer to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// Nothing was done; etcd cannot be used now.
    #[error("{0}")]
    Down(String),
    /// It may have been done, or may be done yet.
    #[error("{0}")]
    Unknown(String),
    /// etcd is full. It says so of what it did not do, and of what it did when it became full; it
    /// does nothing later.
    #[error("{0}")]
    Full(String),
    /// etcd said no; nothing was done.
    #[error("etcd refuses: {message}")]
    Refused {
        /// As gRPC numbers it.
        code: u32,
        /// In etcd's words.
        message: String,
    },
}

impl CallError {
    /// Returns whether etcd replied that the etcd lease does not exist.
    pub(super) fn is_no_lease(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains("lease not found"))
    }

    /// Returns whether etcd replied that the etcd lease exists already.
    pub(super) fn is_lease_there(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains("lease already exists"))
    }
}

/// A client of one etcd.
#[derive(Debug)]
pub(super) struct EtcdClient {
    members: Vec<Member>,
    /// The one that replied last.
    current: AtomicUsize,
    timeout: Duration,
    user: Option<User>,
    login: Login,
}

impl EtcdClient {
    /// A client; nothing is sent yet.
    ///
    /// # Errors
    /// A sentence where the certificates cannot be used, or user and password do not fit together.
    pub(super) fn new(
        target: &EtcdTarget,
        login: &StoreLogin,
        connect_timeout: Duration,
        timeout: Duration,
    ) -> Result<Self, String> {
        let user = access::user(target, login)?;
        let tls = access::tls(target, login)?;
        let member = |address| Member::new(address, tls.clone(), connect_timeout, timeout);
        Ok(Self {
            members: target.addresses().map(member).collect::<Result<_, _>>()?,
            current: AtomicUsize::new(0),
            timeout,
            user,
            login: Login::default(),
        })
    }

    /// Returns the number of endpoints.
    pub(super) fn endpoint_count(&self) -> usize {
        self.members.len()
    }

    /// The endpoint that answered last.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// The endpoint that answered last, as a URL.
    pub(super) fn current_url(&self) -> &str {
        self.members.get(self.current()).map_or("", Member::url)
    }

    /// Returns the time-out of one request at one endpoint.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks one endpoint after the other, the one that answered last first.
    ///
    /// # Errors
    /// [`CallError`].
    pub(super) async fn call<T: Message + Default>(
        &self,
        path: Path,
        message: &impl Message,
        effect: Effect,
    ) -> Result<T, CallError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        let mut unclear = false;
        for step in 0..self.endpoint_count() {
            let endpoint = (first + step) % self.endpoint_count();
            let reason = match self.call_at(endpoint, path, message).await {
                Ok(reply) => {
                    self.current.store(endpoint, Ordering::Relaxed);
                    return Ok(reply);
                }
                Err(answer @ (Verdict::Refused { .. } | Verdict::Closed(_) | Verdict::Full(_))) => {
                    // It answers, so that the next request need not wait for the one before it.
                    self.current.store(endpoint, Ordering::Relaxed);
                    let url = self.members[endpoint].url();
                    return Err(final_answer(answer, effect, unclear, url));
                }
                Err(Verdict::LoginAgain) => "it takes no token of a login".to_owned(),
                Err(Verdict::NotDone(reason)) => reason,
                Err(Verdict::Unclear(reason)) => {
                    unclear |= effect == Effect::Compared;
                    reason
                }
            };
            reasons.push(format!("{}: {reason}", self.members[endpoint].url()));
        }
        let reasons = format!("etcd cannot be used: {}", reasons.join("; "));
        Err(if unclear { CallError::Unknown(reasons) } else { CallError::Down(reasons) })
    }

    /// Asks one endpoint; logs in where that is needed.
    async fn call_at<T: Message + Default>(
        &self,
        endpoint: usize,
        path: Path,
        message: &impl Message,
    ) -> Result<T, Verdict> {
        let mut refused = None;
        loop {
            let token = self.token(endpoint, refused.as_ref()).await?;
            let member = &self.members[endpoint];
            let reply = member.call(path, message, token.as_ref(), REPLY_BYTES_MAX).await;
            let verdict = match reply {
                Raw::Reply(reply) => {
                    return T::decode(reply)
                        .map_err(|error| Verdict::Unclear(format!("no reply of etcd: {error}")));
                }
                other => verdict::from_raw(other, self.user_name()),
            };
            // A token that is refused is replaced once.
            if verdict != Verdict::LoginAgain || refused.is_some() || token.is_none() {
                return Err(verdict);
            }
            refused = token;
        }
    }

    async fn token(
        &self,
        endpoint: usize,
        refused: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, Verdict> {
        match &self.user {
            Some(user) => self.login.token(&self.members[endpoint], user, refused).await.map(Some),
            None => Ok(None),
        }
    }

    fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// Opens a stream at the first endpoint that gives one, and says which.
    async fn open_stream(
        &self,
        path: Path,
        message: &impl Message,
        bytes_max: usize,
    ) -> Result<(usize, Replies), CallError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut last = String::new();
        for step in 0..self.endpoint_count() {
            let endpoint = (first + step) % self.endpoint_count();
            let token = match self.token(endpoint, None).await {
                Ok(token) => token,
                Err(verdict) => {
                    last = format!("{verdict:?}");
                    continue;
                }
            };
            let opened = self.members[endpoint].stream(path, message, token.as_ref(), bytes_max);
            match opened.await {
                Ok(replies) => {
                    self.current.store(endpoint, Ordering::Relaxed);
                    return Ok((endpoint, replies));
                }
                Err(raw) => last = format!("{:?}", verdict::from_raw(raw, self.user_name())),
            }
        }
        Err(CallError::Down(format!("etcd cannot be watched: {last}")))
    }
}

/// The error of a reply that another member would give as well. A change that this member refuses
/// may have been done by the member that was asked before.
fn final_answer(answer: Verdict, effect: Effect, unclear: bool, url: &str) -> CallError {
    let is_full = matches!(answer, Verdict::Full(_));
    let reason = match answer {
        Verdict::Refused { code, message } if !unclear => {
            return CallError::Refused { code, message };
        }
        Verdict::Refused { message, .. } => format!("{url}: etcd refuses: {message}"),
        Verdict::Closed(reason)
        | Verdict::Full(reason)
        | Verdict::NotDone(reason)
        | Verdict::Unclear(reason) => format!("{url}: {reason}"),
        Verdict::LoginAgain => format!("{url}: it takes no token of a login"),
    };
    match effect {
        _ if unclear => CallError::Unknown(reason),
        Effect::Compared | Effect::Reads if is_full => CallError::Full(reason),
        _ => CallError::Down(reason),
    }
}

#[cfg(test)]
mod tests;
