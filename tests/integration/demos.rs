//! The demos' stories as tests: each ends as it should, and its facts say so.

use fence_tests::process::{Output, Process, command};
use fence_tests::redis_server::Redis;
use serde_json::Value;

async fn demo(args: &[&str]) -> Output {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.arg("demo").args(args);
    Process::spawn("fence demo", command).ended().await
}

/// The document of `--json`, of a demo that ended as it should.
async fn told(args: &[&str]) -> Value {
    let output = demo(&[args, &["--json"]].concat()).await;
    assert_eq!(output.code, 0, "{}\n{}", output.stdout, output.stderr);
    let document: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(document["ok"], true);
    document
}

fn facts<'a>(document: &'a Value, story: &str) -> &'a Value {
    let stories = document["stories"].as_array().unwrap();
    let story = stories.iter().find(|told| told["name"] == story).expect("the story is told");
    assert_eq!(story["ok"], true);
    &story["facts"]
}

/// Unguarded the newer update is lost; guarded the late write is refused by its number.
fn late_write_is_refused(document: &Value) {
    let unguarded = facts(document, "unguarded");
    assert_eq!(unguarded["late_status"], 204);
    let log = unguarded["final_log"].as_array().unwrap();
    assert!(!log.contains(&unguarded["new_update"]), "the unguarded story must lose an update");

    let guarded = facts(document, "guarded");
    assert_eq!(guarded["late_status"], 412);
    assert_eq!(guarded["late_code"], "stale-token");
    assert_eq!(guarded["late_mark"], guarded["new_token"]);
    assert!(guarded["old_token"].as_u64() < guarded["new_token"].as_u64());
    assert!(guarded["final_log"].as_array().unwrap().contains(&guarded["new_update"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gc_stall() {
    late_write_is_refused(&told(&["gc-stall"]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gc_stall_on_redis_leaves_nothing_there() {
    let redis = Redis::start().await;
    late_write_is_refused(&told(&["gc-stall", "--store", &redis.url()]).await);
    let keys: u64 = redis.run(&["DBSIZE"]).await;
    assert_eq!(keys, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_overlap() {
    late_write_is_refused(&told(&["lease-overlap"]).await);
}

/// Through the opaque proxy nothing is refused: the newer token waits for the older one's answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_write() {
    let document = told(&["delayed-write"]).await;
    let lost = facts(&document, "unguarded");
    assert!(!lost["final_log"].as_array().unwrap().contains(&lost["new_update"]));
    let kept = facts(&document, "guarded");
    let log = kept["final_log"].as_array().unwrap();
    assert_eq!(log.last(), Some(&kept["new_update"]), "the last word is the newer token's");
    assert!(log.contains(&kept["old_update"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_amnesia() {
    let document = told(&["redis-amnesia"]).await;
    let before = |facts: &Value| {
        facts["tokens_before"].as_array().unwrap().iter().filter_map(Value::as_u64).max().unwrap()
    };
    let naive = facts(&document, "unguarded");
    assert!(naive["token_after"].as_u64().unwrap() <= before(naive), "the naive counter repeats");
    let guarded = facts(&document, "guarded");
    assert!(guarded["token_after"].as_u64().unwrap() > before(guarded), "tokens still rise");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stampede() {
    let document = told(&["stampede"]).await;
    let lost = facts(&document, "unguarded");
    assert_ne!(lost["ended_at"], 0, "without a lock something must be lost");
    let guarded = facts(&document, "guarded");
    assert_eq!(guarded["ended_at"], 0);
    assert_eq!(guarded["served_in_order"], guarded["workers"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_picture_is_one_self_contained_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    let output = demo(&["gc-stall", "--out", file.to_str().unwrap()]).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(output.stdout.contains("412 stale-token"), "{}", output.stdout);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("<svg") && page.contains("stale-token"), "the refusal is drawn");
    for outside in ["http://", "https://", "<script", "<link", "@import", "src="] {
        let uses = page.replace("http://www.w3.org/", "").replace("http://127.0.0.1", "");
        assert!(!uses.contains(outside), "{outside}");
    }
}

#[tokio::test]
async fn wrong_usage_is_64() {
    let output = demo(&["no-such-demo"]).await;
    assert_eq!(output.code, 64, "{}", output.stderr);
    let output = demo(&["gc-stall", "--store", "mysql://x"]).await;
    assert_eq!(output.code, 64, "{}", output.stderr);
}
