//! etcd's JSON gateway: several endpoints, a time-out for every request, and a plain word on what
//! became of it.
//!
//! A request that is harmless to repeat ([`Effect::Harmless`]: it reads, or says what it wants by
//! an id of its own) is tried at one endpoint after the other, and so is one that changes only what
//! it compares ([`Effect::Compared`]). Where a request that writes may have been done, the outcome is
//! [`GatewayError::Unknown`], and its caller reads back.

mod calls;
mod client;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod login;
mod verdict;
mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use serde::de::DeserializeOwned;

use self::login::{Login, User};
use self::verdict::Verdict;
use super::url::EtcdTarget;
use service_kit::login::StoreLogin;

const JSON: &str = "application/json";
/// The longest answer that is read, in bytes.
const REPLY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Whether a request may be sent a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// A second time changes nothing more, and the answer is the same.
    Harmless,
    /// It compares what it changes, so that a second time changes nothing; but whether the first one
    /// was done, its answer does not say.
    Compared,
}

/// Why there is no answer to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GatewayError {
    /// Nothing was done; etcd cannot be used now.
    #[error("{0}")]
    Down(String),
    /// It may have been done, or may be done yet.
    #[error("{0}")]
    Unknown(String),
    /// etcd is full. It says so of what it did not do, and of what it did when it became full; it does
    /// nothing later.
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

impl GatewayError {
    /// Whether etcd said that there is no such etcd lease.
    pub(super) fn is_no_lease(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains("lease not found"))
    }

    /// Whether etcd said that there is such an etcd lease already.
    pub(super) fn is_lease_there(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains("lease already exists"))
    }
}

/// A client of one etcd.
#[derive(Debug)]
pub(super) struct Gateway {
    endpoints: Endpoints,
    /// The one that answered last.
    current: AtomicUsize,
    user: Option<User>,
    login: Login,
}

/// The members of an etcd, as they are talked to.
#[derive(Debug)]
pub(super) struct Endpoints {
    http: reqwest::Client,
    urls: Vec<String>,
    timeout: Duration,
}

/// What came of one request to one member.
enum Raw {
    Reply { status: u16, body: Vec<u8> },
    NotSent(String),
    NoAnswer(String),
}

impl Gateway {
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
        let user = client::user(target, login)?;
        let http = client::http(target, login, connect_timeout)?;
        let urls = target.endpoints().collect();
        Ok(Self {
            endpoints: Endpoints { http, urls, timeout },
            current: AtomicUsize::new(0),
            user,
            login: Login::default(),
        })
    }

    /// How many endpoints there are.
    pub(super) fn endpoint_count(&self) -> usize {
        self.endpoints.urls.len()
    }

    /// The endpoint that answered last.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// The endpoint that answered last, as a URL.
    pub(super) fn current_url(&self) -> &str {
        self.endpoints.urls.get(self.current()).map_or("", String::as_str)
    }

    /// How long one request may take at one endpoint.
    pub(super) fn timeout(&self) -> Duration {
        self.endpoints.timeout
    }

    /// Asks one endpoint after the other, the one that answered last first.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &str,
        effect: Effect,
    ) -> Result<T, GatewayError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        let mut unclear = false;
        for step in 0..self.endpoint_count() {
            let endpoint = (first + step) % self.endpoint_count();
            let reason = match self.call_at(endpoint, path, body).await {
                Ok(reply) => {
                    self.current.store(endpoint, Ordering::Relaxed);
                    return Ok(reply);
                }
                Err(answer @ (Verdict::Refused { .. } | Verdict::Closed(_) | Verdict::Full(_))) => {
                    // It answers, so that the next request need not wait for the one before it.
                    self.current.store(endpoint, Ordering::Relaxed);
                    let url = &self.endpoints.urls[endpoint];
                    return Err(final_answer(answer, effect, unclear, url));
                }
                Err(Verdict::LoginAgain) => "it takes no token of a login".to_owned(),
                Err(Verdict::NotDone(reason)) => reason,
                Err(Verdict::Unclear(reason)) => {
                    unclear |= effect == Effect::Compared;
                    reason
                }
            };
            reasons.push(format!("{}: {reason}", self.endpoints.urls[endpoint]));
        }
        let reasons = format!("etcd cannot be used: {}", reasons.join("; "));
        Err(if unclear { GatewayError::Unknown(reasons) } else { GatewayError::Down(reasons) })
    }

    /// Asks one endpoint; logs in where that is needed.
    async fn call_at<T: DeserializeOwned>(
        &self,
        endpoint: usize,
        path: &str,
        body: &str,
    ) -> Result<T, Verdict> {
        let mut refused = None;
        loop {
            let token = self.token(endpoint, refused.as_deref()).await?;
            let answer = match self.endpoints.post(endpoint, path, body, token.as_deref()).await {
                Raw::Reply { status: 200, body } => {
                    return serde_json::from_slice(&body)
                        .map_err(|error| Verdict::Unclear(format!("no answer of etcd: {error}")));
                }
                Raw::Reply { status, body } => verdict::judge(status, &body, self.user_name()),
                Raw::NotSent(reason) => Verdict::NotDone(reason),
                Raw::NoAnswer(reason) => Verdict::Unclear(reason),
            };
            // A token that is refused is replaced once.
            if answer != Verdict::LoginAgain || refused.is_some() || token.is_none() {
                return Err(answer);
            }
            refused = token;
        }
    }

    async fn token(
        &self,
        endpoint: usize,
        refused: Option<&str>,
    ) -> Result<Option<String>, Verdict> {
        match &self.user {
            Some(user) => {
                self.login.token(&self.endpoints, endpoint, user, refused).await.map(Some)
            }
            None => Ok(None),
        }
    }

    fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// Opens a stream at the first endpoint that gives one, and says which.
    async fn open_stream(
        &self,
        path: &str,
        body: &str,
    ) -> Result<(usize, reqwest::Response), GatewayError> {
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
            let request = self.endpoints.request(endpoint, path, body, token.as_deref());
            let sent = tokio::time::timeout(self.endpoints.timeout, request.send()).await;
            last = match sent {
                Ok(Ok(response)) if response.status() == 200 => {
                    self.current.store(endpoint, Ordering::Relaxed);
                    return Ok((endpoint, response));
                }
                Ok(Ok(response)) => format!("it answers {}", response.status()),
                Ok(Err(error)) => causes(error),
                Err(_) => "no answer in time".to_owned(),
            };
        }
        Err(GatewayError::Down(format!("etcd cannot be watched: {last}")))
    }
}

