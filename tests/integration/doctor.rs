//! `fence doctor` over real servers: what it looks at, and that it changes nothing.

mod access;
mod direct;
mod engines;
mod pair;
mod password;
mod reports;
mod round_trip;
mod silence;

use fence_tests::process::{Output, Process, command};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::until;
use redis::FromRedisValue;
use serde_json::Value;

/// Verdict, about and text.
type Finding = (String, String, String);

/// Its exit code, and each finding.
async fn doctor(args: &[&str]) -> (i32, Vec<Finding>) {
    let output = run(&[args, &["--output", "json"]].concat()).await;
    let checks: Vec<Value> =
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let field = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
    let checks = checks
        .iter()
        .map(|check| (field(check, "verdict"), field(check, "about"), field(check, "text")))
        .collect();
    (output.code, checks)
}

async fn run(args: &[&str]) -> Output {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.arg("doctor").args(args);
    Process::spawn("fence doctor", command).ended().await
}

/// Words on a reply that came too late, or not yet.
const LATE: [&str; 6] =
    [" within ", "no reply", "does not reply", "timed out", "sending request", "cannot reach"];

/// Its findings where nothing is wrong. It looks again where a busy machine took too long to reply.
async fn well(args: &[&str]) -> Vec<Finding> {
    let is_late = |(verdict, _, text): &Finding| {
        ["warning", "failing"].contains(&verdict.as_str())
            && LATE.iter().any(|late| text.contains(late))
    };
    until("replies in time", || async {
        let (code, checks) = doctor(args).await;
        if code != 0 && checks.iter().any(is_late) {
            return None;
        }
        assert_eq!(code, 0, "{checks:?}");
        Some(checks)
    })
    .await
}

/// Arguments that name both, with `--strict`.
fn at_both<'a>(server: &'a Server, guard: &'a Server, more: &[&'a str]) -> Vec<&'a str> {
    let named = ["--server", server.base.as_str(), "--guard", &guard.base, "--strict"];
    [&named, more].concat()
}

/// Its exit code and findings at both, with `--strict`.
async fn both(server: &Server, guard: &Server, more: &[&str]) -> (i32, Vec<Finding>) {
    doctor(&at_both(server, guard, more)).await
}

/// The verdict and text of the finding that is about this.
fn about<'a>(checks: &'a [Finding], what: &str) -> (&'a str, &'a str) {
    let found = checks.iter().find(|(_, about, _)| about == what);
    let (verdict, _, text) = found.unwrap_or_else(|| panic!("nothing about {what}: {checks:?}"));
    (verdict, text)
}

async fn redis_command<T: FromRedisValue>(redis: &Redis, words: &str) -> T {
    redis.run(&words.split(' ').collect::<Vec<_>>()).await
}

impl User<'_> {
    fn url(&self) -> String {
        format!("redis://{}:{}@{}", self.name, self.password, self.redis.address())
    }

    async fn tries(&self, more: &[&str]) -> (i32, Vec<Finding>) {
        let url = self.url();
        doctor(&[&["--direct", &url, "--strict"], more].concat()).await
    }
}

struct User<'a> {
    redis: &'a Redis,
    name: &'static str,
    password: &'static str,
}

/// Services that are not named are not asked: nothing listens at the default addresses of this test
/// run.
#[tokio::test]
async fn only_what_is_named_is_judged() {
    let redis = Redis::start().await;
    let checks = well(&["--redis", &redis.url()]).await;
    assert!(checks.iter().all(|(_, about, _)| about.starts_with("redis")), "{checks:?}");
    let guard = Setup::fenced_store("memory:").start().await;
    let checks = well(&["--store", &guard.base]).await;
    assert!(checks.iter().all(|(_, about, _)| about.starts_with("fenced-store")), "{checks:?}");
}

#[tokio::test]
async fn a_guard_shows_its_stores_and_its_mode() {
    let redis = Redis::start().await;
    let guard = Setup::fenced_store(&redis.url()).start().await;
    let (_, checks) = doctor(&["--store", &guard.base]).await;
    let (verdict, text) = about(&checks, "fenced-store store redis");
    assert_eq!(verdict, "ok");
    assert!(text.contains("atomic") && text.contains(&redis.address()), "{text}");
    assert_eq!(about(&checks, "fenced-store mode").0, "ok");
    assert!(checks.iter().any(|(verdict, about, _)| verdict == "note" && about.contains("gap")));

    let watching = Setup::fenced_store("memory:").args(&["--mode", "observe"]).start().await;
    let (code, checks) = doctor(&["--store", &watching.base, "--strict"]).await;
    assert_eq!(code, 1, "{checks:?}");
    assert_eq!(about(&checks, "fenced-store mode").0, "warning");
    // A lock server has no stores to show.
    let locks = Setup::lock_server("memory:").start().await;
    let (code, checks) = doctor(&["--store", &locks.base]).await;
    assert_eq!(code, 69, "{checks:?}");
    assert!(about(&checks, "fenced-store version").1.contains("swap the addresses"));
}

