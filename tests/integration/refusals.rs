//! Refusals of guards are shown where people ask about a lock: by real guards to real lock servers,
//! and never at the expense of an answer.

use access_control::secret::SecretHash;
use fence_protocol::Code;
use fence_protocol::wire::event::{EventKind, ExplainedLock};
use fence_protocol::wire::fence::FenceReply;
use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Api, Endpoint, Guard, Locks, encode};
use fence_tests::event_stream::EventStream;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::{lease_id, text, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::resp_client::RespClient;
use fence_tests::servers::Setup;
use fence_tests::wait::{until, until_true};
use http::Method;
use serde_json::json;
use tempfile::TempDir;

use crate::redis_port::bare_setup;

async fn explained(locks: &Locks, lock: &str) -> ExplainedLock {
    locks.0.get(&format!("/v1/locks/{}", encode(lock))).await.expect(200).read()
}

/// The refusals of a lock once there are so many; newest first.
async fn refusals(
    locks: &Locks,
    lock: &str,
    count: usize,
) -> Vec<fence_protocol::wire::event::Event> {
    until(&format!("{count} refusals of {lock}"), || async {
        let recent = explained(locks, lock).await.recent;
        (recent.refusals.len() >= count).then_some(recent.refusals)
    })
    .await
}

/// A guard before memory that reports to these.
fn reporting(bases: &[&str]) -> Setup {
    let setup = Setup::fenced_store("memory:");
    bases.iter().fold(setup, |setup, base| setup.arg("--report-to").arg(base))
}

/// The line of the check, and that the guard is ready whatever it says.
async fn readiness(guard: &impl Endpoint) -> String {
    let reply = guard.api().get("/readyz?verbose").await.expect(200);
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    text.lines().find(|line| line.contains("refusal-reports")).unwrap_or_default().to_owned()
}

async fn until_ready(guard: &impl Endpoint, what: &str) {
    until_true(what, || async { readiness(guard).await.contains(what) }).await;
}

/// The holder stalls past its lease, another writes, the first one's write is refused.
async fn overtaken(locks: &Locks, guard: &Guard, lock: &str) -> (LeaseReply, LeaseReply) {
    let acquire = async |owner: &str, ttl_ms: u64| {
        let ask = json!({"owner": owner, "ttl_ms": ttl_ms, "wait_ms": 20_000});
        locks.acquire(lock, ask).await.lease()
    };
    // So late may the reply to a brief grant come that its time has passed.
    let old = acquire("stalled", 60_000).await;
    let shorter = json!({"lease_id": old.lease_id, "ttl_ms": 200});
    let renewed = locks.try_post(lock, "renew", shorter).await.expect("an answer");
    assert!(matches!(renewed.status, 200 | 410), "{renewed:?}");
    let new = acquire("next", 60_000).await;
    guard.put(lock, &new.fencing_token, "new").await.expect(201);
    let headers = [("fencing-token", old.fencing_token.as_str()), ("fence-owner", "stalled")];
    guard.with(Method::PUT, lock, &headers, "late").await.problem(Code::StaleToken);
    (old, new)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_holders_write_is_shown_where_one_asks_about_the_lock() {
    let server = Setup::lock_server("memory:").start().await;
    let guard = reporting(&[&server.base]).in_process().await;
    let locks = server.locks();
    let mut stream = EventStream::open(&server.base, "?prefix=orders/", "").await;
    let (old, new) = overtaken(&locks, &guard.guard(), "orders/42").await;
    let refused = refusals(&locks, "orders/42", 1).await.remove(0);
    assert_eq!((refused.kind, refused.lease_id), (EventKind::Refused, Some(old.lease_id)));
    assert_eq!((refused.token, refused.mark), (Some(old.token), Some(new.token)));
    assert_eq!(refused.owner.unwrap().as_str(), "stalled");
    assert_eq!(refused.text.as_deref(), Some("PUT orders/42: stale-token"));
    let mut kinds = Vec::new();
    // The end of a lease that was not asked for may be reported behind its outcome.
    while !(kinds.contains(&EventKind::Refused) && kinds.contains(&EventKind::Expired)) {
        kinds.push(stream.next().await.kind);
    }
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::Granted).count(), 2, "{kinds:?}");
    let reported = || guard.metric("fencepost_fence_refusals_reported_total");
    until_true("the report to be counted", || async { reported().await == 1 }).await;
    until_ready(&guard, "[+]refusal-reports ok").await;
    // The asker's own, and nothing of others.
    let path = format!("/v1/locks/orders%2F42?lease_id={}", new.lease_id);
    let own: ExplainedLock = locks.0.get(&path).await.expect(200).read();
    assert!(own.recent.refusals.is_empty());
    assert!(own.recent.events.iter().all(|event| event.lease_id == Some(new.lease_id)), "{own:?}");
    assert!(own.recent.events.iter().any(|event| event.kind == EventKind::Granted), "{own:?}");
}

