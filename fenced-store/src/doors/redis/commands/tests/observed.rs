//! Commands that pass only in observe mode.

use super::super::policy::{self, Verdict};
use super::*;

/// Commands refused in every mode: they change the mode of a connection, or reach the guard's own
/// keys, users or connections.
const REFUSED: &str = "\
    swapdb monitor acl debug failover module replconf shutdown psync replicaof slaveof sync \
    client|capa asking cluster readonly readwrite script|debug client|kill client|pause \
    client|unpause \
    client|no-evict client|import-source client|reply";

/// Forms of these that pass, since they have entries of their own.
const LINES: &str = "\
BGSAVE
CONFIG SET maxmemory 0
SLOWLOG GET
LATENCY RESET
ACL LIST
FUNCTION LOAD x
SCRIPT FLUSH
MIGRATE h 1 k 0 1
MEMORY PURGE";

/// Lines that stay refused.
const NEVER: &str = "\
ACL SETUSER x
ACL DELUSER default
ACL LOAD
MONITOR
SHUTDOWN
SYNC
SWAPDB 0 1
CLIENT KILL ID 1
CLIENT REPLY OFF
SCRIPT DEBUG YES
DEBUG RELOAD
MIGRATE h 1 {fence:default}:guard:marks 0 1
PFDEBUG GETREG {fence:default}:guard:marks
GET {fence:default}:guard:marks
SORT a BY *";

fn observing(redis: &mut Redis, may_administer: bool) -> CommandTable {
    redis.table().observing(Observing { may_administer })
}

#[test]
fn every_refused_command_passes_or_is_listed() {
    let denied = policy::all().filter(|(verdict, _)| matches!(verdict, Verdict::Denied(_)));
    for name in denied.flat_map(|(_, names)| names.split_whitespace()) {
        let is_listed = REFUSED.split_whitespace().any(|known| known == name);
        assert_ne!(policy::observed(name).is_some(), is_listed, "{name}");
    }
}

#[test]
fn commands_that_spare_the_guard_pass() {
    let mut redis = Redis::start();
    let table = observing(&mut redis, true);
    let enforcing = redis.table();
    for line in LINES.lines() {
        assert!(plan_line(&enforcing, line).is_err(), "{line}");
        let (plan, _) = plan_line(&table, line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(plan.is_denied && plan.handling == Handling::Shared, "{line}: {plan:?}");
    }
    for line in NEVER.lines() {
        let error = plan_line(&table, line).expect_err(line);
        assert!(error.starts_with("DENIED "), "{line}: {error}");
    }
    for (line, is_denied) in [("CONFIG GET maxmemory SAVE", false), ("CONFIG GET save dir", true)] {
        let (plan, _) = plan_line(&table, line).unwrap();
        assert_eq!((plan.handling, plan.is_denied), (Handling::Shared, is_denied), "{line}");
    }
}

#[test]
fn no_administration_where_redis_has_a_password() {
    let mut redis = Redis::start();
    let table = observing(&mut redis, false);
    for line in ["CONFIG SET maxmemory 0", "CONFIG GET *", "SLOWLOG GET", "ACL LIST", "BGSAVE"] {
        let error = plan_line(&table, line).expect_err(line);
        assert!(error.contains("Redis itself"), "{line}: {error}");
    }
    for line in ["FUNCTION LOAD x", "CONFIG GET maxmemory", "GET a"] {
        assert!(plan_line(&table, line).is_ok(), "{line}");
    }
}

/// Redis' ACL accepts the rules of [`super::super::observed`].
#[test]
fn redis_takes_the_rules_of_scripts() {
    let mut redis = Redis::start();
    let rules = observing(&mut redis, true).script_rules();
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("x").arg("on").arg("nopass").arg("~*").arg(&rules[..]);
    command.exec(&mut redis.connection).unwrap();
    for (line, may) in [("KEYS *", true), ("SORT a", true), ("FLUSHDB", false), ("SAVE", false)] {
        let reply = redis.line(&format!("ACL DRYRUN x {line}")).unwrap();
        assert_eq!(reply == Value::Okay, may, "{line}: {reply:?}");
    }
}
