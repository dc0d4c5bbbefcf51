//! Parser of server-sent events from chunks of any size. Pure.

use bytes::BytesMut;
use fence_protocol::wire::event::Event;

/// Longest accepted event, in bytes: ten times a server's longest one.
const BYTES_MAX: usize = 64 * 1024;

/// Unread part of the stream: a chunk, and an incomplete event.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: BytesMut,
    /// Length of the start of the buffer that has no line end.
    looked_at: usize,
    id: Option<String>,
    data: String,
}

impl Parser {
    /// Adds a chunk. To bound the buffer, call `next` until it returns `None` before adding
    /// another.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// Returns the next event with its id; `None` if more chunks are needed.
    ///
    /// # Errors
    /// A sentence where what came is no event; nothing behind it can be trusted.
    pub(crate) fn next(&mut self) -> Result<Option<(Option<String>, Event)>, String> {
        while let Some(line) = self.line()? {
            if !line.is_empty() {
                self.field(&line);
                continue;
            }
            let id = self.id.take();
            let data = std::mem::take(&mut self.data);
            if !data.is_empty() {
                let event = serde_json::from_str(&data);
                return event.map(|event| Some((id, event))).map_err(|error| {
                    let shown: String = data.chars().take(80).collect();
                    format!("the server sent no valid event: {error}: {shown}")
                });
            }
        }
        Ok(None)
    }

    fn line(&mut self) -> Result<Option<String>, String> {
        let end = self.buffer[self.looked_at..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end else {
            self.looked_at = self.buffer.len();
            if self.looked_at + self.data.len() > BYTES_MAX {
                return Err(format!("the server sent an event of more than {BYTES_MAX} bytes"));
            }
            return Ok(None);
        };
        let line = self.buffer.split_to(self.looked_at + end + 1);
        self.looked_at = 0;
        let text = std::str::from_utf8(&line).map_err(|_| "the server sent no text".to_owned())?;
        let text = text.trim_end_matches('\n');
        Ok(Some(text.strip_suffix('\r').unwrap_or(text).to_owned()))
    }

    /// Reads a field. Others than `id` and `data` repeat the data, and comments are keep-alives.
    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.id = Some(value.to_owned()),
            "data" => self.data.push_str(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::wire::event::EventKind;
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = "retry: 1000\nid: 7-0\nevent: ready\ndata: {\"kind\":\"ready\"}\n\n\
        : keep-alive\n\n\
        id: 7-1\r\nevent: granted\r\ndata: {\"kind\":\"granted\",\"lock\":\"ö\"}\r\n\r\n\
        event: gap\ndata: {\"kind\":\ndata: \"gap\"}\n\nid: 7-2\n";

    fn all(parser: &mut Parser) -> Vec<(Option<String>, EventKind)> {
        std::iter::from_fn(|| parser.next().unwrap()).map(|(id, event)| (id, event.kind)).collect()
    }

    fn expected() -> Vec<(Option<String>, EventKind)> {
        let id = |text: &str| Some(text.to_owned());
        vec![(id("7-0"), EventKind::Ready), (id("7-1"), EventKind::Granted), (None, EventKind::Gap)]
    }

    /// `STREAM` with a valid lock name.
    fn stream() -> String {
        STREAM.replace('ö', "a")
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_make_the_same_events(
            cuts in prop::collection::vec(0..stream().len(), 0..9),
        ) {
            let stream = stream();
            let mut ends: Vec<usize> = cuts.into_iter().chain([stream.len()]).collect();
            ends.sort_unstable();
            let mut parser = Parser::default();
            let mut begin = 0;
            let mut seen = Vec::new();
            for end in ends {
                parser.push(&stream.as_bytes()[begin..end]);
                begin = end;
                seen.extend(all(&mut parser));
            }
            prop_assert_eq!(seen, expected());
        }
    }

    #[test]
    fn what_is_no_event_is_an_error() {
        let error = |bytes: &[u8]| {
            let mut parser = Parser::default();
            parser.push(bytes);
            parser.next().map(|_| ()).unwrap_err()
        };
        assert!(
            error(b"data: {\"kind\":\"granted\",\"lock\":\"\xc3\xb6\"}\n\n")
                .contains("no valid event")
        );
        assert!(error(b"data: nonsense\n\n").contains("no valid event"));
        assert!(error(b"data: \xff\n\n").contains("no text"));
        assert!(error(&b"x".repeat(BYTES_MAX + 1)).contains("more than 65536"));
        assert!(error(&b"data: aaaa\n".repeat(BYTES_MAX / 2)).contains("more than 65536"));
    }
}
