//! `--mode observe`: nothing is refused, everything that would be is counted.

use fence_protocol::Code;
use fence_protocol::wire::fence::{Guarantee, Mode, StoresReply};
use fence_protocol::wire::guards::GuardsReply;
use fence_tests::api::{Api, Guard};
use fence_tests::in_process::InProcess;
use fence_tests::key_file::{KeyFile, lease_id, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Setup};
use fence_tests::upstream::Upstream;
use fence_tests::wait::until;
use http::Method;

fn observing(setup: Setup) -> Setup {
    setup.args(&["--mode", "observe"])
}

async fn stores(api: &Api) -> StoresReply {
    api.get("/v1/stores").await.expect(200).read()
}

/// `(rule, code, total)`.
async fn would_refuse(api: &Api) -> Vec<(String, String, u64)> {
    let lines = stores(api).await.would_refuse;
    lines.into_iter().map(|line| (line.rule, line.code, line.total)).collect()
}

fn line(rule: &str, code: Code, total: u64) -> (String, String, u64) {
    (rule.to_owned(), code.to_string(), total)
}

/// Every way of being refused passes, on every store, and is counted once.
async fn nothing_is_refused(server: &InProcess, keys: &KeyFile) {
    let guard = server.guard();
    let forged = KeyFile::new("k1", 2);
    let rule = "orders/{id}/**=orders/{id}";
    let at = "orders/42/total";
    let (old, new) =
        (keys.sign(33, "orders/42", lease_id()), keys.sign(34, "orders/42", lease_id()));
    let write = async |token: &str, body: &'static str| {
        let reply = guard.with(Method::PUT, at, &[("fencing-token", token)], body).await;
        assert!(matches!(reply.status, 201 | 204), "{reply:?}");
        assert_eq!(reply.header("fencing-guarantee"), "observe", "nothing is promised");
        let read = guard.get(at).await.expect(200);
        assert_eq!(read.body.as_ref(), body.as_bytes());
        reply
    };
    assert_eq!(write(&new, "good").await.header("fencing-mark"), "34");
    assert_eq!(write(&old, "stale").await.header("fencing-mark"), "34", "the mark stands");
    write(&keys.sign(34, "orders/42", lease_id()), "collision").await;
    write(&keys.sign(50, "orders/7", lease_id()), "wrong lock").await;
    write(&forged.sign(50, "orders/42", lease_id()), "forged").await;
    write("nonsense", "malformed").await;
    let reply = guard.with(Method::PUT, at, &[], "none").await.expect(204);
    assert_eq!(reply.header("fencing-mark"), "");
    guard.get("other").await.expect(404);
    guard.delete(at, &old).await.expect(204);

    let fence = guard.fence("orders/42").await;
    assert_eq!(fence.mark.map(|mark| mark.get()), Some(34), "only good tokens raise the mark");
    assert_eq!((fence.guarantee, fence.refused_total), (Guarantee::Observe, 0));
    // Each write was looked at without a token, and so is counted as a read that had none.
    let expected = [
        line("default", Code::TokenRequired, 1),
        line(rule, Code::BadSignature, 1),
        line(rule, Code::MalformedToken, 1),
        line(rule, Code::StaleToken, 2),
        line(rule, Code::TokenCollision, 1),
        line(rule, Code::TokenRequired, 7),
        line(rule, Code::WrongLock, 1),
    ];
    assert_eq!(would_refuse(&guard.0).await, expected);
    let metrics = String::from_utf8(guard.0.get("/metrics").await.body.to_vec()).unwrap();
    let series =
        format!("fencepost_fence_would_refuse_total{{code=\"stale-token\",rule=\"{rule}\"}} 2");
    assert!(metrics.contains(&series), "{metrics}");
    let ready = String::from_utf8(guard.0.get("/readyz?verbose").await.expect(200).body.to_vec());
    assert!(ready.unwrap().contains("observe mode"), "readiness says that nothing is protected");
}

#[tokio::test]
async fn nothing_is_refused_on_memory() {
    let keys = KeyFile::new("k1", 1);
    nothing_is_refused(&observed("memory:", &keys).await, &keys).await;
}

#[tokio::test]
async fn nothing_is_refused_on_embedded() {
    let data = DataDir::new();
    let keys = KeyFile::new("k1", 1);
    nothing_is_refused(&observed(&data.store(), &keys).await, &keys).await;
}

#[tokio::test]
async fn nothing_is_refused_on_redis() {
    let redis = Redis::start().await;
    let keys = KeyFile::new("k1", 1);
    nothing_is_refused(&observed(&redis.url(), &keys).await, &keys).await;
}

async fn observed(store: &str, keys: &KeyFile) -> InProcess {
    let setup = Setup::fenced_store(store).args(&["--rule", "orders/{id}/**=orders/{id}"]);
    observing(setup).keys(&keys.path()).in_process().await
}

