//! Conditional writes before a datastore that checks versions, and before ones that only say so.

use fence_protocol::wire::fence::StoresReply;
use fence_tests::process::{Output, Process, command};
use fence_tests::versioned_origin::{Lie, VersionedOrigin};

use super::*;

/// A guard with `--etag-probe` before an origin, whose lanes no test sees out of quarantine.
struct Versions {
    origin: VersionedOrigin,
    state: DataDir,
    server: Server,
    api: Api,
}

fn setup(base: &str, state: &DataDir, probe: &str) -> Setup {
    Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--upstream", base])
        .args(&["--max-request-lifetime", LONG, "--etag-probe", probe])
        .args(&["--upstream-timeout", "5s", "--drain-wait", "10s"])
        .args(&["--state", fence_tests::key_file::text(&state.path())])
}

impl Versions {
    async fn new() -> Self {
        let origin = VersionedOrigin::start(Lie::None).await;
        let state = DataDir::new();
        let mut server = setup(origin.base(), &state, "/probe").start().await;
        let api = Api::new(&server.proxy().await);
        assert!(origin.paths().is_empty(), "the probe left {:?}", origin.paths());
        Self { origin, state, server, api }
    }

    async fn crash(&mut self) {
        self.server.process.kill();
        self.server = setup(self.origin.base(), &self.state, "/probe").start().await;
        self.api = Api::new(&self.server.proxy().await);
    }

    async fn send(&self, method: Method, token: &str, body: &'static str) -> Reply {
        self.api.send(method, "/doc", &[("fencing-token", token)], body).await
    }

    async fn put(&self, token: &str, body: &'static str) -> Reply {
        self.send(Method::PUT, token, body).await
    }

    fn put_later(&self, token: &str, body: &'static str) -> JoinHandle<Result<Reply, String>> {
        let api = self.api.clone();
        let token = token.to_owned();
        tokio::spawn(async move {
            let headers = [("fencing-token", token.as_str())];
            api.attempt(Method::PUT, "/doc", &headers, body.into()).await
        })
    }

    fn applied(&self) -> Vec<String> {
        self.origin.applied("/doc")
    }

    /// Awaits the refusal of a write that was late.
    async fn refused(&self, body: &str) {
        until_true("the late write to be refused", || async {
            let log = self.origin.log("/doc");
            log.iter().any(|write| write.value == body && write.status == 412)
        })
        .await;
    }
}

fn guarantee(reply: Reply, status: u16) -> String {
    reply.expect(status).header("fencing-guarantee").to_owned()
}

/// The heart of it: 33 has no reply. Its outcome is settled, 34 goes at once, and 33 is refused by
/// the origin when it comes, long after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_write_is_refused_by_the_origin_and_no_holder_waits_for_it() {
    let world = Versions::new().await;
    let old = token(33);
    assert_eq!(guarantee(world.put(&old, "made").await, 201), Guarantee::Atomic.as_str());
    let mut held = world.origin.hold("33");
    let late = world.put_later(&old, "33");
    held.arrived().await;
    let settled = soon("the write to be settled", late).await.unwrap().unwrap();
    assert_eq!(guarantee(settled, 204), Guarantee::Atomic.as_str());
    assert_eq!(guarantee(world.put(&token(34), "34").await, 204), Guarantee::Atomic.as_str());
    held.release();
    world.refused("33").await;
    assert_eq!(world.applied(), ["made", "33", "34"]);
    assert_eq!(world.server.metric("fencepost_fence_settled_total").await, 1);
    assert_eq!(world.server.metric("fencepost_fence_quarantines_total").await, 0);
}

/// A client cannot take the guard's condition away, and gets no `atomic` for a part of a resource,
/// whose version the upstream may not check.
#[tokio::test]
async fn every_atomic_write_reaches_the_origin_under_its_condition() {
    let world = Versions::new().await;
    let own = token(33);
    world.put(&own, "made").await.expect(201);
    for listed in ["If-Match", "close, if-none-match"] {
        let headers = [("fencing-token", own.as_str()), ("connection", listed)];
        let reply = world.api.send(Method::PUT, "/doc", &headers, "bare").await;
        assert!(reply.problem(Code::InvalidRequest).detail.contains("must not list if-"));
    }
    let headers = [("fencing-token", own.as_str())];
    let part = world.api.send(Method::PUT, "/doc?part=1", &headers, "part").await;
    assert_eq!(part.header("fencing-guarantee"), Guarantee::Bounded.as_str());
    assert_eq!(world.applied(), ["made", "part"]);
}

