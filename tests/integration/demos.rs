//! The demos' stories as tests: judged here from the facts that they report, not from their own
//! verdict alone. The unguarded telling must lose something, or the guarded one shows nothing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use fence_tests::browser::Browser;
use fence_tests::postgres_server::Postgres;
use fence_tests::process::{Output, Process, command};
use fence_tests::redis_server::Redis;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::console::keep;

/// Runs a demo, which must end 0. Returns the facts of the unguarded and of the guarded story.
async fn facts(args: &[&str]) -> (Value, Value) {
    let output = demo(&[args, &["--json"]].concat()).await;
    assert_eq!(output.code, 0, "{output:?}");
    let record: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((record["demo"].as_str(), &record["ok"]), (Some(args[0]), &Value::Bool(true)));
    let story = |place: usize, name: &str| {
        let story = &record["stories"][place];
        assert_eq!((story["name"].as_str(), &story["ok"]), (Some(name), &Value::Bool(true)));
        assert!(story["events"].as_array().is_some_and(|events| events.len() > 3), "{story}");
        story["facts"].clone()
    };
    (story(0, "unguarded"), story(1, "guarded"))
}

async fn demo(args: &[&str]) -> Output {
    demo_with(args, &[]).await
}

async fn demo_with(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.arg("demo").args(args).envs(variables.iter().copied());
    // Beside the folders of other tests, in memory if that has room: a hundred workers who wait for
    // a disk that is busy may wait for longer than the demo gives them.
    let folder = fence_tests::folder::new();
    command.envs(folder.path().parent().map(|memory| ("TMPDIR", memory)));
    Process::spawn("fence demo", command).ended_within(Duration::from_secs(180)).await
}

fn number(facts: &Value, name: &str) -> u64 {
    facts[name].as_u64().unwrap_or_else(|| panic!("{name} is no number in {facts}"))
}

fn has_update(facts: &Value, name: &str) -> bool {
    facts["final_log"].as_array().is_some_and(|log| log.contains(&facts[name]))
}

/// Both writes were acknowledged, and the newer one is gone.
fn newer_is_lost(facts: &Value) {
    assert_eq!((number(facts, "new_status"), number(facts, "late_status")), (204, 204), "{facts}");
    assert!(!has_update(facts, "new_update") && has_update(facts, "old_update"), "{facts}");
}

/// The same over a protocol without statuses.
fn newer_is_lost_without_a_status(facts: &Value) {
    assert_eq!((&facts["new_taken"], &facts["late_taken"]), (&true.into(), &true.into()));
    assert_eq!(facts["late_code"], Value::Null, "{facts}");
    assert!(!has_update(facts, "new_update") && has_update(facts, "old_update"), "{facts}");
}

/// The late write was refused by the higher mark, and the newer one is there.
fn late_is_fenced(facts: &Value) {
    assert_eq!((&facts["new_taken"], &facts["late_taken"]), (&true.into(), &false.into()));
    assert_eq!(facts["late_code"], "FENCED", "{facts}");
    assert!(number(facts, "new_token") > number(facts, "old_token"), "{facts}");
    assert_eq!(number(facts, "late_mark"), number(facts, "new_token"), "{facts}");
    assert!(has_update(facts, "new_update") && !has_update(facts, "old_update"), "{facts}");
}

/// The late write was refused by the higher mark, and the newer one is there.
fn late_is_refused(facts: &Value) {
    assert_eq!((number(facts, "new_status"), number(facts, "late_status")), (204, 412), "{facts}");
    assert_eq!(facts["late_code"], "stale-token");
    assert!(number(facts, "new_token") > number(facts, "old_token"), "{facts}");
    assert_eq!(number(facts, "late_mark"), number(facts, "new_token"), "{facts}");
    assert!(has_update(facts, "new_update") && !has_update(facts, "old_update"), "{facts}");
}

#[tokio::test]
async fn gc_stall() {
    let (unguarded, guarded) = facts(&["gc-stall"]).await;
    newer_is_lost(&unguarded);
    late_is_refused(&guarded);
}

