//! Events of locks: a stream from the lock server that reconnects and resumes.
//!
//! ```no_run
//! # async fn example(client: fence_client::Client) -> Result<(), fence_client::Error> {
//! use fence_client::StreamItem;
//!
//! let mut stream = client.events("orders/").open().await?;
//! loop {
//!     match stream.next().await? {
//!         StreamItem::Event { id, event } => {
//!             println!("{id:?} {}: {:?}", event.kind.as_str(), event.lock);
//!         }
//!         StreamItem::Broken(error) => println!("{error}"),
//!         _ => {}
//!     }
//! }
//! # }
//! ```

use std::time::Duration;

use fence_protocol::wire::event::{Event, ExplainedLock};
use fence_protocol::{LeaseId, LockName};
use percent_encoding::utf8_percent_encode;
use reqwest::Response;

use crate::clock::Moment;
use crate::event_parser::Parser;
use crate::locks::{CALL_TIMEOUT, ENCODED, path};
use crate::transport::{Effect, Endpoint, Failure};
use crate::{Error, ErrorKind, Locks, clock, ids, timing};

/// Time-out of opening a stream. A server at which a stream is resumed may first have to read the
/// events up to that position.
const BEGIN: Duration = Duration::from_secs(10);
/// Longest silence of a live server, which sends at least a comment every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

/// Request for a stream of events; see [`Client::events`](crate::Client::events). Nothing is sent
/// before [`Events::open`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `open`"]
pub struct Events {
    endpoint: Endpoint,
    query: String,
    after: Option<String>,
}

impl Events {
    /// Requests the events of the locks whose names begin with `prefix`.
    pub(crate) fn for_prefix(endpoint: Endpoint, prefix: &str) -> Self {
        let query = format!("prefix={}", utf8_percent_encode(prefix, ENCODED));
        Self { endpoint, query, after: None }
    }

    /// Requests the events of one lock.
    pub(crate) fn for_lock(endpoint: Endpoint, lock: &LockName) -> Self {
        let query = format!("lock={}", utf8_percent_encode(lock.as_str(), ENCODED));
        Self { endpoint, query, after: None }
    }

    /// Starts after this id of an earlier stream. By default the stream starts now.
    pub fn after(mut self, id: impl Into<String>) -> Self {
        self.after = Some(id.into());
        self
    }

    /// Opens the stream.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the server is unreachable or has too many
    /// readers, [`Invalid`](ErrorKind::Invalid) for a prefix or an id that is not valid, for a
    /// missing permission, or if the server stores no events.
    pub async fn open(self) -> Result<EventStream, Error> {
        let body = self.connect().await?;
        let parser = Parser::default();
        Ok(EventStream { source: self, body: Some(body), parser, failures: 0, again_at: None })
    }

    async fn connect(&self) -> Result<Response, Error> {
        let path = format!("/v1/events?{}", self.query);
        let opened = self.endpoint.open_stream(&path, self.after.as_deref());
        let opened = tokio::time::timeout(BEGIN, opened).await;
        let silence = || Failure::NoReply(format!("no reply within {} s", BEGIN.as_secs()));
        opened
            .unwrap_or_else(|_| Err(silence()))
            .map_err(|failure| failure.into_error("events", Effect::Reads))
    }
}

/// Item of an [`EventStream`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamItem {
    /// Something has happened to a lock.
    Event {
        /// Position of the stream, for [`Events::after`]; absent from events about this reader
        /// alone, such as a gap or a reader that is too slow.
        id: Option<String>,
        /// Kind, lock and details.
        event: Box<Event>,
    },
    /// The connection broke and is retried; no events arrive until [`StreamItem::Resumed`].
    Broken(Error),
    /// The stream continues where it broke. If events are missing in between, the next item is an
    /// event of the kind [`Gap`](fence_protocol::wire::event::EventKind::Gap).
    Resumed,
}

/// Stream of the events of locks.
///
/// Events inform people and dashboards. They may arrive late, so do not base a decision on them
/// that a late event would make wrong: use tokens for that.
///
/// The client buffers at most one event; unread ones stay at the server, which sends a reader that
/// is too slow a report of what it missed.
#[derive(Debug)]
pub struct EventStream {
    source: Events,
    body: Option<Response>,
    parser: Parser,
    failures: u32,
    /// Moment of the next attempt to connect.
    again_at: Option<Moment>,
}

impl EventStream {
    /// Position of the stream: the argument of [`Events::after`] to resume from here.
    pub fn last_id(&self) -> Option<&str> {
        self.source.after.as_deref()
    }

    /// Returns the next item; waits for it without a limit. An unreachable server is retried about
    /// every second.
    ///
    /// Cancel-safe: no item is lost if the future is dropped.
    ///
    /// # Errors
    /// As [`Events::open`] if the server refuses to resume, and [`Internal`](ErrorKind::Internal)
    /// if it sends something that is no event.
    pub async fn next(&mut self) -> Result<StreamItem, Error> {
        loop {
            match self.parser.next() {
                Ok(Some((id, event))) => {
                    self.source.after = id.clone().or(self.source.after.take());
                    return Ok(StreamItem::Event { id, event: Box::new(event) });
                }
                Ok(None) => {}
                Err(why) => {
                    self.close();
                    return Err(Error::new(ErrorKind::Internal, format!("events: {why}")));
                }
            }
            let Some(body) = &mut self.body else {
                self.connect_again().await?;
                return Ok(StreamItem::Resumed);
            };
            let why = match tokio::time::timeout(SILENCE, body.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    self.parser.push(&chunk);
                    continue;
                }
                Ok(Ok(None)) => "the server has ended the stream".to_owned(),
                Ok(Err(error)) => format!("the connection broke: {error}"),
                Err(_) => format!("the server was silent for {} s", SILENCE.as_secs()),
            };
            self.close();
            return Ok(StreamItem::Broken(Error::new(
                ErrorKind::Unavailable,
                format!("events: {why}"),
            )));
        }
    }

    fn close(&mut self) {
        self.body = None;
        self.parser = Parser::default();
    }

    async fn connect_again(&mut self) -> Result<(), Error> {
        loop {
            let again_at = *self.again_at.get_or_insert_with(|| {
                let pause = timing::pause(self.failures + 1, ids::random());
                clock::now().plus(pause)
            });
            clock::sleep_until(again_at).await;
            let connected = self.source.connect().await;
            self.again_at = None;
            match connected {
                Ok(body) => {
                    (self.body, self.failures) = (Some(body), 0);
                    return Ok(());
                }
                Err(error) if is_passing(&error) => {
                    tracing::debug!(%error, "the stream of events cannot be resumed yet");
                    self.failures = self.failures.saturating_add(1).min(1_000);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns `true` if a retry may succeed.
pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
}

impl Locks {
    /// Returns the state and the recent events of a lock; with `lease_id`, the events of that
    /// lease.
    ///
    /// # Errors
    /// As [`Locks::show`].
    pub async fn explain(
        &self,
        lock: &LockName,
        lease_id: Option<LeaseId>,
    ) -> Result<ExplainedLock, Error> {
        let query = lease_id.map(|lease_id| format!("?lease_id={lease_id}")).unwrap_or_default();
        self.endpoint()
            .get(&format!("{}{query}", path(lock, "")), CALL_TIMEOUT)
            .await
            .map_err(|failure| failure.into_error(&format!("explain {lock}"), Effect::Reads))
    }
}
