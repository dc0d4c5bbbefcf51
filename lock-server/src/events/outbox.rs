//! Events on their way to the stream in Redis.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use fence_protocol::wire::event::Event;
use tokio::sync::Notify;

/// Capacity; events beyond it are dropped and counted.
const MAX: usize = 16_384;

/// A bounded queue with one reader.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Mutex<VecDeque<Event>>,
    filled: Notify,
}

impl Outbox {
    /// Adds events while there is room. Returns how many were dropped.
    pub(super) fn put(&self, events: Vec<Event>) -> usize {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = events.len();
        let room = MAX - waiting.len().min(MAX);
        waiting.extend(events.into_iter().take(room));
        drop(waiting);
        self.filled.notify_one();
        count.saturating_sub(room)
    }

    /// The oldest events, at most `most`.
    pub(super) fn take(&self, most: usize) -> Vec<Event> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(most);
        waiting.drain(..count).collect()
    }

    /// The oldest events, at least one and at most `most`. Cancel-safe.
    pub(super) async fn next(&self, most: usize) -> Vec<Event> {
        loop {
            let events = self.take(most);
            if !events.is_empty() {
                return events;
            }
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::wire::event::EventKind;

    use super::*;

    #[test]
    fn what_finds_no_room_is_counted() {
        let outbox = Outbox::default();
        let events = |count| vec![Event::new(EventKind::Queued); count];
        assert_eq!(outbox.put(events(MAX - 1)), 0);
        assert_eq!(outbox.put(events(3)), 2);
        assert_eq!(outbox.take(MAX + 1).len(), MAX);
        assert!(outbox.take(1).is_empty());
    }
}
