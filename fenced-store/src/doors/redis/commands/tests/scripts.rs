//! Commands that a script's user may run; none reaches a key that was not declared.

use super::hostile::{Canaries, variants};
use super::page::not_in_scripts;
use super::*;
use crate::doors::redis::confine::{CheckedKeys, add_confinement};
use crate::rules::{DefaultRule, KeyPatterns, Rules};

/// Commands of Redis 7.0 that pass from a client and not from a script, one a line.
const NOT_IN_SCRIPTS_7_0: &str = "\
CLIENT CACHING
CLIENT GETREDIR
CLIENT TRACKING
CLIENT TRACKINGINFO
COMMAND
COMMAND COUNT
COMMAND DOCS
COMMAND GETKEYS
COMMAND GETKEYSANDFLAGS
COMMAND INFO
COMMAND LIST
DBSIZE
FLUSHALL
FLUSHDB
FUNCTION DUMP
FUNCTION LIST
FUNCTION STATS
GEORADIUS
GEORADIUSBYMEMBER
KEYS
MEMORY DOCTOR
MEMORY MALLOC-STATS
MEMORY STATS
PFMERGE
PSUBSCRIBE
PUBSUB CHANNELS
PUBSUB NUMPAT
PUBSUB NUMSUB
PUBSUB SHARDCHANNELS
PUBSUB SHARDNUMSUB
PUNSUBSCRIBE
RANDOMKEY
SCAN
SCRIPT EXISTS
SCRIPT LOAD
SORT
SORT_RO
SSUBSCRIBE
SUBSCRIBE
SUNSUBSCRIBE
UNSUBSCRIBE
WAIT
XREAD
XREADGROUP";

#[test]
fn commands_denied_to_scripts_are_computed() {
    let mut redis = Redis::start();
    let table = redis.table();
    let is_7_0 = redis.is_7_0();
    let computed = not_in_scripts(&table);
    println!("{}", computed.join("\n"));
    if is_7_0 {
        assert_eq!(computed, NOT_IN_SCRIPTS_7_0.lines().collect::<Vec<_>>());
    }
}

const USER: &str = "script";

/// Confines the user to patterns and to further keys.
fn confine(redis: &mut Redis, rules: &[String], patterns: &KeyPatterns, more: &CheckedKeys) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(USER);
    add_confinement(&mut command, Some(rules), patterns, more).unwrap();
    command.exec(&mut redis.connection).unwrap();
}

/// Confines the user to the keys of a sample, as the guard would.
fn narrow(redis: &mut Redis, rules: &[String], line: &str, keys: &[KeyUse]) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut checked = CheckedKeys::default();
    keys.iter().for_each(|key| checked.add((words[key.arg].as_bytes(), key.access)));
    confine(redis, rules, &KeyPatterns::default(), &checked);
}

/// Runs every command that a script may run, from a real script whose user is confined to the keys
/// of a sample, with its words in hostile orders: no other key is changed or read.
#[test]
fn no_order_of_words_reaches_another_key_from_a_script() {
    let mut redis = Redis::start();
    let lines = redis.samples.clone();
    let (ran, tried) = no_order_reaches_another_key(&mut redis, &lines);
    assert!(ran > 150 && tried > 5_000, "{ran} samples ran, and {tried} variants were tried");
}

/// Returns how many of these samples ran as they are, and how many variants were tried.
pub(super) fn no_order_reaches_another_key(redis: &mut Redis, lines: &[&str]) -> (usize, usize) {
    let table = redis.table();
    let rules = table.script_rules();
    redis.words(&["ACL", "SETUSER", USER, "on", ">p"]).unwrap();
    let mut script = redis.connect("");
    let run = |script: &mut redis::Connection, line: &[&str]| {
        let eval = ["EVAL", "return redis.pcall(unpack(ARGV))", "0"];
        real::run(script, &[&eval, line].concat())
    };
    let mut ran = 0;
    let mut tried = 0;
    for line in lines {
        let (plan, keys) = plan_line(&table, line).unwrap();
        if !plan.in_scripts || plan.handling == Handling::Script {
            continue;
        }
        let canaries = Canaries::place(redis);
        narrow(redis, &rules, line, &keys);
        real::run(&mut script, &["AUTH", USER, "p"]).unwrap();
        let as_it_is: Vec<&str> = line.split_whitespace().collect();
        ran += usize::from(run(&mut script, &as_it_is).is_ok());
        for words in variants(redis, line) {
            tried += 1;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            canaries.check_reply(&words, &run(&mut script, &words));
        }
        canaries.check(redis, line);
    }
    (ran, tried)
}

