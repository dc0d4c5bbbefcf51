//! What a process tells of itself, and which one is refused.

use super::*;

const INFO: &str = "redis_version:7.0.15\r\nrun_id:aa\r\nrole:master\r\nmaster_replid:bb\r\n";

#[test]
fn a_master_of_a_supported_version_has_an_identity() {
    assert_eq!(identity(INFO, false), Ok(("aa", "bb")));
}

#[test]
fn others_are_refused_with_a_reason() {
    for (from, to, reason) in [
        ("7.0.15", "6.2.1", "not supported"),
        ("7.0.15", "x", "not supported"),
        ("role:master", "role:slave", "is a replica"),
        ("role:master", "role:master\r\nloading:1", "loading"),
        ("run_id:aa", "", "INFO lacks run_id"),
        ("role:master", "role:master\r\ncluster_enabled:1", "write redis-cluster://"),
    ] {
        let error = identity(&INFO.replace(from, to), false).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    let node = INFO.replace("role:", "cluster_enabled:1\r\nrole:");
    assert_eq!(identity(&node, true), Ok(("aa", "bb")));
}
