//! Reading the entries of the stream.

use ::redis::Value;
use fence_protocol::wire::event::Event;
use redis_link::text_fields;

use crate::events::EventId;

/// An entry of the stream: a batch of events. A batch of a newer or a broken server cannot be read;
/// it keeps its position all the same.
#[derive(Debug)]
pub(super) struct Batch {
    /// The id of its last event.
    pub(super) id: EventId,
    /// Number of events.
    pub(super) count: u64,
    /// Time of the append, by the clock of Redis.
    pub(super) at_ms: u64,
    /// The server that appended it, and the number of the batch there.
    pub(super) origin: (u32, u64),
    /// Empty if they cannot be read.
    pub(super) events: Vec<Event>,
}

impl Batch {
    /// The id before its first event.
    pub(super) fn before(&self) -> EventId {
        EventId { seq: self.id.seq.saturating_sub(self.count), ..self.id }
    }
}

/// The reply to `shared.lua`.
pub(super) struct Exchanged {
    /// Lineage of the records; empty where there is none.
    pub(super) lineage: String,
    /// The id of the last entry before the caller's.
    pub(super) before: EventId,
    /// The id of the caller's; `None` where it appended nothing.
    pub(super) id: Option<EventId>,
    /// Entries of others up to that one, perhaps not all.
    pub(super) batches: Vec<Batch>,
}

/// Reads an [`Exchanged`]; `None` where it is something else.
pub(super) fn of_exchange(reply: Value) -> Option<Exchanged> {
    let Value::Array(parts) = reply else { return None };
    let [lineage, before, id, entries] = <[Value; 4]>::try_from(parts).ok()?;
    let fields = text_fields(Value::Array(vec![lineage, before, id]))?;
    let [lineage, before, id] = <[String; 3]>::try_from(fields).ok()?;
    let id = if id.is_empty() { None } else { Some(id.parse().ok()?) };
    Some(Exchanged { lineage, before: before.parse().ok()?, id, batches: of_range(entries) })
}

/// The entries of an `XRANGE` or `XREVRANGE`.
pub(super) fn of_range(reply: Value) -> Vec<Batch> {
    let Value::Array(entries) = reply else { return Vec::new() };
    entries.into_iter().filter_map(entry).collect()
}

fn entry(value: Value) -> Option<Batch> {
    let Value::Array(parts) = value else { return None };
    let [id, fields] = <[Value; 2]>::try_from(parts).ok()?;
    let id = text_fields(Value::Array(vec![id]))?.pop()?.parse().ok()?;
    let fields = text_fields(fields).unwrap_or_default();
    let field = |name: &str| {
        fields.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str())
    };
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    let count = number("n").unwrap_or(0);
    let server = number("o").and_then(|server| u32::try_from(server).ok()).unwrap_or(0);
    let events: Option<Vec<Event>> = field("e").and_then(|text| serde_json::from_str(text).ok());
    Some(Batch {
        id,
        count,
        at_ms: number("t").unwrap_or(0),
        origin: (server, number("b").unwrap_or(0)),
        // Of another number, they would get the ids of others.
        events: events.filter(|events| events.len() as u64 == count).unwrap_or_default(),
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
        let json = r#"[{"kind":"lineage"},{"kind":"granted"}]"#;
        let whole = ["t", "9", "o", "3", "b", "1", "n", "2", "e", json].map(text);
        let broken = ["n", "1", "e", "["].map(text);
        let miscounted = ["n", "3", "e", json].map(text);
        let entries = array([
            array([text("7-2"), Value::Array(whole.into())]),
            array([text("7-3"), Value::Array(broken.into())]),
            array([text("7-6"), Value::Array(miscounted.into())]),
            array([text("x"), array([])]),
            Value::Nil,
        ]);
        let reply = array([text("lineage"), text("7-6"), text(""), entries]);
        let Exchanged { lineage, before, id, batches } = of_exchange(reply).unwrap();
        assert_eq!((lineage.as_str(), before, id), ("lineage", batches[2].id, None));
        assert_eq!(batches.len(), 3);
        assert_eq!(batches[0].events[0].kind, EventKind::Lineage);
        assert_eq!((batches[0].at_ms, batches[0].origin), (9, (3, 1)));
        assert_eq!(batches[0].before(), "7-0".parse().unwrap());
        assert_eq!((batches[1].id, batches[1].count), ("7-3".parse().unwrap(), 1));
        assert!(batches[1].events.is_empty() && batches[2].events.is_empty());
        assert!(of_exchange(Value::Nil).is_none() && of_range(text("x")).is_empty());
    }
}
