//! What happens to locks, as the lock server tells it: a stream that goes on after it broke.
//!
//! ```no_run
//! # async fn example(client: fence_client::Client) -> Result<(), fence_client::Error> {
//! use fence_client::StreamItem;
//!
//! let mut stream = client.events("orders/").open().await?;
//! loop {
//!     match stream.next().await? {
//!         StreamItem::Event { id, event } => println!("{id:?} {}: {:?}", event.kind.as_str(), event.lock),
//!         StreamItem::Broken(error) => println!("{error}"),
//!         _ => {}
//!     }
//! }
//! # }
//! ```

mod parse;

use std::time::Duration;

use fence_protocol::wire::event::{Event, ExplainedLock};
use fence_protocol::{LeaseId, LockName};
use percent_encoding::utf8_percent_encode;
use reqwest::Response;

use self::parse::Parser;
use crate::clock::Moment;
use crate::locks::{CALL_TIMEOUT, ENCODED, path};
use crate::transport::{Effect, Endpoint, Failure};
use crate::{Error, ErrorKind, Locks, clock, ids, timing};

/// How long a server may take until a stream begins. One that is resumed at another server may have
/// to wait there until that one has read as far.
const BEGIN: Duration = Duration::from_secs(10);
/// A server says something every 15 s; one that was silent for longer than this is gone.
const SILENCE: Duration = Duration::from_secs(45);

/// The events of locks, about to be followed. Nothing is sent before [`Events::open`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `open`"]
pub struct Events {
    endpoint: Endpoint,
    query: String,
    after: Option<String>,
}

impl Events {
    /// Of the locks whose names begin so.
    pub(crate) fn for_prefix(endpoint: Endpoint, prefix: &str) -> Self {
        let query = format!("prefix={}", utf8_percent_encode(prefix, ENCODED));
        Self { endpoint, query, after: None }
    }

    /// Of one lock.
    pub(crate) fn for_lock(endpoint: Endpoint, lock: &LockName) -> Self {
        let query = format!("lock={}", utf8_percent_encode(lock.as_str(), ENCODED));
        Self { endpoint, query, after: None }
    }

    /// Begins behind this id, which an earlier stream has told. Without one the stream begins now.
    pub fn after(mut self, id: impl Into<String>) -> Self {
        self.after = Some(id.into());
        self
    }

    /// Opens the stream.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the server cannot be reached or has too many
    /// readers, [`Invalid`](ErrorKind::Invalid) for a prefix or an id that is none, without the right
    /// to read, or where the server keeps no events.
    pub async fn open(self) -> Result<EventStream, Error> {
        let body = self.connect().await?;
        let parser = Parser::default();
        Ok(EventStream { source: self, body: Some(body), parser, failures: 0, again_at: None })
    }

    async fn connect(&self) -> Result<Response, Error> {
        let path = format!("/v1/events?{}", self.query);
        let opened = self.endpoint.open_stream(&path, self.after.as_deref());
        let opened = tokio::time::timeout(BEGIN, opened).await;
        let silence = || Failure::NoReply(format!("nothing came within {} s", BEGIN.as_secs()));
        opened
            .unwrap_or_else(|_| Err(silence()))
            .map_err(|failure| failure.into_error("events", Effect::Reads))
    }
}

/// What a stream says next.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamItem {
    /// Something happened.
    Event {
        /// Where the stream is now, for [`Events::after`]; absent in what concerns this reader alone:
        /// a gap, or that it was too slow.
        id: Option<String>,
        /// What.
        event: Box<Event>,
    },
    /// The connection broke. It is made again; until [`StreamItem::Resumed`] nothing is heard.
    Broken(Error),
    /// The stream goes on where it broke. Where something is missing in between, an event of the kind
    /// [`Gap`](fence_protocol::wire::event::EventKind::Gap) comes next.
    Resumed,
}

/// The events of locks, as they happen.
///
/// They are an account for people and dashboards. Nothing may be decided by them that would be wrong
/// when they come late: that is what tokens are for.
///
/// At most one event is held here; what is not read stays at the server, which tells a reader that is
/// too slow what it has missed.
#[derive(Debug)]
pub struct EventStream {
    source: Events,
    body: Option<Response>,
    parser: Parser,
    failures: u32,
    /// When to try to connect again.
    again_at: Option<Moment>,
}

impl EventStream {
    /// Where the stream is: what [`Events::after`] takes to go on from here.
    pub fn last_id(&self) -> Option<&str> {
        self.source.after.as_deref()
    }

    /// What comes next; waits for it without end. A server that cannot be reached is tried again
    /// every second, about.
    ///
    /// Cancel-safe: nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// Where the server refuses to go on, as [`Events::open`], or tells what is not understood.
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
                clock::now().plus_ms(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))
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

/// Whether it may be better soon.
pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
}

impl Locks {
    /// What is known of a lock, and what happened to it lately: with `lease_id`, to that lease.
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