/// On a phone no card scrolls sideways but the timeline, which says that it does.
#[tokio::test]
async fn the_picture_fits_a_phone() {
    let folder = fence_tests::folder::new();
    let file = folder.path().join("report.html");
    let output = demo(&["gc-stall", "--out", file.to_str().unwrap()]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let browser = Browser::start().await;
    browser.show_as(390, 844, "light").await;
    browser.open(&format!("file://{}", file.display())).await;
    browser.until("document.querySelectorAll('section table').length === 2").await;
    keep(&browser, "demo-phone.png").await;
    let fits =
        "[...document.querySelectorAll('section')].every(s => s.scrollWidth <= s.clientWidth)";
    browser.until(fits).await;
    browser.until("document.documentElement.scrollWidth <= innerWidth").await;
    let hint = "getComputedStyle(document.querySelector('.wide')).display";
    browser.until(&format!("{hint} === 'block'")).await;
    browser.show_as(1200, 844, "light").await;
    browser.until(&format!("{hint} === 'none'")).await;
}

#[tokio::test]
async fn gc_stall_on_redis_leaves_nothing_there() {
    let redis = Redis::start().await;
    let (unguarded, guarded) = facts(&["gc-stall", "--store", &redis.url()]).await;
    newer_is_lost_without_a_status(&unguarded);
    late_is_fenced(&guarded);
    assert_eq!(redis.run::<u64>(&["DBSIZE"]).await, 0, "the demo left keys behind");
    let users = redis.run::<Vec<String>>(&["ACL", "USERS"]).await;
    assert_eq!(users, ["default"], "the demo left users behind");
}

/// The guard's own store has no part in it: the workers' documents are the datastore's.
#[tokio::test]
async fn gc_stall_on_a_plain_http_datastore() {
    let (unguarded, guarded) = facts(&["gc-stall", "--store", "http"]).await;
    newer_is_lost(&unguarded);
    late_is_refused(&guarded);
}

/// Documents are where the URL says, also through the port; what is there already stays.
#[tokio::test]
async fn gc_stall_keeps_to_its_database() {
    let redis = Redis::start().await;
    redis.run::<String>(&["SET", "mine", "1"]).await;
    let url = format!("{}/3", redis.url());
    let (unguarded, guarded) = facts(&["gc-stall", "--store", &url]).await;
    newer_is_lost_without_a_status(&unguarded);
    late_is_fenced(&guarded);
    let keyspace = redis.run::<String>(&["INFO", "keyspace"]).await;
    assert!(keyspace.contains("db0:keys=1,"), "{keyspace}");
    assert!(!keyspace.contains("db3"), "the demo left keys behind: {keyspace}");
}

/// With no address it starts a Redis, two workers with a Redis driver, and shows the refusal.
#[tokio::test]
async fn gc_stall_on_a_redis_of_its_own() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("picture.html");
    let args = ["gc-stall", "--store", "redis", "--out", fence_tests::key_file::text(&file)];
    let output = demo(&args).await;
    assert_eq!(output.code, 0, "{output:?}");
    let printed = format!("{}{}", output.stdout, output.stderr);
    for shown in ["-FENCED token ", "is below mark", "SIGSTOP", "lost", "redis://fence:"] {
        assert!(printed.contains(shown), "{shown} is missing in\n{printed}");
    }
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("<svg") && page.contains("-FENCED"), "the refusal is not drawn");
}

/// The late COMMIT fails, because its session was ended; both stories leave nothing behind.
#[tokio::test]
async fn gc_stall_on_postgres_leaves_nothing_there() {
    let postgres = Postgres::start().await;
    let (unguarded, guarded) = facts(&["gc-stall", "--store", &postgres.url()]).await;
    newer_is_lost_without_a_status(&unguarded);
    assert_eq!((&guarded["new_taken"], &guarded["late_taken"]), (&true.into(), &false.into()));
    assert_eq!(guarded["late_code"], "FE412", "{guarded}");
    assert_eq!(number(&guarded, "late_mark"), number(&guarded, "new_token"), "{guarded}");
    assert!(has_update(&guarded, "new_update") && !has_update(&guarded, "old_update"));
    let left = "SELECT (SELECT count(*) FROM pg_database WHERE datname LIKE 'fence%') \
                + (SELECT count(*) FROM pg_roles WHERE rolname LIKE 'fence%')";
    assert_eq!(postgres.sql(left).await, "0", "the demo left a database or a role behind");
}