/// The probe shows nothing of larger bodies: an upstream may store them in another way.
#[tokio::test]
async fn a_larger_write_than_was_probed_is_bounded() {
    let world = Versions::new().await;
    let own = token(33);
    world.put(&own, "made").await.expect(201);
    let large: &str = "x".repeat((1 << 20) + 1).leak();
    for (body, expected) in [(&large[1..], Guarantee::Atomic), (large, Guarantee::Bounded)] {
        assert_eq!(guarantee(world.put(&own, body).await, 204), expected.as_str());
    }
    assert!(world.origin.log("/doc").iter().all(|write| write.is_conditional));
}

/// It took effect and the reply was lost. The client gets an honest 504, and the lane continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_unknown_to_the_client_and_settled_for_the_lane() {
    let world = Versions::new().await;
    let old = token(33);
    world.put(&old, "made").await.expect(201);
    world.origin.lose_reply("33");
    let reply = world.put(&old, "33").await;
    assert_eq!(reply.header("fencing-guarantee"), Guarantee::Bounded.as_str());
    reply.problem(Code::OutcomeUnknown);
    let newer = token(34);
    let read = world.send(Method::GET, &newer, "").await;
    assert_eq!(guarantee(read.clone(), 200), Guarantee::Bounded.as_str());
    assert_eq!(read.body.as_ref(), b"33");
    world.origin.lose_reply("");
    world.send(Method::DELETE, &newer, "").await.problem(Code::OutcomeUnknown);
    world.send(Method::GET, &newer, "").await.expect(404);
    assert_eq!(world.server.metric("fencepost_fence_settled_total").await, 2);
}

/// Only a write that was applied stops a lower creation of unknown outcome. A 412 would show what
/// the creation may still change, so it waits as a read does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_not_applied_waits_for_what_may_come() {
    let world = Versions::new().await;
    let mut held = world.origin.hold("33");
    let late = world.put_later(&token(33), "33");
    held.arrived().await;
    soon("the time limit", late).await.unwrap().unwrap().problem(Code::OutcomeUnknown);
    let newer = token(34);
    let headers = [("fencing-token", newer.as_str()), ("if-match", "\"1\"")];
    let reply = world.api.send(Method::PUT, "/doc", &headers, "34").await;
    reply.problem(Code::Quarantined);
    held.release();
    until_true("the creation", || async { world.applied() == ["33"] }).await;
}

/// The origin refuses the second sending for a reason of its own, and the first one still finds its
/// version: the outcome is not settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_for_another_reason_settles_nothing() {
    let world = Versions::new().await;
    let old = token(33);
    world.put(&old, "made").await.expect(201);
    let mut held = world.origin.hold("33");
    let late = world.put_later(&old, "33");
    held.arrived().await;
    world.origin.lie(Lie::RefusesAll);
    soon("a reply", late).await.unwrap().unwrap().problem(Code::OutcomeUnknown);
    world.origin.lie(Lie::None);
    let newer = token(34);
    world.send(Method::GET, &newer, "").await.problem(Code::Quarantined);
    assert_eq!(guarantee(world.put(&newer, "34").await, 204), Guarantee::Atomic.as_str());
    held.release();
    world.refused("33").await;
    assert_eq!(world.applied(), ["made", "34"]);
    assert_eq!(world.server.metric("fencepost_fence_settled_total").await, 0);
}

/// A 412 to a condition that only this upstream knows shows nothing of the tag; and the guard has
/// no signature for a HEAD of its own.
#[tokio::test]
async fn writes_with_conditions_of_a_vendor_and_signed_ones_are_bounded() {
    let world = Versions::new().await;
    let own = token(33);
    for (name, value) in [
        ("x-ms-lease-id", "1"),
        ("x-goog-if-metageneration-match", "1"),
        ("x-amz-if-match-size", "1"),
        ("authorization", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host, Signature=y"),
        ("signature-input", "sig1=(\"@method\")"),
    ] {
        let headers = [("fencing-token", own.as_str()), (name, value)];
        let reply = world.api.send(Method::PUT, "/doc", &headers, name).await;
        assert_eq!(reply.header("fencing-guarantee"), Guarantee::Bounded.as_str(), "{name}");
    }
    assert!(world.origin.log("/doc").iter().all(|write| !write.is_conditional));
}

/// A resource can be missing twice: nothing that leaves it missing goes before a creation is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_of_unknown_outcome_quarantines_all_but_puts() {
    let world = Versions::new().await;
    let mut held = world.origin.hold("33");
    let late = world.put_later(&token(33), "33");
    held.arrived().await;
    let reply = soon("a time-out", late).await.unwrap().unwrap();
    reply.problem(Code::OutcomeUnknown);
    let newer = token(34);
    world.send(Method::GET, &newer, "").await.problem(Code::Quarantined);
    world.put(&newer, "34").await.expect(201);
    for method in [Method::DELETE, Method::POST, Method::GET] {
        world.send(method, &newer, "").await.problem(Code::Quarantined);
    }
    held.release();
    world.refused("33").await;
    assert_eq!(world.applied(), ["34"]);
}