/// Three servers before one Redis, the guard's Redis port before another: each of them reports the
/// same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_show_the_report_of_the_redis_port_to_one() {
    let redis = Redis::start().await;
    let data = Redis::start().await;
    let setup = Setup::lock_server(&redis.url());
    let first = setup.start().await;
    let others = [setup.in_process().await, setup.in_process().await];
    let servers = [first.locks(), others[0].locks(), others[1].locks()];
    let port = ["--redis-listen", "127.0.0.1:0", "--report-to", &first.base];
    let mut guard = Setup::fenced_store(&data.url()).args(&port).start().await;
    let address = guard.redis_port().await;
    let mut streams = Vec::new();
    for server in &servers {
        streams.push(EventStream::open(&server.0, "?prefix=a", "").await);
    }
    let old = servers[1].grant("a", 60_000).await;
    let mut stalled = RespClient::fenced(&address, &old.fencing_credential).await;
    stalled.call(&["SET", "a", "1"]).await;
    servers[2].release("a", old.lease_id).await.expect(200);
    let new = servers[0].grant("a", 60_000).await;
    let mut next = RespClient::fenced(&address, &new.fencing_credential).await;
    next.call(&["SET", "a", "2"]).await;
    let late = stalled.call(&["SET", "a", "late"]).await;
    assert!(late.error().is_some_and(|error| error.starts_with("FENCED")), "{late:?}");
    let mut ids = Vec::new();
    for (server, stream) in servers.iter().zip(&mut streams) {
        let refused = loop {
            let event = stream.next().await;
            if event.kind == EventKind::Refused {
                break event;
            }
        };
        assert_eq!((refused.lease_id, refused.mark), (Some(old.lease_id), Some(new.token)));
        assert!(refused.text.unwrap().contains("Redis port"));
        ids.push(stream.last_id.clone());
        let events = refusals(server, "a", 1).await;
        assert_eq!((events.len(), events[0].token), (1, Some(old.token)));
    }
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
}

/// A script that touches what its tokens do not give it is reported at each of its locks, once a
/// script and connection, and as no loss of the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_script_is_shown_where_one_asks_about_the_lock() {
    let server = Setup::lock_server("memory:").start().await;
    let redis = Redis::start().await;
    let setup = crate::redis_port::setup(&redis.url()).args(&["--report-to", &server.base]);
    let guard = crate::redis_port::port(&setup).await;
    let locks = server.locks();
    let one = locks.grant("orders/1", 60_000).await;
    let two = locks.grant("orders/2", 60_000).await;
    let mut client = RespClient::fenced(&guard.address, &one.fencing_credential).await;
    client.call(&["FENCE", "SET", &two.fencing_credential]).await;
    let scripts = ["return redis.call('SET', 'orders:3:a', 1)", "return redis.call('KEYS', '*')"];
    for script in [scripts[0], scripts[0], scripts[1]] {
        let reply = client.call(&["EVAL", script, "0"]).await;
        let text = reply.expect_error("DENIED");
        assert!(text.contains("touched") == (script == scripts[0]), "{text}");
    }
    let mut texts = Vec::new();
    for (script, what) in [
        (scripts[1], "ran a command that scripts may not run: forbidden"),
        (scripts[0], "touched a key that this connection may not touch: forbidden"),
    ] {
        let sha: String = redis.run(&["SCRIPT", "LOAD", script]).await;
        texts.push(format!("script {sha} {what}"));
    }
    for (lock, lease) in [("orders/1", &one), ("orders/2", &two)] {
        let events = refusals(&locks, lock, 2).await;
        let found: Vec<&str> = events.iter().filter_map(|event| event.text.as_deref()).collect();
        assert_eq!(found, texts, "{lock}");
        let by = events.iter().all(|event| {
            event.lease_id == Some(lease.lease_id) && event.token == Some(lease.token)
        });
        assert!(by && events[0].mark == Some(lease.token), "{events:?}");
        let fence = Api::new(&guard.server.base).get(&format!("/v1/fences/{}", encode(lock))).await;
        let fence: FenceReply = fence.expect(200).read();
        assert_eq!(fence.last_refusals.len(), 2, "{fence:?}");
        assert_eq!(fence.last_refusals[0].code, "forbidden");
    }
    let lease = one.lease_id.to_string();
    for args in [&["--lease", lease.as_str()][..], &[]] {
        let explain = ["lock", "explain", "orders/1"];
        let text =
            super::watch::fence(&server, &[&explain[..], args].concat()).ended().await.stdout;
        assert!(text.contains(&format!("{} (token {})\n", texts[0], one.token)), "{text}");
        for wrong in ["met the mark", "min-token", "continued after"] {
            assert!(!text.contains(wrong), "{text}");
        }
        assert_eq!(
            text.contains("The effects of a script before its refused command stay"),
            !args.is_empty()
        );
    }
}

