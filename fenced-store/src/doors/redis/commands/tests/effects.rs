//! Effects in a real Redis: every sample runs, and changes only keys that the guard found.

use std::time::Duration;

use super::samples::FAILING;
use super::*;

const LIBRARY: &str = "#!lua name=lib\n\
    redis.register_function('writer', function(keys, args) \
      return redis.call('SET', keys[1], args[1]) end)\n\
    redis.register_function{function_name='reader', flags={'no-writes'}, \
      callback=function(keys, args) return redis.call('GET', keys[1]) end}";

/// Events that report only a read.
const READ_EVENTS: [&str; 1] = ["keymiss"];

/// Writes without an event: a cached count, what a group has read, and vector sets.
const SILENT: [&str; 6] = ["PFCOUNT", "XACK", "XREADGROUP", "VADD", "VREM", "VSETATTR"];

#[test]
fn nothing_happens_to_keys_that_were_not_found() {
    nothing_happens_to_others(Redis::start());
}

/// Runs every sample of this server.
pub(super) fn nothing_happens_to_others(mut redis: Redis) {
    let table = redis.table();
    redis.words(&["FUNCTION", "LOAD", LIBRARY]).unwrap();
    redis.line("CONFIG SET notify-keyspace-events KAnm").unwrap();
    let mut listener = redis.connect("");
    listener.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut events = listener.as_pubsub();
    events.psubscribe("__keyspace@*__:*").unwrap();
    events.subscribe("mark").unwrap();
    let mut changed = 0;
    let mut vain = Vec::new();
    for line in redis.samples.clone() {
        redis.make_keys();
        redis.line("PUBLISH mark x").unwrap();
        until_mark(&mut events);
        let reply = redis.line(line);
        redis.line("PUBLISH mark x").unwrap();
        let fails = FAILING.iter().any(|begin| line.starts_with(begin));
        assert!(fails || reply.is_ok(), "{line}: {reply:?}");
        let keys = keys_of(&table, line).unwrap();
        let events_seen = until_mark(&mut events);
        for (key, event) in &events_seen {
            let looks = READ_EVENTS.contains(&event.as_str());
            let written = keys.contains(&format!("w:{key}"));
            let known = written || (looks && keys.contains(&format!("r:{key}")));
            assert!(known, "{line}: {event} of {key}, and the keys are {keys:?}");
            changed += usize::from(!looks);
        }
        let writes = keys.iter().any(|key| key.starts_with("w:"));
        let silent = SILENT.iter().any(|begin| line.starts_with(begin)) || fails;
        let changes = events_seen.iter().any(|(_, event)| !READ_EVENTS.contains(&event.as_str()));
        if !changes && writes && !silent {
            vain.push(line);
        }
    }
    assert!(vain.is_empty(), "these samples changed nothing, and so prove nothing: {vain:#?}");
    assert!(changed > 100, "only {changed} changes were seen");
}

/// Returns keys and events up to the next mark.
fn until_mark(events: &mut redis::PubSub<'_>) -> Vec<(String, String)> {
    let mut events_seen = Vec::new();
    loop {
        let message = events.get_message().unwrap();
        let channel = message.get_channel_name().to_owned();
        match channel.split_once("__:") {
            None => return events_seen,
            Some((_, key)) => events_seen.push((key.to_owned(), message.get_payload().unwrap())),
        }
    }
}