/// The guard dies with a write on the wire. Its successor knows of no path, and need not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_a_put_goes_at_once_and_the_rest_waits() {
    let mut world = Versions::new().await;
    let old = token(33);
    world.put(&old, "made").await.expect(201);
    let mut held = world.origin.hold("33");
    let late = world.put_later(&old, "33");
    held.arrived().await;
    world.crash().await;
    assert!(soon("the cut connection", late).await.unwrap().is_err());
    let newer = token(34);
    assert_eq!(guarantee(world.put(&newer, "34").await, 204), Guarantee::Atomic.as_str());
    for method in [Method::GET, Method::DELETE] {
        world.send(method, &newer, "").await.problem(Code::Quarantined);
    }
    held.release();
    world.refused("33").await;
    assert_eq!(world.applied(), ["made", "34"]);
}

/// A lane that had another write is not known to be harmless after a crash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_a_put_waits_for_writes_without_a_condition() {
    let mut world = Versions::new().await;
    let old = token(33);
    world.put(&old, "made").await.expect(201);
    let reply = world.send(Method::POST, &old, "added").await;
    assert_eq!(guarantee(reply, 204), Guarantee::Bounded.as_str());
    world.crash().await;
    world.put(&token(34), "34").await.problem(Code::Quarantined);
}

