//! Fuzz targets: functions that take any bytes and panic where a parser breaks a promise.
//!
//! They are part of the tests and of fuzz builds alone; `tests/fuzz` runs them.

use fence_protocol::{LockName, SessionId, Token};
use http::uri::Authority;
use lease::{Limits, Machine, Reading, Record, Session, StoredRecord, StoredSession};
use redis::Value;
use service_kit::tls::ServerUrl;

use crate::config::LockDelay;
use crate::engines::embedded::log::fuzz as log;
use crate::engines::etcd::{EtcdTarget, fuzz as etcd};
use crate::engines::open::StoreUrl;
use crate::engines::quorum::replies;
use crate::engines::quorum::rules::fuzz as rules;
use crate::engines::redis::fuzz as redis_records;
use crate::engines::redis::key_prefix::KeyPrefix;
use crate::events::{self, EventId};
use crate::grants::after_grant::SealMode;
use crate::guards::revoke::Unsealed;
use crate::prefixes::{Prefixed, Prefixes};

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("lock-journal", journal),
    ("lock-log", log::segment),
    ("lock-etcd", etcd::replies),
    ("lock-replies", script_replies),
    ("lock-settings", settings),
];

/// Stands for a password; it must not be in what a log shows.
const PASSWORD: &str = "hunter2";

/// A day in milliseconds: everything that a journal may hold is over after it.
const LATER_MS: u64 = 24 * 3_600_000;

/// A record or a session in the journal. What is read is written so that it is read again as the
/// same, and a machine that took it over passes its time without a panic.
fn journal(input: &[u8]) {
    let now_ms = 1_000;
    let reading = Reading::Restart { now_ms };
    let Ok(lock) = LockName::new("orders/42") else { return };
    let mut machine = Machine::new(0, Limits::default());
    if let Ok(stored) = lease::from_bytes::<StoredSession>(input) {
        let session = Session::from_stored(stored, reading);
        let again = lease::to_bytes(&session.to_stored());
        let read = lease::from_bytes(&again).map(|stored| Session::from_stored(stored, reading));
        assert!(read.is_ok_and(|read| read == session), "{session:?}");
        machine.restore_session(SessionId::MAX, session);
    }
    if let Ok(stored) = lease::from_bytes::<StoredRecord>(input) {
        let Some(record) = Record::from_stored(stored, reading) else { return };
        let again = lease::to_bytes(&record.to_stored(u64::MAX));
        let read = lease::from_bytes(&again).map(|stored| Record::from_stored(stored, reading));
        assert!(read.is_ok_and(|read| read.as_ref() == Some(&record)), "{record:?}");
        let highest = record.highest_token();
        machine.restore(now_ms, lock, record);
        assert!(machine.counter() >= highest && machine.counter() <= Token::MAX);
    }
    for at_ms in [now_ms, now_ms + 1, now_ms + LATER_MS, u64::MAX / 2] {
        machine.tick(at_ms);
    }
    drop(machine.take_changes());
    drop(machine.take_session_changes());
}

/// Replies of scripts, one after the other: those of one Redis, of a quorum's nodes, and entries of
/// the stream of events.
fn script_replies(input: &[u8]) {
    let Ok(value) = redis::parse_redis_value(input) else { return };
    redis_records::replies(&value);
    events::fuzz::entries(&value);
    let Value::Array(nodes) = value else { return };
    let mut said = Vec::new();
    for node in nodes.into_iter().take(5) {
        said.extend(replies::read_reply(node.clone()));
        let _ = replies::read_member(node.clone());
        let _ = replies::read_probe(node.clone());
        let _ = replies::read_names(node.clone());
        if let Ok(Ok(seen)) = replies::read_seen(node) {
            assert!(serde_json::to_string(&seen.ended).is_ok());
        }
    }
    rules::round(&said);
}

/// Settings, one a line. What is read has one meaning, and no password is shown.
fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut delays = Vec::new();
    for line in text.lines() {
        let store = line.parse::<StoreUrl>();
        hides_password(line, &format!("{store:?}"));
        match store {
            Ok(StoreUrl::Quorum(url)) => assert!([3, 5].contains(&url.targets().len())),
            Ok(StoreUrl::Etcd(url)) => {
                assert_eq!(url.to_string().parse::<EtcdTarget>().as_ref(), Ok(&url), "{line}");
                assert!(url.addresses().all(|address| address.parse::<Authority>().is_ok()));
            }
            _ => {}
        }
        let guard = line.parse::<ServerUrl>();
        hides_password(line, guard.as_ref().err().map_or("", String::as_str));
        if let Ok(guard) = guard {
            assert_eq!(guard.to_string().parse::<ServerUrl>().as_ref(), Ok(&guard), "{line}");
        }
        let _ = line.parse::<Prefixed<SealMode>>();
        let _ = line.parse::<Unsealed>();
        delays.extend(line.parse::<Prefixed<LockDelay>>());
        if let Ok(prefix) = line.parse::<KeyPrefix>() {
            assert!(prefix.to_string() == line && !line.contains(['{', '}', '*']));
        }
        if let Ok(id) = line.parse::<EventId>() {
            assert_eq!(id.to_string().parse::<EventId>(), Ok(id));
        }
    }
    if let Ok(delays) = Prefixes::new(delays)
        && let Ok(lock) = LockName::new("orders/42")
    {
        let _ = delays.value_for(&lock);
    }
}

/// A password before the last `@` of a URL is not shown, not even where the URL is malformed.
fn hides_password(text: &str, shown: &str) {
    let is_url =
        ["redis", "etcd", "postgres", "http"].iter().any(|scheme| text.starts_with(scheme));
    let is_once = text.matches(PASSWORD).count() == 1;
    let before = text.rsplit_once('@').map_or("", |(before, _)| before);
    if is_url && is_once && before.contains(&format!(":{PASSWORD}")) {
        assert!(!shown.contains(PASSWORD), "{text}: {shown}");
    }
}

#[cfg(test)]
mod tests {
    use super::TARGETS;

    /// Inputs a target in the short run.
    const ROUNDS: u32 = 10_000;

    #[test]
    fn every_target_holds_in_a_short_run() {
        for (name, target) in TARGETS {
            fence_fuzz::short_run(name, *target, ROUNDS);
        }
    }
}
