//! Identity of a Redis process, and whether it may issue tokens.

use redis_link::{Product, info_field};

use super::judge::{Version, oldest_version};

/// Run id and replication id of a process that may issue tokens.
pub(crate) fn identity(info: &str, is_cluster: bool) -> Result<(&str, &str), String> {
    check_master(info, "this Redis is a replica; name the master in --store")?;
    if info_field(info, "cluster_enabled") == Some("1") && !is_cluster {
        return Err("this Redis is a node of a cluster, in which keys move to other nodes; write \
                    redis-cluster://host:port,host:port with some of its nodes in --store"
            .to_owned());
    }
    Ok((field(info, "run_id")?, field(info, "master_replid")?))
}

/// Requires a master of a supported version that has loaded its data; `is_replica` is the error for
/// a replica.
pub(crate) fn check_master(info: &str, is_replica: &str) -> Result<(), String> {
    let version = field(info, "redis_version")?;
    if Version::parse(version).is_none_or(|version| version < oldest_version()) {
        let found = Product::from_info(info).map_or_else(String::new, |found| found.to_string());
        let oldest = oldest_version();
        return Err(format!("{found} is not supported; use version {oldest} or newer"));
    }
    if field(info, "role")? != "master" {
        return Err(is_replica.to_owned());
    }
    match info_field(info, "loading") {
        Some("1") => Err("Redis is still loading its data".to_owned()),
        _ => Ok(()),
    }
}

/// A field that every Redis has.
pub(crate) fn field<'i>(info: &'i str, name: &str) -> Result<&'i str, String> {
    info_field(info, name).ok_or_else(|| format!("Redis cannot be verified: INFO lacks {name}"))
}

#[cfg(test)]
mod tests {
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
}
