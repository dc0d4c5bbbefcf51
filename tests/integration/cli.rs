//! The `fence` command over real servers: what it prints is true, and its exit codes are honest.

mod bench;
mod config;
mod errors;
mod kinds;
mod serve;
mod sessions;
mod waits;

use fence_protocol::Code;
use fence_protocol::wire::lock::LockState;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::{KeyFile, lease_id, unsigned};
use fence_tests::process::{Output, Process, command};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::until_true;
use serde_json::{Value, json};

/// Both servers, and the command that knows where they are.
struct Site {
    locks: Server,
    guard: Server,
}

impl Site {
    async fn new() -> Self {
        let locks = Setup::lock_server("memory:").start().await;
        Self { locks, guard: Setup::fenced_store("memory:").start().await }
    }

    async fn fence(&self, args: &[&str]) -> Output {
        fence(&self.locks.base, &self.guard.base, args).ended().await
    }
}

fn fence(locks: &str, guard: &str, args: &[&str]) -> Process {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(args).env("FENCE_SERVER", locks).env("FENCE_STORE", guard);
    Process::spawn("fence", command)
}

/// `fence serve` on ports of the system's choice, and the tour that it prints.
pub(crate) async fn serve() -> (Process, String, String) {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--guard-listen", "127.0.0.1:0"]);
    let mut process = Process::spawn("fence serve", command);
    let locks = process.line_after("lock-server listening on ").await;
    let guard = process.line_after("fenced-store listening on ").await;
    process.line_after("Ctrl-C ends it").await;
    (process, locks, guard)
}

/// Commands that a newcomer pastes do what they say, typed exactly as they are printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tour_that_serve_prints_is_true() {
    let (server, _, _) = serve().await;
    let printed = server.stdout();
    let tour: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let mut bash = command("bash");
    bash.args(["-euo", "pipefail", "-c", &tour.join("\n")]);
    let output = Process::spawn("bash", bash).ended().await;
    let text = format!("{}\n{}", output.stdout, output.stderr);
    assert_eq!(output.code, 0, "{text}");
    let mut rest = text.as_str();
    for shown in
        ["201 Created", "412 ", "stale-token", "new", "423 ", "lock-held", "428 ", "token-required"]
    {
        let at = rest.find(shown).unwrap_or_else(|| panic!("{shown} is missing in\n{text}"));
        rest = &rest[at..];
    }
}

/// `fence serve` signs, and every answer that the documents promise comes over plain HTTP.
#[tokio::test]
async fn serve_answers_plain_http_as_promised() {
    let (_process, locks, guard) = serve().await;
    let (locks, guard) =
        (fence_tests::api::Locks::new(&locks), fence_tests::api::Guard::new(&guard));
    let old = locks.grant("orders/42", 60_000).await;
    locks.acquire("orders/42", json!({})).await.problem(Code::LockHeld);
    guard.put("orders/42", &old.fencing_token, "old").await.expect(201);
    guard.with(http::Method::PUT, "orders/42", &[], "x").await.problem(Code::TokenRequired);
    locks.release("orders/42", old.lease_id).await.expect(200);
    locks.renew("orders/42", old.lease_id).await.problem(Code::LeaseLost);
    let new = locks.grant("orders/42", 60_000).await;
    guard.put("orders/42", &new.fencing_token, "new").await.expect(204);
    guard.put("orders/42", &old.fencing_token, "late").await.problem(Code::StaleToken);
    let forged = unsigned(new.token.get() + 1, "orders/42", lease_id());
    guard.put("orders/42", &forged, "forged").await.problem(Code::BadSignature);
    let stolen = KeyFile::new("k1", 1).sign(new.token.get() + 1, "orders/42", lease_id());
    guard.put("orders/42", &stolen, "forged").await.problem(Code::BadSignature);
    let found = guard.fenced_get("orders/42", &new.fencing_token).await.expect(200);
    assert_eq!(found.body.as_ref(), b"new");
}

