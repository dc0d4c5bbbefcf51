//! One reader: server-sent events, as fast as it takes them.
//!
//! Readers pull from the one remembered list; there is no queue for each reader. A reader that
//! falls behind the list receives an error event and is disconnected, at no cost to others.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::pin;
use std::time::Duration;

use access_control::Scope;
use fence_protocol::LockName;
use fence_protocol::wire::event::{Event, EventKind};
use futures_util::Stream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::Events;
use super::ring::EventId;

/// Interval of keep-alive comments on an idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Largest number of events in one chunk.
const PIECE: usize = 64;
/// Time after a look at new events in which further ones gather for the next: each look costs a
/// wake-up, and mostly a write, for every reader.
const GATHERING: Duration = Duration::from_millis(5);
/// Time-out for this server to catch up with a reader that comes from another one.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Locks that a reader watches.
#[derive(Clone, Debug)]
pub(crate) enum Watched {
    /// This lock.
    Lock(LockName),
    /// Every lock under this prefix; the empty prefix includes sessions and the namespace.
    Under(String),
}

impl Watched {
    /// Scope of the right that the reader needs.
    pub(crate) fn scope(&self) -> Scope<'_> {
        match self {
            Self::Lock(lock) => Scope::Name(lock.as_str().as_bytes()),
            Self::Under(prefix) => Scope::Under(prefix.as_bytes()),
        }
    }

    /// `true` if the reader receives the event; a gap is sent to every reader.
    fn wants(&self, event: &Event) -> bool {
        match (self, &event.lock) {
            (Self::Lock(lock), Some(of_event)) => lock == of_event,
            (Self::Under(prefix), Some(of_event)) => of_event.as_str().starts_with(prefix),
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
    /// The last look found events, and all that there were.
    has_caught_up: bool,
    /// Text that is sent first.
    greeting: Option<String>,
    _place_among_readers: OwnedSemaphorePermit,
}

impl Reader {
    /// A reader that has seen everything up to `seen`, or that begins with the `recent` newest
    /// events; `None` at the limit of readers.
    pub(crate) async fn new(
        events: &Events,
        watched: Watched,
        seen: Option<EventId>,
        recent: u64,
    ) -> Option<Self> {
        let permit = events.inner.readers.clone().try_acquire_owned().ok()?;
        let mut news = events.inner.news.subscribe();
        if let Some(seen) = seen {
            let caught_up = news.wait_for(|()| events.state().ring.last() >= seen);
            // If this server does not catch up in time, a gap reports it.
            let _ = tokio::time::timeout(CATCH_UP, caught_up).await;
        }
        let (start, last) = {
            let state = events.state();
            (state.ring.start(seen, recent), state.ring.last())
        };
        let mut greeting = String::from("retry: 1000\n");
        if start.has_gap {
            let text = "some events after the last one that you saw are no longer remembered";
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
            has_caught_up: false,
            greeting: Some(greeting),
            _place_among_readers: permit,
        })
    }

    /// Body of the reply; it ends at shutdown, or when the reader is too slow.
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
        // Events that the reader does not want are no sign of life.
        let mut quiet = pin!(tokio::time::sleep(KEEP_ALIVE));
        let keep_alive = || Some(": keep-alive\n\n".to_owned());
        loop {
            if self.is_over || shutdown.is_cancelled() {
                return None;
            }
            if std::mem::take(&mut self.has_caught_up) {
                tokio::select! {
                    () = shutdown.cancelled() => return None,
                    () = &mut quiet => return keep_alive(),
                    () = tokio::time::sleep(GATHERING) => {}
                }
            }
            // Before the check, so that no change is missed in between.
            self.news.mark_unchanged();
            if let Some(piece) = self.piece() {
                return Some(piece);
            }
            if self.has_caught_up {
                continue;
            }
            tokio::select! {
                () = shutdown.cancelled() => return None,
                () = &mut quiet => return keep_alive(),
                changed = self.news.changed() => changed.ok()?,
            }
        }
    }

    /// Text to send now.
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
            self.has_caught_up = entries.len() < PIECE;
            let now_ms = self.events.now_ms();
            for entry in entries.iter().filter(|entry| self.watched.wants(&entry.event)) {
                text.push_str(entry.text(rendered));
                end(&mut text, entry.ms_ago(now_ms));
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
    text.push_str(&rendered(id, event));
    end(text, 0);
}

/// Renders an event but for its age, which is the last member and differs from reader to reader.
fn rendered(id: Option<EventId>, event: &Event) -> Box<str> {
    let mut text = String::new();
    // Writing to a string does not fail, and JSON has no line breaks.
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    let json = serde_json::to_string(event).unwrap_or_default();
    let json = json.rsplit_once(':').map_or("", |(all_but_age, _)| all_but_age);
    let _ = write!(text, "event: {}\ndata: {json}:", event.kind.as_str());
    text.into_boxed_str()
}

fn end(text: &mut String, ms_ago: u64) {
    let _ = write!(text, "{ms_ago}}}\n\n");
}

#[cfg(test)]
mod tests {
    use fence_protocol::Token;

    use super::*;

    /// The shared text, completed for a reader, is the event with its age.
    #[test]
    fn a_text_ends_with_the_age_of_its_event() {
        let mut event = Event::new(EventKind::Refused).lock(&"a/b".parse().unwrap());
        event.token = Token::new(7).ok();
        for text in ["", "\"ms_ago\":5", "x:{}\n\n"] {
            let mut event = event.clone().text(text);
            let shared = rendered(Some(EventId { ms: 7, seq: 3 }), &event);
            assert!(shared.ends_with(&*rendered(None, &event)));
            for ms_ago in [0, 9, u64::MAX] {
                let mut whole = shared.to_string();
                end(&mut whole, ms_ago);
                let json = whole.strip_prefix("id: 7-3\nevent: refused\ndata: ").unwrap();
                event.ms_ago = ms_ago;
                assert_eq!(json, format!("{}\n\n", serde_json::to_string(&event).unwrap()));
            }
        }
    }
}