#[tokio::test]
async fn an_application_that_can_bypass_the_guard_is_a_warning() {
    let redis = Redis::start().await;
    let (code, checks) = doctor(&["--direct", &redis.url(), "--strict"]).await;
    assert_eq!(code, 1, "{checks:?}");
    let (verdict, text) = about(&checks, "direct write");
    assert_eq!(verdict, "warning");
    assert!(text.contains("ACL SETUSER default off"), "{text}");
    assert_eq!(redis_command::<u64>(&redis, "DBSIZE").await, 0, "it left something behind");

    // Credentials that are refused prove nothing where none are needed.
    let wrong = User { redis: &redis, name: "app", password: "wrong" };
    let (code, checks) = wrong.tries(&[]).await;
    assert_eq!(code, 1, "{checks:?}");
    assert_eq!(about(&checks, "direct write").0, "ok");
    assert_eq!(about(&checks, "direct write without a login").0, "warning");
}

#[tokio::test]
async fn a_user_with_few_rights_is_looked_at_closely() {
    let redis = Redis::start().await;
    for user in [
        "keys on >x ~orders/* +@all",
        "unset on >x ~* +@all -set",
        "counts on >x ~orders/* +incrby",
        "reader on >x ~* +@read",
    ] {
        let _: () = redis_command(&redis, &format!("ACL SETUSER {user}")).await;
    }
    let _: () = redis_command(&redis, "SET orders/1 paid").await;
    let user = |name| User { redis: &redis, name, password: "x" };

    let (_, checks) = user("keys").tries(&[]).await;
    assert_eq!(about(&checks, "direct write").0, "warning");
    assert!(about(&checks, "direct write").1.contains("--direct-key"), "{checks:?}");
    let (_, checks) = user("keys").tries(&["--direct-key", "orders/1"]).await;
    assert!(about(&checks, "direct write").1.contains("can bypass"), "{checks:?}");
    let (_, checks) = user("unset").tries(&["--direct-key", "orders/1"]).await;
    let (verdict, text) = about(&checks, "direct write");
    assert_eq!(verdict, "warning");
    assert!(text.contains("INCRBY") && text.contains("EXPIRE"), "{text}");
    let (_, checks) = user("counts").tries(&[]).await;
    assert_eq!(about(&checks, "direct write").0, "warning");
    assert!(about(&checks, "direct write").1.contains("--direct-key"), "{checks:?}");
    let (_, checks) = user("reader").tries(&[]).await;
    assert_eq!(about(&checks, "direct write").0, "ok", "{checks:?}");

    // The object that is there is as it was, for as long as it was.
    assert_eq!(redis_command::<String>(&redis, "GET orders/1").await, "paid");
    assert_eq!(redis_command::<i64>(&redis, "PTTL orders/1").await, -1);
    assert_eq!(redis_command::<u64>(&redis, "DBSIZE").await, 1);
}

#[tokio::test]
async fn an_application_that_is_shut_out_is_well() {
    let redis = Redis::start().await;
    let _: () = redis_command(&redis, "CONFIG SET requirepass guards-own").await;
    let checks = well(&["--direct", &redis.url(), "--strict"]).await;
    assert!(about(&checks, "direct write").1.contains("NOAUTH"), "{checks:?}");
    let wrong = User { redis: &redis, name: "default", password: "wrong" };
    let checks = well(&["--direct", &wrong.url(), "--strict"]).await;
    for what in ["direct write", "direct write without a login"] {
        assert_eq!(about(&checks, what).0, "ok", "{checks:?}");
    }
    assert!(!format!("{checks:?}").contains("wrong"), "a password is shown: {checks:?}");
    assert_eq!(run(&["--direct", "mysql://x"]).await.code, 64);
    assert_eq!(run(&["--direct-key", "a"]).await.code, 64, "of what?");
}

#[tokio::test]
async fn rights_that_the_port_needs_are_named() {
    let redis = Redis::start().await;
    let _: () = redis_command(&redis, "ACL SETUSER poor on >x ~* &* +@all -acl -client|kill").await;
    let users: Vec<String> = redis_command(&redis, "ACL USERS").await;
    let poor = User { redis: &redis, name: "poor", password: "x" };
    let (code, checks) = doctor(&["--redis", &poor.url(), "--strict"]).await;
    assert_eq!(code, 1, "{checks:?}");
    let (verdict, text) = about(&checks, "redis rights");
    assert_eq!(verdict, "warning");
    for right in ["CLIENT KILL", "ACL SETUSER", "+client|kill"] {
        assert!(text.contains(right), "{right}: {text}");
    }
    assert!(!text.contains("CLIENT LIST"), "{text}");
    let checks = well(&["--redis", &redis.url(), "--strict"]).await;
    assert_eq!(about(&checks, "redis rights").0, "ok");
    assert_eq!(about(&checks, "redis version").0, "ok");
    assert_eq!(
        redis_command::<Vec<String>>(&redis, "ACL USERS").await,
        users,
        "asking made a user"
    );
}

#[tokio::test]
async fn a_node_of_a_cluster_is_a_warning() {
    let bus = fence_tests::ports::unused().to_string();
    let redis = Redis::with(&[("cluster-enabled", "yes"), ("cluster-port", &bus)]).await;
    let (code, checks) = doctor(&["--redis", &redis.url(), "--strict"]).await;
    assert_eq!(code, 1, "{checks:?}");
    assert_eq!(about(&checks, "redis cluster").0, "warning");
}
