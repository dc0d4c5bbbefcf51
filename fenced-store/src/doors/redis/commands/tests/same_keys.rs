//! Test that the guard finds the same keys as Redis, with the same access.

use super::super::action::Keys;
use super::super::policy::ByHand;
use super::samples::SAMPLES;
use super::*;

/// Commands that only Redis calls readers: reading as a group changes the group.
const STRICTER: [&str; 1] = ["XREADGROUP"];

/// Commands that only Redis calls writers, in their key specs; their flags call them readers.
pub(super) const READERS: [&str; 9] =
    ["VCARD", "VDIM", "VEMB", "VGETATTR", "VINFO", "VISMEMBER", "VLINKS", "VRANDMEMBER", "VSIM"];

#[test]
fn keys_are_where_redis_finds_them() {
    keys_are_where_it_finds_them(Redis::start());
}

/// Compares the keys of every sample of this server.
pub(super) fn keys_are_where_it_finds_them(mut redis: Redis) {
    let table = redis.table();
    for line in redis.samples.clone() {
        let is_stricter = STRICTER.iter().any(|name| line.starts_with(name));
        let mut ours = keys_of(&table, line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut theirs = redis_keys(&mut redis, line);
        if is_stricter {
            let read: Vec<String> = ours.iter().map(|key| key.replacen("w:", "r:", 1)).collect();
            assert_ne!(read, ours, "{line} is not stricter than Redis");
            ours = read;
        }
        if READERS.iter().any(|name| line.starts_with(&format!("{name} "))) {
            let written: Vec<String> = ours.iter().map(|key| key.replacen("r:", "w:", 1)).collect();
            assert_ne!(written, ours, "{line} does not only read");
            ours = written;
        }
        ours.sort();
        theirs.sort();
        assert_eq!(ours, theirs, "{line}");
    }
}

/// Returns the result of COMMAND GETKEYSANDFLAGS in the form of `keys_of`.
fn redis_keys(redis: &mut Redis, line: &str) -> Vec<String> {
    let reply = redis.line(&format!("COMMAND GETKEYSANDFLAGS {line}"));
    let keys: Vec<(String, Vec<String>)> =
        redis::from_redis_value(reply.unwrap_or_else(|error| panic!("{line}: {error}"))).unwrap();
    let shown = |(key, flags): &(String, Vec<String>)| {
        let reads = flags.iter().any(|flag| flag == "RO");
        format!("{}:{key}", if reads { 'r' } else { 'w' })
    };
    keys.iter().map(shown).collect()
}

#[test]
fn every_command_with_keys_has_a_sample() {
    each_with_keys_has_a_sample(Redis::start());
}

/// Finds a sample for each command of this server that has keys.
pub(super) fn each_with_keys_has_a_sample(mut redis: Redis) {
    let table = redis.table();
    let mut with_keys = 0;
    for entry in table.entries.all() {
        let Ok(action) = entry.outcome() else { continue };
        let names_no_key = matches!(
            action.keys,
            Keys::None
                | Keys::Keyspace
                | Keys::Channels(_)
                | Keys::ByHand(ByHand::Tracking | ByHand::Flush)
        );
        if names_no_key {
            continue;
        }
        with_keys += 1;
        let begin = format!("{} ", entry.name().replace('|', " ")).to_ascii_uppercase();
        let has_sample = redis.samples.iter().any(|line| line.starts_with(&begin));
        assert!(has_sample, "no sample of {begin}");
    }
    assert!(with_keys > 150, "only {with_keys} commands have keys");
}

#[test]
fn fencepost_s_own_keys_are_denied_in_every_position() {
    let mut redis = Redis::start();
    let table = redis.table();
    for line in SAMPLES.lines() {
        let (_, keys) = plan_line(&table, line).unwrap();
        for key in keys {
            let mut words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
            words[key.arg] = b"{fence:default}:guard:marks";
            let error = plan(&table, &words).expect_err(line);
            assert!(error.starts_with("DENIED key \"{fence:default}:guard:marks\""), "{error}");
            // A key that only looks similar is allowed.
            words[key.arg] = b"{fences}:x";
            assert!(plan(&table, &words).is_ok(), "{line}");
        }
    }
}
