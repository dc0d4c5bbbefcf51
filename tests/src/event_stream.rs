//! A reader of `GET /v1/events`, as any client of server-sent events would be one.

use fence_protocol::wire::event::{Event, EventKind};
use http_body_util::BodyExt as _;

use crate::api::{Endpoint, ReplyBody};
use crate::wait::soon;

/// An open stream.
#[derive(Debug)]
pub struct EventStream {
    body: ReplyBody,
    text: String,
    /// The id of the last event that had one.
    pub last_id: String,
}

impl EventStream {
    /// Opens the stream of a server; `query` is like `?prefix=a`, `last_id` empty for a
    /// stream that begins now. Returns once the server has answered.
    ///
    /// # Panics
    /// If the answer is not a stream.
    pub async fn open(server: &(impl Endpoint + ?Sized), query: &str, last_id: &str) -> Self {
        Self::open_as(server, query, last_id, "").await
    }

    /// The same with the value of an `Authorization` header; empty for none.
    ///
    /// # Panics
    /// If the answer is not a stream.
    pub async fn open_as(
        server: &(impl Endpoint + ?Sized),
        query: &str,
        last_id: &str,
        authorization: &str,
    ) -> Self {
        let headers = [("last-event-id", last_id), ("authorization", authorization)];
        let headers: Vec<_> = headers.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let body = server.api().stream(&format!("/v1/events{query}"), &headers).await;
        let mut stream = Self { body, text: String::new(), last_id: last_id.to_owned() };
        if last_id.is_empty() {
            assert_eq!(stream.next().await.kind, EventKind::Ready);
        }
        stream
    }

    /// The next event.
    ///
    /// # Panics
    /// If the stream ends, or is silent for too long.
    pub async fn next(&mut self) -> Event {
        soon("an event", self.next_or_end()).await.expect("the stream continues")
    }

    /// The next event, or none at the end of the stream.
    ///
    /// # Panics
    /// If what comes is no event.
    pub async fn next_or_end(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                let rest = rest.to_owned();
                self.text = rest;
                let field = |name: &str| {
                    block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
                };
                if let Some(id) = field("id: ") {
                    self.last_id = id;
                }
                let Some(data) = field("data: ") else { continue };
                let event: Event = serde_json::from_str(&data).expect("an event");
                assert_eq!(field("event: ").as_deref(), Some(event.kind.as_str()));
                return Some(event);
            }
            let Ok(chunk) = self.body.frame().await?.ok()?.into_data() else { continue };
            self.text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    }

    /// Awaits a comment, which no event has come before.
    ///
    /// # Panics
    /// If an event comes, or the stream ends.
    pub async fn comment(&mut self) {
        let frame = self.body.frame().await.expect("the stream continues").expect("a whole frame");
        let data = frame.into_data().expect("data");
        assert!(data.starts_with(b":"), "{}", String::from_utf8_lossy(&data));
    }

    /// The kinds of the next events, each with the token that it has.
    ///
    /// # Panics
    /// As [`EventStream::next`].
    pub async fn kinds(&mut self, count: usize) -> Vec<EventKind> {
        let mut kinds = Vec::new();
        for _ in 0..count {
            kinds.push(self.next().await.kind);
        }
        kinds
    }
}
