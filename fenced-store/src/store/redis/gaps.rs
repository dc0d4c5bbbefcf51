//! What can void the guarantee as this Redis is set up, a sentence each.

use redis_link::{RedisTarget, info_field};
use service_kit::health::Status;

/// What it means that others choose the Redis.
pub(super) fn of_target(target: &RedisTarget) -> Option<String> {
    let text = if target.is_sentinel() {
        "Sentinels choose the Redis: best effort. A failover may lose the last marks and their data \
         together, and a master that was cut off from the sentinels serves until it hears of it; an \
         old holder's writes can then take effect again until the new one has been there."
    } else if target.is_cluster() {
        "In a cluster the objects, and each slot before the Redis port, have marks of their own: the \
         port shuts an old holder out of a slot when the new one has touched that slot. A failover \
         may lose the last marks of a node and their data together."
    } else {
        return None;
    };
    Some(text.to_owned())
}

/// Reads `INFO`; `persistence` is what was judged of its disk.
pub(super) fn gaps(info: &str, persistence: &Status, prefix: &str) -> Vec<String> {
    let mut gaps = Vec::new();
    if let Status::Warn(text) | Status::Failing(text) = persistence {
        gaps.push(format!("{text}."));
    }
    let number = |field| info_field(info, field).and_then(|text| text.parse::<u64>().ok());
    let policy = info_field(info, "maxmemory_policy").unwrap_or("unknown");
    if policy.starts_with("volatile-") {
        gaps.push(format!(
            "Redis has maxmemory-policy {policy}: marks have no expiry and stay, but what is kept \
             of named operations (Idempotency-Key) has one, and a repeat may then be done twice."
        ));
    }
    if let Some(bytes) = number("maxmemory").filter(|bytes| *bytes > 0) {
        gaps.push(format!(
            "Redis has maxmemory {bytes}: when that is used up, operations are refused until there \
             is room."
        ));
    }
    if number("connected_slaves").is_some_and(|replicas| replicas > 0) {
        gaps.push(
            "Replication is asynchronous: a failover to a replica may lose the last marks and \
             their data together."
                .to_owned(),
        );
    }
    gaps.push(format!(
        "FLUSHALL, or deleting {prefix}*, forgets the marks; a guard that runs notices it, one that \
         is started afterwards cannot."
    ));
    gaps.push("Whoever reaches this Redis without the guard writes unfenced.".to_owned());
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_its_sentence() {
        let common = gaps("maxmemory_policy:noeviction\r\nmaxmemory:0\r\n", &Status::Ok, "p:");
        assert_eq!(common.len(), 2, "{common:?}");
        assert!(common[0].contains("deleting p:*"), "{common:?}");
        let warned = Status::Warn("appendfsync is everysec".to_owned());
        for (info, persistence, words) in [
            ("maxmemory:0", &warned, "everysec."),
            ("maxmemory_policy:volatile-lru", &Status::Ok, "done twice"),
            ("maxmemory:1000", &Status::Ok, "maxmemory 1000"),
            ("connected_slaves:2", &Status::Ok, "asynchronous"),
        ] {
            let found = gaps(info, persistence, "p:");
            assert_eq!(found.len(), 3, "{found:?}");
            assert!(found[0].contains(words), "{found:?}");
        }
    }
}