/// A guard without its lock server is a guard, says what it cannot do, and does it once it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_server_that_is_down_costs_no_answer_and_gets_the_report_later() {
    let port = fence_tests::ports::unused();
    let address = format!("127.0.0.1:{port}");
    let guard = reporting(&[&format!("http://{address}")]).in_process().await;
    until_ready(&guard, "[!]refusal-reports warning: refusals are not reported: http://").await;
    let api = guard.guard();
    let late = lease_id();
    api.put("a", &unsigned(9, "a", lease_id()), "new").await.expect(201);
    // More than find room: 1024 wait, and one report is on its way.
    let presented = unsigned(3, "a", late);
    let count = 1_024 + 64 + 100;
    for _ in 0..count {
        api.put("a", &presented, "late").await.problem(Code::StaleToken);
    }
    assert_eq!(guard.metric("fencepost_fence_refusals_reported_total").await, 0);
    assert!(guard.metric("fencepost_fence_refusal_reports_failed_total").await > 0);
    let unreported = guard.metric("fencepost_fence_refusals_unreported_total").await;
    assert!(unreported > 0 && unreported <= 164, "{unreported}");
    let server = Setup::lock_server("memory:").listen(address).start().await;
    let locks = server.locks();
    let events = refusals(&locks, "a", 16).await;
    assert!(events.iter().all(|event| event.lease_id == Some(late)), "{events:?}");
    until_true("all that waited", || async {
        guard.metric("fencepost_fence_refusals_reported_total").await == count - unreported
    })
    .await;
    assert_eq!(explained(&locks, "a").await.recent.gap.unwrap().missed, Some(unreported));
    assert_eq!(guard.metric("fencepost_fence_refusals_waiting").await, 0);
    until_ready(&guard, "[+]refusal-reports ok").await;
}

/// A lock server that takes reports and never answers holds up nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_waits_for_a_report() {
    let server = Setup::lock_server("memory:").start().await;
    let proxy = FaultProxy::before(&server.address()).await;
    let guard = reporting(&[&format!("http://{}", proxy.address())]).in_process().await;
    until_ready(&guard, "[+]refusal-reports ok").await;
    proxy.set(Fault::Blackhole);
    let api = guard.guard();
    api.put("a", &unsigned(9, "a", lease_id()), "new").await.expect(201);
    let late = unsigned(3, "a", lease_id());
    let all = async {
        for _ in 0..100 {
            api.put("a", &late, "late").await.problem(Code::StaleToken);
        }
    };
    fence_tests::wait::soon("a hundred refusals", all).await;
    until_ready(&guard, "did not reply").await;
    proxy.set(Fault::None);
    proxy.cut();
    refusals(&server.locks(), "a", 16).await;
}