/// Marks that were noted in observe mode are in force once the guard enforces.
#[tokio::test]
async fn marks_that_were_noted_are_enforced_later() {
    let data = DataDir::new();
    let setup = Setup::fenced_store(&data.store());
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    let mut server = observing(setup.clone()).start().await;
    assert_eq!(server.guard().sealed("a", &new).await.mark.get(), 34);
    assert_eq!(server.guard().sealed("a", &old).await.mark.get(), 34, "the mark that stands");
    server.guard().put("a", &old, "old").await.expect(201);
    server.process.kill();
    let server = setup.start().await;
    server.guard().put("a", &old, "late").await.problem(Code::StaleToken);
    let stores = stores(&server.guard().0).await;
    assert_eq!((stores.mode, stores.stores[0].guarantee), (Mode::Enforce, Guarantee::Atomic));
}

/// A repeat is one in observe mode too, also where its holder is stale by then.
#[tokio::test]
async fn names_are_known_while_observing() {
    let server = observing(Setup::fenced_store("memory:")).in_process().await;
    let guard = server.guard();
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    let put = async |token: &str, body: &'static str| {
        let headers = [("fencing-token", token), ("idempotency-key", "op")];
        guard.with(Method::PUT, "a", &headers, body).await
    };
    let first = put(&old, "one").await.expect(201);
    guard.put("a", &new, "two").await.expect(204);
    let again = put(&old, "one").await.expect(201);
    assert_eq!(again.header("etag"), first.header("etag"));
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(guard.fenced_get("a", &new).await.expect(200).body.as_ref(), b"two");
}

/// The reverse proxy forwards at once: also what is stale, also while a lower write hangs.
#[tokio::test]
async fn the_proxy_forwards_without_waiting() {
    let upstream = Upstream::start().await;
    let data = DataDir::new();
    let state = data.path();
    let setup = Setup::bare("fenced-store").arg("--unsigned").args(&[
        "--proxy-listen",
        "127.0.0.1:0",
        "--upstream",
        upstream.base(),
        "--max-request-lifetime",
        "1h",
        "--state",
        fence_tests::key_file::text(&state),
    ]);
    let mut server = observing(setup.clone()).start().await;
    let proxy = Api::new(&server.proxy().await);
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    let write = async |token: &str| {
        let reply = proxy.send(Method::PUT, "/a", &[("fencing-token", token)], "x").await;
        assert_eq!(reply.header("fencing-guarantee"), "observe");
        reply
    };
    // One that is lower hangs at the upstream; enforcing would wait for it.
    let mut hold = upstream.hold("held");
    let held = tokio::spawn({
        let proxy = proxy.clone();
        let old = old.clone();
        async move { proxy.send(Method::PUT, "/a", &[("fencing-token", old.as_str())], "held").await }
    });
    hold.arrived().await;
    assert!(write(&new).await.status < 300);
    assert_eq!(upstream.values(), ["x"]);
    hold.release();
    assert!(held.await.unwrap().status < 300);
    let stale = write(&old).await;
    assert!(stale.status < 300, "{stale:?}");
    assert_eq!(stale.header("fencing-mark"), "34");
    assert!(proxy.send(Method::PUT, "/a", &[], "x").await.status < 300);
    let guard: Guard = server.guard();
    let counted = would_refuse(&guard.0).await;
    let expected = [line("default", Code::StaleToken, 1), line("default", Code::TokenRequired, 1)];
    assert_eq!(counted, expected);
    let line = &stores(&guard.0).await.stores[0];
    assert_eq!((line.guarantee, line.store_guarantee), (Guarantee::Observe, Guarantee::Bounded));
    server.process.kill();
    // The mark that was noted is in force now.
    let mut server = setup.start().await;
    let proxy = Api::new(&server.proxy().await);
    let late = proxy.send(Method::PUT, "/a", &[("fencing-token", old.as_str())], "x").await;
    late.problem(Code::StaleToken);
}

/// A lock server reads 64 KiB of it, so the guard lists what is refused most, and sums up the rest.
#[tokio::test]
async fn a_list_of_many_rules_is_one_that_a_lock_server_reads() {
    const RULES: usize = 150;
    let pad = "x".repeat(200);
    let rules = (0..RULES).fold(observing(Setup::fenced_store("memory:")), |setup, number| {
        setup.arg("--rule").arg(format!("{pad}/{number}={pad}/lock/{number}"))
    });
    let guard = rules.start().await;
    for number in 0..RULES {
        let path = format!("/v1/objects/{pad}/{number}");
        guard.guard().0.send(Method::PUT, &path, &[], "x").await.expect(201);
    }
    let lines = would_refuse(&guard.guard().0).await;
    assert_eq!(lines.iter().map(|(_, _, total)| total).sum::<u64>(), RULES as u64);
    assert!(lines.iter().any(|(rule, ..)| rule == "other"), "{lines:?}");
    let server = Setup::lock_server("memory:").args(&["--guard", &guard.base]).in_process().await;
    let api = server.api();
    let shown = until("a list that is read in time", || async {
        let shown: GuardsReply = api.get("/v1/guards").await.expect(200).read();
        shown.guards[0].problem.is_none().then_some(shown)
    })
    .await;
    let stores = shown.guards[0].stores.as_ref().unwrap();
    assert_eq!(stores.would_refuse.len(), lines.len());
}
