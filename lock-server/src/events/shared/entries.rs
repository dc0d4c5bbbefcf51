//! Reading the entries of the stream.

use ::redis::Value;
use fence_protocol::wire::event::Event;
use service_kit::redis_link::text_fields;

use crate::events::EventId;

/// An entry of the stream. One that a newer or a broken server wrote has no event; it has a place
/// all the same.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) id: EventId,
    pub(super) number: Option<u64>,
    pub(super) origin: String,
    pub(super) event: Option<Event>,
}

/// The entries of an `XREAD` of one stream; none where nothing came in time.
pub(super) fn of_read(reply: Value) -> Vec<Told> {
    let Value::Array(mut streams) = reply else { return Vec::new() };
    match streams.pop() {
        Some(Value::Array(mut stream)) => of_range(stream.pop().unwrap_or(Value::Nil)),
        _ => Vec::new(),
    }
}

/// The entries of an `XRANGE` or `XREVRANGE`.
pub(super) fn of_range(reply: Value) -> Vec<Told> {
    let Value::Array(entries) = reply else { return Vec::new() };
    entries.into_iter().filter_map(entry).collect()
}

fn entry(value: Value) -> Option<Told> {
    let Value::Array(parts) = value else { return None };
    let [id, fields] = <[Value; 2]>::try_from(parts).ok()?;
    let id = text_fields(Value::Array(vec![id]))?.pop()?.parse().ok()?;
    let fields = text_fields(fields).unwrap_or_default();
    let field = |name: &str| {
        fields.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str())
    };
    Some(Told {
        id,
        number: field("n").and_then(|text| text.parse().ok()),
        origin: field("o").unwrap_or_default().to_owned(),
        event: field("e").and_then(|text| serde_json::from_str(text).ok()),
    })
}

#[cfg(test)]
mod tests {
    use fence_protocol::wire::event::EventKind;

    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn array<const N: usize>(items: [Value; N]) -> Value {
        Value::Array(items.into())
    }

    #[test]
    fn entries_are_read_and_broken_ones_keep_their_place() {
        let json = r#"{"kind":"lineage"}"#;
        let whole = ["n", "4", "o", "me", "e", json].map(text);
        let broken = ["n", "5", "e", "{"].map(text);
        let entries = array([
            array([text("7-1"), Value::Array(whole.into())]),
            array([text("7-2"), Value::Array(broken.into())]),
            array([text("x"), array([])]),
            Value::Nil,
        ]);
        let told = of_read(array([array([text("stream"), entries])]));
        assert_eq!(told.len(), 2);
        assert_eq!(told[0].event.as_ref().unwrap().kind, EventKind::Lineage);
        assert_eq!((told[0].number, told[0].origin.as_str()), (Some(4), "me"));
        assert_eq!((told[1].id, told[1].number), ("7-2".parse().unwrap(), Some(5)));
        assert!(told[1].event.is_none());
        assert!(of_read(Value::Nil).is_empty() && of_range(text("x")).is_empty());
    }
}