/// What an answer comes to that another member would give as well. What this member does not do, the
/// one that was asked before may have done.
fn final_answer(answer: Verdict, effect: Effect, unclear: bool, url: &str) -> GatewayError {
    let is_full = matches!(answer, Verdict::Full(_));
    let reason = match answer {
        Verdict::Refused { code, message } if !unclear => {
            return GatewayError::Refused { code, message };
        }
        Verdict::Refused { message, .. } => format!("{url}: etcd refuses: {message}"),
        Verdict::Closed(reason)
        | Verdict::Full(reason)
        | Verdict::NotDone(reason)
        | Verdict::Unclear(reason) => format!("{url}: {reason}"),
        Verdict::LoginAgain => format!("{url}: it takes no token of a login"),
    };
    match effect {
        _ if unclear => GatewayError::Unknown(reason),
        Effect::Compared if is_full => GatewayError::Full(reason),
        _ => GatewayError::Down(reason),
    }
}

impl Endpoints {
    fn request(
        &self,
        endpoint: usize,
        path: &str,
        body: &str,
        token: Option<&str>,
    ) -> reqwest::RequestBuilder {
        let request = self.http.post(format!("{}{path}", self.urls[endpoint]));
        let request = request.header(CONTENT_TYPE, JSON).body(body.to_owned());
        match token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        }
    }

    async fn post(&self, endpoint: usize, path: &str, body: &str, token: Option<&str>) -> Raw {
        let request = self.request(endpoint, path, body, token).timeout(self.timeout);
        match request.send().await {
            Ok(response) => {
                let status = response.status().as_u16();
                match read(response).await {
                    Ok(body) => Raw::Reply { status, body },
                    Err(reason) => Raw::NoAnswer(reason),
                }
            }
            Err(error) if error.is_connect() => Raw::NotSent(causes(error)),
            Err(error) if error.is_timeout() => {
                Raw::NoAnswer(format!("no answer within {} ms", self.timeout.as_millis()))
            }
            Err(error) => Raw::NoAnswer(self.broken(endpoint, error)),
        }
    }
}

impl Endpoints {
    /// A connection that ended without an answer. Behind TLS that is also how a certificate is
    /// refused: the handshake is over for the client before its own certificate was looked at, and
    /// whether the reason is heard after it is a matter of luck.
    fn broken(&self, endpoint: usize, error: reqwest::Error) -> String {
        let text = causes(error);
        let is_tls = self.urls.get(endpoint).is_some_and(|url| url.starts_with("https:"));
        if !is_tls || text.contains("ertificate") {
            return text;
        }
        format!(
            "{text}; where it asks for a certificate of its clients, --store-cert and --store-key \
             name one of the authority that it trusts"
        )
    }
}

async fn read(mut response: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(causes)? {
        if body.len() + chunk.len() > REPLY_BYTES_MAX {
            return Err(format!("it answers more than {REPLY_BYTES_MAX} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// An error with what caused it last, which says most.
fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut last: &dyn std::error::Error = &error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let text = verdict::shortened(&last.to_string());
    if text.contains("ertificate") {
        return format!(
            "{text}; --store-ca names the authority that signed etcd's certificate, --store-cert \
             and --store-key the one that etcd asks for"
        );
    }
    text
}

#[cfg(test)]
mod tests;