/// A guard that is asked to end reports its refusals before it does.
#[tokio::test]
async fn the_last_refusals_are_reported_before_the_end() {
    let server = Setup::lock_server("memory:").start().await;
    let mut guard = reporting(&[&server.base]).start().await;
    until_ready(&guard, "[+]refusal-reports ok").await;
    let api = guard.guard();
    api.put("a", &unsigned(9, "a", lease_id()), "new").await.expect(201);
    for token in 1..=8 {
        api.put("a", &unsigned(token, "a", lease_id()), "late").await.problem(Code::StaleToken);
    }
    guard.process.terminate();
    assert_eq!(guard.process.ended().await.code, 0);
    let events = refusals(&server.locks(), "a", 8).await;
    let tokens: Vec<u64> = events.iter().filter_map(|event| Some(event.token?.get())).collect();
    assert_eq!(tokens, [8, 7, 6, 5, 4, 3, 2, 1]);
}

#[tokio::test]
async fn the_next_lock_server_gets_the_report_if_the_first_is_dead() {
    let server = Setup::lock_server("memory:").start().await;
    let dead = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    let guard = reporting(&[&dead, &server.base]).in_process().await;
    let (_, new) = overtaken(&server.locks(), &guard.guard(), "a").await;
    assert_eq!(refusals(&server.locks(), "a", 1).await[0].mark, Some(new.token));
    until_ready(&guard, "[+]refusal-reports ok").await;
}

/// Refusals that a guard has no right to report are dropped and counted, and hold up nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_reports_what_it_has_the_right_to() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, content: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        text(&path).to_owned()
    };
    let entry = |name: &str, allow: &str| {
        let hash = SecretHash::from_secret(&format!("secret-of-{name}"));
        format!("[principals.{name}]\ntokens = [\"{hash}\"]\nallow = [\"{allow}\"]\n")
    };
    let access =
        entry("guard", "report jobs/*") + &entry("eye", "read *") + &entry("user", "use *");
    let access = file("access.toml", access);
    let setup = Setup::lock_server("memory:");
    let server = setup.args(&["--access-file", &access]).start().await;
    let secret = |name: &str| file(name, format!("secret-of-{name}\n"));
    let guard = reporting(&[&server.base]);
    let mine = guard.clone().args(&["--report-auth-file", &secret("guard")]).in_process().await;
    let stale = async |api: &Guard, lock: &str| {
        api.put(lock, &unsigned(9, lock, lease_id()), "new").await.expect(201);
        api.put(lock, &unsigned(3, lock, lease_id()), "late").await.problem(Code::StaleToken);
    };
    let api = mine.guard();
    for lock in ["other/1", "jobs/1", "other/2", "jobs/2"] {
        stale(&api, lock).await;
    }
    let eye = async |lock: &str| {
        let headers = [("authorization", "Bearer secret-of-eye")];
        let path = format!("/v1/locks/{}", encode(lock));
        let reply = Api::new(&server.base).send(Method::GET, &path, &headers, "").await;
        reply.expect(200).read::<ExplainedLock>().recent
    };
    for lock in ["jobs/1", "jobs/2"] {
        until_true("the report", || async { eye(lock).await.refusals.len() == 1 }).await;
    }
    until_true("what was refused is counted", || async {
        mine.metric("fencepost_fence_refusals_unreported_total").await == 2
    })
    .await;
    assert!(eye("other/1").await.refusals.is_empty());
    // A user of locks is not believed about them, and a guard without a token is advised.
    for (arm, hint) in [("user", "report *"), ("", "--report-auth-file")] {
        let mut setup = guard.clone();
        if !arm.is_empty() {
            setup = setup.args(&["--report-auth-file", &secret(arm)]);
        }
        let guard = setup.in_process().await;
        until_ready(&guard, hint).await;
        stale(&guard.guard(), "jobs/3").await;
    }
    assert!(eye("jobs/3").await.refusals.is_empty());
}

#[tokio::test]
async fn bad_settings_are_refused_with_the_value() {
    for (args, reason) in [
        (&["--report-to", "redis://x"][..], "redis://x"),
        (&["--report-auth-file", "/nonexistent/r"], "/nonexistent/r"),
        (
            &["--report-to", "http://127.0.0.1:1", "--report-auth-file", "/nonexistent/r"],
            "/nonexist",
        ),
    ] {
        let output = bare_setup("memory:").args(args).refused().await;
        assert_eq!(output.code, 64, "{output:?}");
        assert!(output.stderr.contains(reason), "{output:?}");
    }
}