#[tokio::test]
async fn exit_codes_name_the_next_action() {
    let site = Site::new().await;
    let held = site.fence(&["lock", "acquire", "a", "--ttl", "1m", "--output", "json"]).await;
    assert_eq!(held.code, 0, "{held:?}");
    let grant: Value = serde_json::from_str(&held.stdout).unwrap();
    let (lease, header) =
        (grant["lease_id"].as_str().unwrap(), grant["fencing_token"].as_str().unwrap());
    let newer = unsigned(grant["token"].as_u64().unwrap() + 1, "a", lease_id());
    let other = lease_id().to_string();
    let put = |header: &str, more: &[&str]| {
        let args = [&["object", "put", "a", "--token-header", header][..], more].concat();
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    // Of a lock that is not held, and at a server that has no locks.
    let revoke = |flag: &str, server: &str| {
        let args = ["lock", "revoke", "a", "--reason", "x", flag, server];
        args.map(str::to_owned).to_vec()
    };
    for (args, code) in [
        (vec!["lock".into(), "acquire".into(), "a".into()], 75),
        (vec!["lock".into(), "renew".into(), "a".into(), lease.into()], 0),
        (vec!["lock".into(), "renew".into(), "a".into(), other], 76),
        (put(header, &[]), 0),
        (put(header, &["--if-absent"]), 77),
        (put(&newer, &[]), 0),
        (put(header, &[]), 77),
        (
            vec![
                "object".into(),
                "get".into(),
                "none".into(),
                "--token-header".into(),
                unsigned(1, "none", lease_id()),
            ],
            1,
        ),
        (vec!["lock".into(), "release".into(), "a".into(), lease.into()], 0),
        (vec!["lock".into(), "release".into(), "a".into(), lease.into()], 76),
        (revoke("--server", &site.locks.base), 1),
        (revoke("--server", &site.guard.base), 64),
        (vec!["lock".into(), "acquire".into(), "a//b".into()], 64),
        (vec!["lock".into(), "acquire".into(), "a".into(), "--ttl".into(), "0s".into()], 64),
        (vec!["lock".into(), "renew".into(), "a".into(), "nope".into()], 64),
        (
            vec!["object".into(), "put".into(), "a".into(), "--token-header".into(), "nope".into()],
            64,
        ),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = site.fence(&args).await;
        assert_eq!(output.code, code, "{args:?}: {output:?}");
        assert_eq!(output.stderr.is_empty(), code == 0, "{args:?}: {output:?}");
    }
}

/// The prefix of a list may be written as that of a watch.
#[tokio::test]
async fn a_list_has_a_prefix() {
    let site = Site::new().await;
    for lock in ["jobs/a", "other"] {
        site.locks.locks().grant(lock, 60_000).await;
    }
    for args in [&["jobs/"][..], &["--prefix", "jobs/"]] {
        let line = [&["lock", "list", "--output", "json"], args].concat();
        let page: Value = serde_json::from_str(&site.fence(&line).await.stdout).unwrap();
        let locks: Vec<_> = page["locks"].as_array().unwrap().iter().collect();
        assert_eq!((locks.len(), &locks[0]["lock"]), (1, &json!("jobs/a")), "{args:?}: {page}");
    }
    let both = site.fence(&["lock", "list", "jobs/", "--prefix", "other"]).await;
    assert!(both.code == 64 && both.stderr.contains("--prefix"), "{both:?}");
}

#[tokio::test]
async fn no_server_is_69() {
    let absent = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    let header = unsigned(1, "a", lease_id());
    for args in [
        &["lock", "acquire", "a"][..],
        &["lock", "show", "a"],
        &["object", "get", "a", "--token-header", &header],
        &["doctor"],
    ] {
        let output = fence(&absent, &absent, args).ended().await;
        assert_eq!(output.code, 69, "{args:?}: {output:?}");
    }
}

/// An object that is not there has a default; one that cannot be read has none.
#[tokio::test]
async fn a_default_is_for_an_absent_object_alone() {
    let site = Site::new().await;
    let absent = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    let header = unsigned(1, "a", lease_id());
    let elsewhere = format!("{}/elsewhere", site.guard.base);
    let of_fences = format!("{}/v1/fences", site.guard.base);
    let get = ["object", "get", "a", "--default", "0", "--token-header", &header];
    for (is_there, guard, printed) in [
        (false, &site.guard.base, (0, "0")),
        (false, &absent, (69, "")),
        // Both are 404, and no guard's.
        (false, &site.locks.base, (64, "")),
        (false, &elsewhere, (64, "")),
        // This is 200, and no object.
        (false, &of_fences, (64, "")),
        (true, &site.guard.base, (0, "3")),
        (true, &absent, (69, "")),
    ] {
        if is_there {
            site.guard.guard().put("a", &header, "3").await;
        }
        let output = fence(&site.locks.base, guard, &get).ended().await;
        assert_eq!((output.code, output.stdout.as_str()), printed, "{output:?}");
    }
}

/// The reply to an acquire is lost on the way: the command asks again with the same lease id, and
/// one token was spent, not two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_costs_no_second_grant() {
    let site = Site::new().await;
    let first = site.locks.locks().grant("first", 60_000).await.token.get();
    let proxy = FaultProxy::before(&site.locks.address()).await;
    proxy.set(Fault::DropReplies);
    let through = format!("http://{}", proxy.address());
    let args = ["lock", "acquire", "a", "--ttl", "1m", "--wait", "1m", "--output", "json"];
    let mut process = fence(&through, &site.guard.base, &args);
    until_true("a swallowed reply", || async { proxy.dropped() > 0 }).await;
    proxy.set(Fault::None);
    proxy.cut();
    let output = process.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    let grant: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(grant["token"].as_u64(), Some(first + 1));
    assert_eq!(site.locks.locks().grant("next", 1_000).await.token.get(), first + 2);
}