/// With no address it starts a PostgreSQL, and draws the refusal.
#[tokio::test]
async fn gc_stall_on_a_postgres_of_its_own() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("picture.html");
    let args = ["gc-stall", "--store", "postgres", "--out", fence_tests::key_file::text(&file)];
    let output = demo(&args).await;
    assert_eq!(output.code, 0, "{output:?}");
    let printed = format!("{}{}", output.stdout, output.stderr);
    for shown in ["ERROR FE412", "open transaction", "SIGSTOP", "lost", "postgres://fence:"] {
        assert!(printed.contains(shown), "{shown} is missing in\n{printed}");
    }
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("<svg") && page.contains("FE412"), "the refusal is not drawn");
}

#[tokio::test]
async fn a_postgres_that_the_demo_may_not_use_is_left_as_it_was() {
    let postgres = Postgres::start().await;
    postgres.sql("CREATE ROLE poor LOGIN").await;
    let url = format!("postgres://poor@{}/postgres", postgres.address());
    let output = demo(&["gc-stall", "--store", &url]).await;
    assert_eq!(output.code, 69, "{output:?}");
    assert!(output.stderr.contains("name a superuser"), "{output:?}");
    let output = demo(&["stampede", "--store", "postgres"]).await;
    assert_eq!(output.code, 64, "{output:?}");
    assert!(output.stderr.contains("for gc-stall alone"), "{output:?}");
}

/// `fence serve` before a Redis: what a newcomer pastes does what it says, typed as it is printed.
#[tokio::test]
async fn the_tour_of_the_redis_port_is_true() {
    let redis = Redis::start().await;
    let mut serve = command(fence_tests::binaries::path("fence"));
    serve.args(["serve", "--redis", &redis.url(), "--redis-listen", "127.0.0.1:0"]);
    serve.args(["--listen", "127.0.0.1:0", "--guard-listen", "127.0.0.1:0"]);
    let mut serve = Process::spawn("fence serve", serve);
    serve.line_after("fenced-store redis port listening on redis://").await;
    serve.line_after("Ctrl-C ends it").await;
    let printed = serve.stdout();
    let tour: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let mut bash = command("bash");
    bash.args(["-c", &tour.join("\n")]);
    let output = Process::spawn("bash", bash).ended().await;
    assert!(output.stderr.contains("AUTH failed: FENCED token "), "{output:?}");
    let lines: Vec<&str> = output.stdout.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!((lines.len(), lines[0], lines[1]), (4, "OK", "OK"), "{output:?}");
    assert!(lines[2].starts_with("NOTOKEN "), "{output:?}");
    assert_eq!(lines[3], "new", "{output:?}");
}

#[tokio::test]
async fn without_redis_server_it_says_how_to_get_one() {
    let empty = TempDir::new().unwrap();
    let path = [("PATH", fence_tests::key_file::text(empty.path()))];
    for args in [&["gc-stall", "--store", "redis"][..], &["redis-amnesia"]] {
        let output = demo_with(args, &path).await;
        assert_eq!(output.code, 69, "{output:?}");
        assert!(output.stderr.contains("apt install redis-server"), "{output:?}");
        assert!(output.stderr.contains("--store redis://"), "{output:?}");
    }
}

/// Demos write to the Redis at their port, and empty it: it must be the one that they started.
#[tokio::test]
async fn a_redis_that_the_demo_did_not_start_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let fake = folder.path().join("redis-server");
    // Another process listens at the port: a child of the program that the demo has started. It
    // writes its id down before it does so.
    let pid = folder.path().join("pid");
    let programs = "PATH=/usr/bin:/usr/local/bin";
    let child = format!("echo $$ > {}; {programs}; exec redis-server", pid.display());
    let script = format!("#!/bin/sh\n/bin/sh -c '{child} \"$@\"' sh \"$@\" &\nwait\n");
    std::fs::write(&fake, script).unwrap();
    std::fs::set_permissions(&fake, Permissions::from_mode(0o755)).unwrap();
    let path = [("PATH", fence_tests::key_file::text(folder.path()))];
    let output = demo_with(&["redis-amnesia"], &path).await;
    let pid: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    let other = Pid::from_raw(pid).unwrap();
    // It was not even shut down, let alone emptied.
    kill_process(other, Signal::KILL).unwrap();
    assert_eq!(output.code, 69, "{output:?}");
    assert!(output.stderr.contains("another Redis listens on port"), "{output:?}");
}

