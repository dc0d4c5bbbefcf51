//! A reader of `GET /v1/events`, as any client of server-sent events would be one.

use fence_protocol::wire::event::{Event, EventKind};

use crate::wait::soon;

/// An open stream.
#[derive(Debug)]
pub struct EventStream {
    response: reqwest::Response,
    text: String,
    /// The id of the last event that had one.
    pub last_id: String,
}

impl EventStream {
    /// Opens the stream of the server at `base`; `query` is like `?prefix=a`, `last_id` empty for a
    /// stream that begins now. Returns once the server has answered.
    ///
    /// # Panics
    /// If the answer is not a stream.
    pub async fn open(base: &str, query: &str, last_id: &str) -> Self {
        Self::open_as(base, query, last_id, "").await
    }

    /// The same with the value of an `Authorization` header; empty for none.
    ///
    /// # Panics
    /// If the answer is not a stream.
    pub async fn open_as(base: &str, query: &str, last_id: &str, authorization: &str) -> Self {
        service_kit::tls::install_crypto();
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let mut request = client.get(format!("{base}/v1/events{query}"));
        if !last_id.is_empty() {
            request = request.header("last-event-id", last_id);
        }
        if !authorization.is_empty() {
            request = request.header("authorization", authorization);
        }
        let response = soon("the stream", request.send()).await.expect("an answer");
        assert_eq!(response.status().as_u16(), 200, "{response:?}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut stream = Self { response, text: String::new(), last_id: last_id.to_owned() };
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
            let chunk = self.response.chunk().await.ok().flatten()?;
            self.text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
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