/// Shows the attack that confinement prevents: a user that may run every command on its own keys.
#[test]
fn a_user_with_all_commands_would_reach_the_canary() {
    let mut redis = Redis::start();
    let rules = redis.table().script_rules();
    let lines = [
        "GEORADIUS g1 15 37 0 km STORE g1 STORE {fence:default}:guard:marks",
        "XREADGROUP GROUP grp STREAMS STREAMS c:x1 >",
    ];
    for (rules, is_safe) in [(&["+@all".to_owned()][..], false), (&rules, true)] {
        let canaries = Canaries::place(&mut redis);
        redis.words(&["ACL", "SETUSER", USER, "on", ">p"]).unwrap();
        let mut keys = CheckedKeys::default();
        for key in ["g1", "STREAMS", ">"] {
            keys.add((key.as_bytes(), KeyAccess::Write));
        }
        confine(&mut redis, rules, &KeyPatterns::default(), &keys);
        let mut script = redis.connect("");
        real::run(&mut script, &["AUTH", USER, "p"]).unwrap();
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let _ = real::run(&mut script, &words);
        }
        assert_eq!(canaries.changed(&mut redis).is_empty(), is_safe, "{rules:?}");
    }
}

/// A script publishes on every channel but Fencepost's own.
#[test]
fn scripts_publish_on_channels_that_are_not_fencepost_s_own() {
    let mut redis = Redis::start();
    let rules = redis.table().script_rules();
    redis.words(&["ACL", "SETUSER", USER, "on", ">p"]).unwrap();
    confine(&mut redis, &rules, &KeyPatterns::default(), &CheckedKeys::default());
    let mut script = redis.connect("");
    real::run(&mut script, &["AUTH", USER, "p"]).unwrap();
    for command in ["PUBLISH", "SPUBLISH"] {
        for (channel, may) in [
            ("news", true),
            ("", true),
            ("{", true),
            ("{orders}:1", true),
            ("{fence", true),
            ("{fences}", true),
            ("{f", true),
            ("{fen*", true),
            ("{fence:", false),
            ("{fence:default}:c:1", false),
        ] {
            let body = format!("return redis.call('{command}', ARGV[1], 'x')");
            let reply = real::run(&mut script, &["EVAL", &body, "0", channel]);
            assert_eq!(reply.is_ok(), may, "{command} {channel}: {reply:?}");
        }
    }
}

/// Redis reads the patterns as the guard does: the same keys, whatever their bytes.
#[test]
fn redis_matches_the_patterns_as_the_guard_does() {
    let mut redis = Redis::start();
    let rules = redis.table().script_rules();
    redis.words(&["ACL", "SETUSER", USER, "on", ">p"]).unwrap();
    let texts =
        ["k:{id}:**=bench/{id}", "%5D%5E%5C-:**=@deny", "a%20b=@deny", "o/**=@open", "%FF:**=x"];
    let parsed = texts.map(|text| text.parse().unwrap()).to_vec();
    let some = Rules::new(parsed).unwrap().with_default(DefaultRule::Open);
    let some = some.key_patterns(&["bench/a[*?]\\b^", "bench/42"], false);
    let leads: [&[u8]; 12] = [
        b"", b"k:", b"k:42", b"k:4", b"o/", b"]", b"]^\\-:", b"]^\\-", b"a b", b"{fence", b"{",
        b"\xff:",
    ];
    let rests: [&[u8]; 9] =
        [b"", b":", b":x", b"*", b"\0", b" ", b"\xff\xfe", b"default}:guard:marks", b"]^-\\["];
    for patterns in [some, KeyPatterns::everything()] {
        confine(&mut redis, &rules, &patterns, &CheckedKeys::default());
        for (lead, rest) in leads.iter().flat_map(|lead| rests.map(|rest| (lead, rest))) {
            let key = [lead, rest].concat();
            let mut dry = redis::cmd("ACL");
            dry.arg("DRYRUN").arg(USER).arg("SET").arg(&key).arg("1");
            let reply: redis::Value = dry.query(&mut redis.connection).unwrap();
            assert_eq!(
                reply == redis::Value::Okay,
                patterns.cover(&key, true),
                "{}",
                key.escape_ascii()
            );
        }
    }
}