#[tokio::test]
async fn lease_overlap() {
    let (unguarded, guarded) = facts(&["lease-overlap"]).await;
    newer_is_lost(&unguarded);
    late_is_refused(&guarded);
}

/// Nothing is refused here: the lane puts both writes into the order of their tokens.
#[tokio::test]
async fn delayed_write() {
    let (unguarded, guarded) = facts(&["delayed-write"]).await;
    newer_is_lost(&unguarded);
    assert!(number(&guarded, "new_token") > number(&guarded, "old_token"), "{guarded}");
    let log = guarded["final_log"].as_array().unwrap();
    let end = [guarded["old_update"].clone(), guarded["new_update"].clone()];
    assert_eq!(log[log.len() - 2..], end, "{guarded}");
}

#[tokio::test]
async fn redis_amnesia() {
    let (unguarded, guarded) = facts(&["redis-amnesia"]).await;
    let highest = |facts: &Value| {
        let before = facts["tokens_before"].as_array().unwrap();
        before.iter().filter_map(Value::as_u64).max().unwrap()
    };
    assert!(number(&unguarded, "token_after") <= highest(&unguarded), "{unguarded}");
    assert_eq!(number(&unguarded, "new_status"), 412, "the rightful holder is locked out");
    assert!(number(&guarded, "token_after") > highest(&guarded), "{guarded}");
    assert_eq!((number(&guarded, "new_status"), number(&guarded, "old_status")), (204, 412));
}

#[tokio::test]
async fn stampede() {
    let (unguarded, guarded) = facts(&["stampede"]).await;
    let lost = |facts: &Value| {
        let counted = number(facts, "started_at") - number(facts, "ended_at");
        assert_eq!(number(facts, "acknowledged"), number(facts, "workers"), "{facts}");
        number(facts, "acknowledged") - counted
    };
    assert!(lost(&unguarded) > 0, "{unguarded}");
    assert_eq!(lost(&guarded), 0, "{guarded}");
    assert_eq!(number(&guarded, "served_in_order"), number(&guarded, "workers"), "{guarded}");
}

/// Without `--json` it narrates, shows the refused write, and draws a picture that needs nothing
/// from elsewhere.
#[tokio::test]
async fn what_a_newcomer_sees() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("picture.html");
    let output = demo(&["gc-stall", "--out", fence_tests::key_file::text(&file)]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let printed = format!("{}{}", output.stdout, output.stderr);
    for shown in ["412 stale-token", "SIGSTOP", "lost", "refused"] {
        assert!(printed.contains(shown), "{shown} is missing in\n{printed}");
    }
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("<svg") && page.contains("stale-token"), "the refusal is not drawn");
    let page = page.replace("http://www.w3.org/", "").replace("http://127.0.0.1", "");
    for outside in ["http://", "https://", "<script", "<link", "@import", "src="] {
        assert!(!page.contains(outside), "the page needs {outside}");
    }
}

#[tokio::test]
async fn list_and_wrong_usage() {
    let output = demo(&["list"]).await;
    assert_eq!(output.code, 0);
    for name in ["gc-stall", "lease-overlap", "delayed-write", "redis-amnesia", "stampede"] {
        assert!(output.stdout.contains(name), "{}", output.stdout);
    }
    assert_eq!(demo(&["no-such-demo"]).await.code, 64);
    assert_eq!(demo(&["gc-stall", "--store", "mysql://x"]).await.code, 64);
    assert_eq!(demo(&["stampede", "--store", "http"]).await.code, 64);
    let absent = format!("redis://127.0.0.1:{}", fence_tests::ports::unused());
    assert_eq!(demo(&["gc-stall", "--store", &absent]).await.code, 69);
}
