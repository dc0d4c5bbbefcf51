//! One reader: server-sent events, as fast as it takes them.
//!
//! Readers pull from the one list that is remembered; there is no queue a reader. One that falls
//! behind what is remembered is told so and cut off, and costs nobody else anything.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use access_control::Scope;
use fence_protocol::LockName;
use fence_protocol::wire::event::{Event, EventKind};
use futures_util::Stream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::Events;
use super::ring::EventId;

/// How often something is sent when nothing happens, so that both ends know that the other lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How many events are sent in one piece at most.
const PIECE: usize = 64;
/// How long a reader that comes from another server may wait for this one to have read as far.
const CATCH_UP: Duration = Duration::from_secs(2);

/// What a reader wants to hear of.
#[derive(Clone, Debug)]
pub(crate) enum Watched {
    /// This lock.
    Lock(LockName),
    /// All whose names begin so; where it is empty, also sessions and the whole namespace.
    Under(String),
}

impl Watched {
    /// What one must have the right to.
    pub(crate) fn scope(&self) -> Scope<'_> {
        match self {
            Self::Lock(lock) => Scope::Name(lock.as_str().as_bytes()),
            Self::Under(prefix) => Scope::Under(prefix.as_bytes()),
        }
    }

    /// A gap is for all.
    fn wants(&self, event: &Event) -> bool {
        match (self, &event.lock) {
            (Self::Lock(lock), Some(told)) => lock == told,
            (Self::Under(prefix), Some(told)) => told.as_str().starts_with(prefix),
            (Self::Under(prefix), None) if prefix.is_empty() => true,
            (_, None) => event.kind == EventKind::Gap,
        }
    }
}

/// A reader of events.
pub(crate) struct Reader {
    events: Events,
    news: watch::Receiver<()>,
    watched: Watched,
    place: u64,
    is_over: bool,
    /// What is sent before anything else.
    greeting: Option<String>,
    _place_among_readers: OwnedSemaphorePermit,
}

impl Reader {
    /// A reader that has seen everything up to `seen`, or that begins now; none where there are too
    /// many.
    pub(crate) async fn new(
        events: &Events,
        watched: Watched,
        seen: Option<EventId>,
    ) -> Option<Self> {
        let permit = events.inner.readers.clone().try_acquire_owned().ok()?;
        let mut news = events.inner.news.subscribe();
        if let Some(seen) = seen {
            let caught_up = news.wait_for(|()| events.state().ring.last() >= seen);
            // Where it does not come, the gap says so.
            let _ = tokio::time::timeout(CATCH_UP, caught_up).await;
        }
        let (start, last) = {
            let state = events.state();
            (state.ring.start(seen), state.ring.last())
        };
        let mut greeting = String::from("retry: 1000\n");
        if start.has_gap {
            let text = "what came after the event that you saw last is not all remembered";
            render(&mut greeting, None, &Event::new(EventKind::Gap).text(text));
        }
        if seen.is_none() {
            render(&mut greeting, Some(last), &Event::new(EventKind::Ready));
        }
        events.inner.figures.readers.inc();
        Some(Self {
            events: events.clone(),
            news,
            watched,
            place: start.place,
            is_over: false,
            greeting: Some(greeting),
            _place_among_readers: permit,
        })
    }

    /// The body of the reply; it ends at shutdown, or where the reader is too slow.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<String, Infallible>> + Send {
        futures_util::stream::unfold(self, async |mut reader| {
            let piece = reader.next().await?;
            Some((Ok(piece), reader))
        })
    }

    async fn next(&mut self) -> Option<String> {
        if let Some(greeting) = self.greeting.take() {
            return Some(greeting);
        }
        let shutdown = self.events.inner.shutdown.clone();
        loop {
            if self.is_over || shutdown.is_cancelled() {
                return None;
            }
            // Before looking, so that nothing is missed in between.
            self.news.mark_unchanged();
            if let Some(piece) = self.piece() {
                return Some(piece);
            }
            tokio::select! {
                () = shutdown.cancelled() => return None,
                () = tokio::time::sleep(KEEP_ALIVE) => return Some(": keep-alive\n\n".to_owned()),
                changed = self.news.changed() => changed.ok()?,
            }
        }
    }

    /// What there is to send now.
    fn piece(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let Some(entries) = self.events.state().ring.from(self.place, PIECE) else {
                self.is_over = true;
                self.events.inner.figures.cut.inc();
                let why = "you read slower than events come; resume with Last-Event-ID";
                render(&mut text, None, &Event::new(EventKind::Dropped).text(why));
                return Some(text);
            };
            if entries.is_empty() {
                return None;
            }
            self.place += entries.len() as u64;
            let now_ms = self.events.now_ms();
            for entry in entries.iter().filter(|entry| self.watched.wants(&entry.event)) {
                render(&mut text, entry.id, &entry.aged(now_ms));
            }
            if !text.is_empty() {
                return Some(text);
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.events.inner.figures.readers.dec();
    }
}

fn render(text: &mut String, id: Option<EventId>, event: &Event) {
    // Writing to a string does not fail, and JSON has no line breaks.
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    let json = serde_json::to_string(event).unwrap_or_default();
    let _ = write!(text, "event: {}\ndata: {json}\n\n", event.kind.as_str());
}