/// The fence is checked first, then the client's own condition, on the version that the origin
/// checks too.
#[tokio::test]
async fn a_client_condition_is_kept() {
    let world = Versions::new().await;
    let own = token(34);
    let send = async |token: &str, name: &str, value: &str| {
        let headers = [("fencing-token", token), (name, value)];
        world.api.send(Method::PUT, "/doc", &headers, "x").await
    };
    send(&own, "if-match", "\"1\"").await.problem(Code::PreconditionFailed);
    let made = send(&own, "if-none-match", "*").await.expect(201);
    let tag = made.header("etag").to_owned();
    let failed = send(&own, "if-none-match", "*").await;
    assert_eq!(failed.header("etag"), tag);
    failed.problem(Code::PreconditionFailed);
    send(&token(33), "if-match", &tag).await.problem(Code::StaleToken);
    let next = send(&own, "if-match", &tag).await.expect(204);
    send(&own, "if-match", &tag).await.problem(Code::PreconditionFailed);
    // Another writer, past the guard: the version that the guard knows is outdated.
    let past = Api::new(world.origin.base());
    let past = past.send(Method::PUT, "/doc", &[], "past").await.expect(204);
    let outdated = next.header("etag");
    send(&own, "if-match", outdated).await.problem(Code::PreconditionFailed);
    send(&own, "if-match", past.header("etag")).await.expect(204);
    let date = "Sat, 29 Oct 1994 19:43:31 GMT";
    send(&own, "if-unmodified-since", date).await.problem(Code::InvalidRequest);
    let reply = world.send(Method::DELETE, &own, "").await;
    assert_eq!(guarantee(reply, 204), Guarantee::Bounded.as_str());
    world.send(Method::DELETE, &own, "").await.expect(404);
    let log = world.origin.log("/doc");
    let unconditional = log.iter().filter(|write| !write.is_conditional).count();
    assert_eq!(unconditional, 2, "one past the guard, and a DELETE of nothing: {log:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_that_lies_to_the_probe_is_refused_with_the_reason() {
    for (lie, reason) in [
        (Lie::Weak, "no strong ETag"),
        (Lie::Untagged, "no strong ETag"),
        (Lie::Hashed, "was given twice"),
        (Lie::CountsFromOne, "was given twice"),
        (Lie::Timed, "was given twice"),
        (Lie::IgnoresMatch, "under a stale ETag got 204"),
        (Lie::IgnoresMatchOfMissing, "of a missing resource got 201"),
        (Lie::IgnoresAbsent, "a creation over it got 204"),
        (Lie::DeletesAlways, "a DELETE under a stale ETag got 204"),
        (Lie::AppliesRefused, "got 412 and changed the resource"),
        (Lie::ChecksThenWrites, "racing PUTs"),
        (Lie::ChecksAtHead, "two PUTs whose halves overlap, under one condition, 2 won"),
    ] {
        let origin = VersionedOrigin::start(lie).await;
        let output = setup(origin.base(), &DataDir::new(), "probe").refused().await;
        said(&output, reason);
        assert!(origin.paths().is_empty(), "{lie:?}: the probe left {:?}", origin.paths());
    }
}

fn said(output: &Output, reason: &str) {
    assert!(output.stderr.contains(reason), "{reason}: {}", output.stderr);
    assert!(output.stderr.contains("leave --etag-probe out"), "{}", output.stderr);
}

/// A lie after the start makes a write `bounded`, or all of them.
#[tokio::test]
async fn an_origin_that_lies_later_is_noticed() {
    let world = Versions::new().await;
    let own = token(33);
    world.put(&own, "made").await.expect(201);
    world.origin.lie(Lie::RefusesAll);
    assert_eq!(guarantee(world.put(&own, "a").await, 204), Guarantee::Bounded.as_str());
    world.origin.lie(Lie::Untagged);
    for (body, expected) in [("b", Guarantee::Atomic), ("c", Guarantee::Bounded)] {
        assert_eq!(guarantee(world.put(&own, body).await, 204), expected.as_str(), "{body}");
    }
    assert_eq!(world.server.metric("fencepost_fence_unconditional_total").await, 2);
    world.origin.lie(Lie::Hashed);
    for (body, expected) in [
        ("d", Guarantee::Bounded),
        ("e", Guarantee::Atomic),
        // The tag is that of the version before: nothing is atomic any more.
        ("e", Guarantee::Bounded),
        ("f", Guarantee::Bounded),
    ] {
        assert_eq!(guarantee(world.put(&own, body).await, 204), expected.as_str(), "{body}");
    }
    let log = world.origin.log("/doc");
    assert!(!log.last().unwrap().is_conditional, "{log:?}");
    assert!(world.server.process.stderr().contains("reused an ETag"));
}

/// A real one: the objects of another guard.
#[tokio::test]
async fn an_object_store_passes_the_probe() {
    let objects = Setup::fenced_store("memory:").args(&["--rule", "**=@open"]).start().await;
    let state = DataDir::new();
    let mut server = setup(&objects.base, &state, "/v1/objects/probe")
        .args(&["--rule", "v1/objects/{name}={name}"])
        .start()
        .await;
    let api = Api::new(&server.proxy().await);
    let send = async |token: &str, body: &'static str| {
        let headers = [("fencing-token", token)];
        api.send(Method::PUT, "/v1/objects/doc", &headers, body).await
    };
    let newer = token(34);
    assert_eq!(guarantee(send(&newer, "34").await, 201), Guarantee::Atomic.as_str());
    assert_eq!(guarantee(send(&newer, "34").await, 204), Guarantee::Atomic.as_str());
    send(&token(33), "33").await.problem(Code::StaleToken);
    let stores: StoresReply = Api::new(&server.base).get("/v1/stores").await.expect(200).read();
    let line = &stores.stores[0];
    assert!(line.probe.contains("strong ETags and none twice"), "{}", line.probe);
    assert_eq!(line.guarantee, Guarantee::Bounded, "not of all operations");
}

/// Another real one: its tag is made of size and second, and PUT has no condition.
#[tokio::test]
async fn nginx_fails_the_probe() {
    let folder = DataDir::new();
    let root = folder.path();
    let root = fence_tests::key_file::text(&root);
    std::fs::create_dir_all(format!("{root}/data/probe")).unwrap();
    let port = fence_tests::ports::unused();
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind};\n"))
        .concat();
    let text = format!(
        "daemon off; master_process off; pid {root}/pid; error_log stderr;\nevents {{}}\n\
         http {{\naccess_log off; {temp}\
         server {{ listen 127.0.0.1:{port}; root {root}/data; dav_methods PUT DELETE; }}\n}}\n"
    );
    std::fs::write(format!("{root}/nginx.conf"), text).unwrap();
    let mut nginx = command("nginx");
    nginx.args(["-c", &format!("{root}/nginx.conf")]);
    let _nginx = Process::spawn("nginx", nginx);
    let base = format!("http://127.0.0.1:{port}");
    until_true("nginx to listen", || async {
        Api::new(&base).attempt(Method::GET, "/", &[], "".into()).await.is_ok()
    })
    .await;
    said(&setup(&base, &DataDir::new(), "/probe").refused().await, "a creation over it got 204");
}
