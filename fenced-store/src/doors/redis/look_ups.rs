//! The few settings of Redis that drivers look up when they connect.

use bytes::BytesMut;
use redis::{Cmd, Value};

use super::refusal::{Refusal, quoted};
use super::resp::request::Command;
use super::resp::{Protocol, encode};

/// Settings that drivers and frameworks read, and that reveal nothing of other clients.
const SETTINGS: [&str; 5] = ["appendonly", "databases", "maxmemory", "maxmemory-policy", "save"];

/// Returns `true` for a CONFIG GET of settings that every client may read.
pub(super) fn offers(command: Command<'_>) -> bool {
    command.iter().skip(2).all(is_offered)
}

fn is_offered(name: &[u8]) -> bool {
    SETTINGS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Makes the CONFIG GET for Redis from a client's.
///
/// # Errors
/// The refusal of a setting that is not offered.
pub(super) fn config_get(command: Command<'_>) -> Result<Cmd, Refusal> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET");
    for name in command.iter().skip(2) {
        if !is_offered(name) {
            return Err(Refusal::Line(format!(
                "DENIED CONFIG GET {} is not passed on: it administers the server; what drivers ask \
                 is offered: {}",
                quoted(name),
                SETTINGS.join(", ")
            )));
        }
        get.arg(name);
    }
    Ok(get)
}

/// Encodes Redis' reply to it for the client.
pub(super) fn settings(out: &mut BytesMut, reply: Value, protocol: Protocol) {
    let words: Vec<String> = match reply {
        Value::Map(pairs) => {
            let words = pairs.into_iter().flat_map(|(name, value)| [name, value]);
            words.map(|word| redis::from_redis_value(word).unwrap_or_default()).collect()
        }
        reply => redis::from_redis_value(reply).unwrap_or_default(),
    };
    encode::map(out, words.len() / 2, protocol);
    words.iter().for_each(|word| encode::bulk(out, word.as_bytes()));
}