/// The reply to a write is lost: the command reports an unknown outcome, and does not write twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_an_answer_is_74() {
    let site = Site::new().await;
    let proxy = FaultProxy::before(&site.guard.address()).await;
    proxy.set(Fault::DropReplies);
    let through = format!("http://{}", proxy.address());
    let header = unsigned(5, "a", lease_id());
    let args = ["object", "put", "a", "--token-header", &header];
    let mut process = fence(&site.locks.base, &through, &args);
    until_true("a swallowed reply", || async { proxy.dropped() > 0 }).await;
    proxy.set(Fault::Refuse);
    let output = process.ended().await;
    assert_eq!(output.code, 74, "{output:?}");
    assert_eq!(site.guard.guard().fence("a").await.mark.map(|t| t.get()), Some(5));
}

#[tokio::test]
async fn doctor_judges_redis() {
    let site = Site::new().await;
    let durable = Redis::start().await;
    let judge = async |url: &str, more: &[&str]| {
        let args = [&["doctor", "--redis", url, "--output", "json"][..], more].concat();
        site.fence(&args).await
    };
    let output = judge(&durable.url(), &[]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let forgetful = Redis::with(&[("appendonly", "no"), ("maxmemory-policy", "allkeys-lru")]).await;
    let output = judge(&forgetful.url(), &[]).await;
    assert_eq!(output.code, 0, "{output:?}");
    for shown in ["appendonly", "maxmemory-policy"] {
        assert!(output.stdout.contains(shown), "{shown}: {}", output.stdout);
    }
    assert_eq!(judge(&forgetful.url(), &["--strict"]).await.code, 1);
    let absent = format!("redis://127.0.0.1:{}", fence_tests::ports::unused());
    assert_eq!(judge(&absent, &[]).await.code, 69);
    assert_eq!(judge("mysql://x", &[]).await.code, 64);
}

/// Ended by a signal while the reply of its grant is lost: the lease is released, and does not
/// block the lock for its whole time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_acquire_leaves_no_lease() {
    let site = Site::new().await;
    let proxy = FaultProxy::before(&site.locks.address()).await;
    proxy.set(Fault::DropReplies);
    let url = format!("http://{}", proxy.address());
    let args = ["lock", "acquire", "a", "--ttl", "1h", "--wait", "1m"];
    let mut process = fence(&url, &site.guard.base, &args);
    let locks = site.locks.locks();
    until_true("the grant", || async { locks.show("a").await.state == LockState::Held }).await;
    process.terminate();
    assert_eq!(process.ended().await.code, 143);
    until_true("the release", || async { locks.show("a").await.state == LockState::Free }).await;
}
