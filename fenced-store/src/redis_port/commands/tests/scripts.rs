//! What a script's user may run, and that nothing of it reaches a key that was not declared.

use super::hostile::{Canaries, variants};
use super::page::not_in_scripts;
use super::samples::SAMPLES;
use super::*;
use crate::redis_port::confine::{Scoped, narrowing};

/// What passes from a client of Redis 7.0 and not from a script, one a line.
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
FUNCTION DUMP
FUNCTION LIST
FUNCTION STATS
GEORADIUS
GEORADIUSBYMEMBER
KEYS
MEMORY DOCTOR
MEMORY MALLOC-STATS
MEMORY STATS
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
fn what_scripts_may_not_run_is_computed() {
    let mut redis = Redis::start();
    let (table, is_7_0) = (redis.table(), redis.is_7_0());
    let computed = not_in_scripts(&table);
    println!("{}", computed.join("\n"));
    if is_7_0 {
        assert_eq!(computed, NOT_IN_SCRIPTS_7_0.lines().collect::<Vec<_>>());
    }
}

const USER: &str = "script";

/// Narrows the user to the keys of a sample, as the guard would.
fn narrow(redis: &mut Redis, rules: &[String], line: &str, keys: &[KeyUse]) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let key = |key: &KeyUse| (words[key.arg].as_bytes().to_vec(), key.access);
    let keys: Scoped = keys.iter().map(key).collect();
    narrowing(USER, Some(rules), &keys).unwrap().exec(&mut redis.connection).unwrap();
}

/// Every command that a script may run, from within a real script whose user is narrowed to the
/// keys of a sample, with its words in hostile orders: nothing else changes, and nothing is read.
#[test]
fn no_order_of_words_reaches_another_key_from_a_script() {
    let mut redis = Redis::start();
    let table = redis.table();
    let rules = table.script_rules();
    redis.words(&["ACL", "SETUSER", USER, "on", ">p"]).unwrap();
    let mut script = redis.connect("");
    let run = |script: &mut redis::Connection, line: &[&str]| {
        let eval = ["EVAL", "return redis.pcall(unpack(ARGV))", "0"];
        real::run(script, &[&eval, line].concat())
    };
    let (mut ran, mut tried) = (0, 0);
    for line in SAMPLES.lines() {
        let (plan, keys) = plan_line(&table, line).unwrap();
        if !plan.in_scripts || plan.handling == Handling::Script {
            continue;
        }
        let canaries = Canaries::place(&mut redis);
        narrow(&mut redis, &rules, line, &keys);
        real::run(&mut script, &["AUTH", USER, "p"]).unwrap();
        let as_it_is: Vec<&str> = line.split_whitespace().collect();
        ran += usize::from(run(&mut script, &as_it_is).is_ok());
        for words in variants(line) {
            tried += 1;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            canaries.check_reply(&words, &run(&mut script, &words));
        }
        canaries.check(&mut redis, line);
    }
    assert!(ran > 150 && tried > 5_000, "{ran} samples ran, and {tried} variants were tried");
}

/// The way in that was there: a user that may run every command on its own keys.
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
        let keys = ["g1", "STREAMS", ">"].map(|key| (key.as_bytes().to_vec(), KeyAccess::Write));
        let narrow = narrowing(USER, Some(rules), &Scoped::from(keys)).unwrap();
        narrow.exec(&mut redis.connection).unwrap();
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
    narrowing(USER, Some(&rules), &Scoped::new()).unwrap().exec(&mut redis.connection).unwrap();
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
