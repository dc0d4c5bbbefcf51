//! Fuzz target: where a Redis is, by URLs, a cluster's slots and what sentinels say.

use redis::Value;
use service_kit::login::without_password;

use crate::cluster::ClusterTarget;
use crate::target::RedisTarget;
use crate::{SLOTS, info_field, sentinel, slot_of, slots, text_fields};

/// Stands for a password; it must not be in what a log shows.
const PASSWORD: &str = "hunter2";

/// RESP: the replies of nodes and sentinels. Text: URLs, a line each. The first bytes are also
/// votes.
fn places(input: &[u8]) {
    if let Ok(value) = redis::parse_redis_value(input) {
        replies(value);
    }
    assert!(slot_of(input) < SLOTS);
    sentinel::fuzz_votes(input);
    let Ok(text) = std::str::from_utf8(input) else { return };
    for line in text.lines() {
        url(line);
        let _ = info_field(text, line);
    }
}

fn replies(value: Value) {
    if let Some(ranges) = slots::ranges(value.clone(), "asked") {
        for range in &ranges {
            assert!(range.first <= range.last && range.last < SLOTS, "{range:?}");
            assert!(slots::owner(&ranges, range.first).is_some() || !range.master.contains(':'));
        }
    }
    let _ = text_fields(value);
}

fn url(line: &str) {
    let redis = line.parse::<RedisTarget>();
    let cluster = line.parse::<ClusterTarget>();
    for shown in [
        without_password(line),
        redis.as_ref().map_or_else(ToString::to_string, ToString::to_string),
        format!("{redis:?}"),
        cluster.as_ref().map_or_else(ToString::to_string, ToString::to_string),
        format!("{cluster:?}"),
    ] {
        let is_once = line.matches(PASSWORD).count() == 1;
        let before = line.rsplit_once('@').map_or("", |(before, _)| before);
        if is_once && line.starts_with("redis") && before.contains(&format!(":{PASSWORD}")) {
            assert!(!shown.contains(PASSWORD), "{line}: {shown}");
        }
    }
    if let Ok(cluster) = &cluster {
        for seed in cluster.seeds() {
            assert!(cluster.node(&seed).is_some(), "{line} names {seed}, which is no address");
        }
    }
    assert!(redis.is_err() || cluster.is_err(), "{line} has two meanings");
}

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[("redis-places", places)];

#[cfg(test)]
mod tests {
    use super::TARGETS;

    #[test]
    fn every_target_holds_in_a_short_run() {
        for (name, target) in TARGETS {
            fence_fuzz::short_run(name, *target, 10_000);
        }
    }
}
