//! Gaps in the guarantee by the set-up of this Redis, a sentence each.

use redis_link::{RedisTarget, info_field};
use service_kit::health::Status;

use crate::stores::report::Gaps;

/// Gaps of a Redis that Sentinel or a cluster selects.
pub(super) fn target_gap(target: &RedisTarget) -> Option<String> {
    let text = if target.is_sentinel() {
        "Sentinels select the Redis: best effort. A failover may lose the last marks and their data \
         together, and a master that is cut off from the sentinels serves until it learns of it; \
         an old holder's writes can then take effect until the new holder reaches the new master."
    } else if target.is_cluster() {
        "In a cluster the objects, and each slot before the Redis port, have marks of their own: the \
         port refuses an old holder in a slot once the new one has touched that slot. A failover \
         may lose the last marks of a node and their data together."
    } else {
        return None;
    };
    Some(text.to_owned())
}

/// Reads `INFO`; `persistence` is the verdict on its disk.
pub(super) fn gaps(info: &str, persistence: &Status, prefix: &str) -> Gaps {
    let mut gaps = Gaps::default();
    if let Status::Warn(text) | Status::Failing(text) = persistence {
        gaps.avoidable.push(format!("{text}."));
    }
    let number = |field| info_field(info, field).and_then(|text| text.parse::<u64>().ok());
    let policy = info_field(info, "maxmemory_policy").unwrap_or("unknown");
    if policy.starts_with("volatile-") {
        gaps.avoidable.push(format!(
            "Redis has maxmemory-policy {policy}: marks have no expiry and stay, but the outcomes \
             of named operations (Idempotency-Key) have one, and a retry may then be applied twice."
        ));
    }
    if let Some(bytes) = number("maxmemory").filter(|bytes| *bytes > 0) {
        gaps.inherent.push(format!(
            "Redis has maxmemory {bytes}: when that is used up, operations are refused until there \
             is room."
        ));
    }
    if number("connected_slaves").is_some_and(|replicas| replicas > 0) {
        gaps.inherent.push(
            "Replication is asynchronous: a failover to a replica may lose the last marks and \
             their data together."
                .to_owned(),
        );
    }
    gaps.inherent.push(format!(
        "FLUSHALL, or deleting {prefix}*, forgets the marks; a running guard notices it, one that \
         starts afterwards cannot."
    ));
    gaps.inherent
        .push("A client that reaches this Redis without the guard writes unfenced.".to_owned());
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_its_sentence() {
        let common = gaps("maxmemory_policy:noeviction\r\nmaxmemory:0\r\n", &Status::Ok, "p:");
        assert_eq!((common.avoidable.len(), common.inherent.len()), (0, 2), "{common:?}");
        assert!(common.inherent[0].contains("deleting p:*"), "{common:?}");
        let warned = Status::Warn("appendfsync is everysec".to_owned());
        for (info, persistence, words) in [
            ("maxmemory:0", &warned, "everysec."),
            ("maxmemory_policy:volatile-lru", &Status::Ok, "applied twice"),
            ("maxmemory:1000", &Status::Ok, "maxmemory 1000"),
            ("connected_slaves:2", &Status::Ok, "asynchronous"),
        ] {
            let Gaps { avoidable, inherent } = gaps(info, persistence, "p:");
            assert_eq!(avoidable.is_empty(), ["maxmemory 1000", "asynchronous"].contains(&words));
            let found = [avoidable, inherent].concat();
            assert_eq!(found.len(), 3, "{found:?}");
            assert!(found[0].contains(words), "{found:?}");
        }
    }
}
