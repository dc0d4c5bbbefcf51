//! Replies to look-ups of drivers when they connect: the client itself, and a few settings of
//! Redis.

use std::net::SocketAddr;

use bytes::{BufMut, BytesMut};
use redis::{Cmd, Value};

use super::refusal::{Refusal, quoted};
use super::resp::request::Command;
use super::resp::{Protocol, encode};

/// Settings that drivers and frameworks read, and that reveal nothing of other clients.
const SETTINGS: [&str; 5] = ["appendonly", "databases", "maxmemory", "maxmemory-policy", "save"];
/// User name shown to every client.
pub(super) const USER: &str = "default";

/// A client in CLIENT INFO.
#[derive(Debug)]
pub(super) struct ClientInfo<'a> {
    /// Id from HELLO.
    pub(super) id: u64,
    pub(super) name: &'a [u8],
    /// Addresses of the client and of the guard.
    pub(super) addresses: [Option<SocketAddr>; 2],
    pub(super) db: i64,
    pub(super) protocol: Protocol,
}

impl ClientInfo<'_> {
    /// Formats the line as Redis does. Figures known only to Redis are 0.
    fn line(&self, command: &str) -> String {
        let [addr, laddr] =
            self.addresses.map(|addr| addr.map_or(String::new(), |a| a.to_string()));
        let id = self.id;
        let name = self.name.escape_ascii();
        let db = self.db;
        let resp = if self.protocol == Protocol::Resp3 { 3 } else { 2 };
        format!(
            "id={id} addr={addr} laddr={laddr} fd=0 name={name} age=0 idle=0 flags=N db={db} sub=0 \
             psub=0 ssub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 \
             oll=0 omem=0 tot-mem=0 events=r cmd={command} user={USER} redir=-1 resp={resp}\n"
        )
    }

    /// Makes the reply to CLIENT INFO.
    pub(super) fn info(&self) -> String {
        self.line("client|info")
    }

    /// Makes the reply to CLIENT LIST: this client, unless the options exclude it.
    ///
    /// # Errors
    /// Redis' line for invalid options.
    pub(super) fn list(&self, command: Command<'_>) -> Result<String, Refusal> {
        let is = |at: usize, word: &[u8]| command.arg(at).eq_ignore_ascii_case(word);
        let own = || self.line("client|list");
        let line = |text: &str| Refusal::Line(text.to_owned());
        match command.len() {
            2 => Ok(own()),
            4 if is(2, b"type") => match command.arg(3).to_ascii_lowercase().as_slice() {
                b"normal" => Ok(own()),
                b"pubsub" | b"master" | b"replica" | b"slave" => Ok(String::new()),
                _ => Err(Refusal::Line(format!(
                    "ERR Unknown client type '{}'",
                    quoted(command.arg(3))
                ))),
            },
            4.. if is(2, b"id") => {
                let mut lists_own = false;
                for id in command.iter().skip(3) {
                    let id = std::str::from_utf8(id).ok().and_then(|id| id.parse::<u64>().ok());
                    lists_own |= id.ok_or_else(|| line("ERR Invalid client ID"))? == self.id;
                }
                Ok(if lists_own { own() } else { String::new() })
            }
            _ => Err(line("ERR syntax error")),
        }
    }
}

/// Encodes a text, in RESP3 as a verbatim string.
pub(super) fn text(out: &mut BytesMut, text: &str, protocol: Protocol) {
    match protocol {
        Protocol::Resp2 => encode::bulk(out, text.as_bytes()),
        Protocol::Resp3 => {
            out.put_slice(format!("={}\r\ntxt:{text}\r\n", text.len() + 4).as_bytes());
        }
    }
}

/// Parses the id and the reason of a CLIENT UNBLOCK.
///
/// # Errors
/// Redis' line for invalid arguments.
pub(super) fn unblock(command: Command<'_>) -> Result<(u64, &'static str), Refusal> {
    let line = |text: &str| Err(Refusal::Line(text.to_owned()));
    let is = |word: &[u8]| command.arg(3).eq_ignore_ascii_case(word);
    let reason = match command.len() {
        3 => "TIMEOUT",
        4 if is(b"timeout") => "TIMEOUT",
        4 if is(b"error") => "ERROR",
        4 => return line("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        _ => {
            return line(
                "ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP.",
            );
        }
    };
    let id: Option<i64> = std::str::from_utf8(command.arg(2)).ok().and_then(|id| id.parse().ok());
    match id {
        Some(id) => Ok((u64::try_from(id).unwrap_or(0), reason)),
        None => line("ERR value is not an integer or out of range"),
    }
}

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
