//! The same tests with the newer servers that the guard is tested with, which `tests/engines`
//! installs.

use super::super::policy::{self, Verdict};
use super::*;

const NEWER: [&str; 2] = ["redis-8.2", "valkey-9.1"];

/// The samples that Redis 7.0 does not have.
fn new_samples(redis: &Redis) -> Vec<&'static str> {
    let is_new = |line: &&str| !samples::SAMPLES.lines().any(|known| known == *line);
    redis.samples.iter().copied().filter(is_new).collect()
}

#[test]
fn keys_are_where_newer_servers_find_them() {
    for engine in NEWER {
        same_keys::keys_are_where_it_finds_them(Redis::newer(engine));
        same_keys::each_with_keys_has_a_sample(Redis::newer(engine));
    }
}

#[test]
fn nothing_happens_to_other_keys_of_newer_servers() {
    for engine in NEWER {
        effects::nothing_happens_to_others(Redis::newer(engine));
    }
}

#[test]
fn no_order_of_words_hides_a_key_of_newer_servers() {
    for engine in NEWER {
        let mut redis = Redis::newer(engine);
        let lines = new_samples(&redis);
        let (passed, refused) = hostile::no_order_hides_a_key(&mut redis, &lines);
        assert!(passed > 5_000 && refused > 100, "{engine}: {passed} passed, {refused} did not");
        let (ran, tried) = scripts::no_order_reaches_another_key(&mut redis, &lines);
        assert!(ran > 12 && tried > 2_000, "{engine}: {ran} ran, {tried} variants were tried");
    }
}

/// A user of the guard may run whatever the guard passes on over its connection.
#[test]
fn every_command_that_passes_is_one_that_the_guards_users_may_run() {
    for mut redis in [Redis::start(), Redis::newer("redis-8.2"), Redis::newer("valkey-9.1")] {
        let table = redis.table();
        let wide = format!("({})", crate::doors::redis::confine::WIDE);
        redis.words(&["ACL", "SETUSER", "wide", "on", ">p", &wide]).unwrap();
        let rules = table.script_rules();
        let words: Vec<&str> = rules.iter().map(String::as_str).collect();
        redis.words(&[&["ACL", "SETUSER", "confined", "~*", "&*"], &words[..]].concat()).unwrap();
        for entry in table.entries.all() {
            let Ok(action) = entry.outcome() else { continue };
            if matches!(action.handling, Handling::Local(_)) {
                continue;
            }
            let mut words: Vec<&str> = entry.name().split('|').collect();
            words.resize(words.len().max(entry.words_min()), "1");
            for (user, may) in [("wide", true), ("confined", action.in_scripts)] {
                let dry = redis.words(&[&["ACL", "DRYRUN", user], &words[..]].concat());
                assert_eq!(dry == Ok(Value::Okay), may, "{user} {words:?}: {dry:?}");
            }
        }
    }
}

/// A scan of all nodes is a SCAN.
#[test]
fn a_cluster_is_scanned_like_a_keyspace() {
    let table = Redis::newer("valkey-9.1").table();
    for line in ["SCAN 0", "CLUSTERSCAN 0"] {
        assert_eq!(plan_line(&table, line).unwrap().0.touches, Touches::Keyspace, "{line}");
    }
    assert_eq!(policy::verdict("cluster|slot-stats"), policy::verdict("cluster"));
    assert!(matches!(policy::verdict("cluster"), Some(Verdict::Denied(_))));
}
