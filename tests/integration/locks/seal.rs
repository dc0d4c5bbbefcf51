//! Seals at acquire: `--seal PREFIX=required|lazy|off`.

mod engines;

use fence_protocol::wire::lock::{EndReason, LockState};
use fence_protocol::wire::lock_set::LeasesReply;
use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Guard, Locks, Reply};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::{lease_id, text};
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until, until_true};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::guards::{FAR, raise, readiness, with_guards};
use super::site::{Kind, Site, waiting};
use super::witness::{Seal, Witness};

const REQUIRED: &[&str] = &["--seal", "*=required"];
const LAZY: &[&str] = &["--seal", "*=lazy"];

/// Until the lease has ended by itself.
async fn expired(locks: &Locks, lock: &str, lease: LeaseId) {
    until_true("the end of a lease", || async {
        let shown = locks.show(lock).await;
        shown.history.iter().any(|ended| ended.lease_id == lease)
    })
    .await;
}

async fn mark(guard: &Guard, lock: &str) -> Option<u64> {
    guard.fence(lock).await.mark.map(u64::from)
}

fn unsealed(reply: &Reply) -> String {
    let problem = reply.problem(Code::GuardUnsealed);
    assert!(!reply.header("retry-after").is_empty() && problem.retryable, "{problem}");
    assert!(problem.extension::<Value>("guards").is_some(), "{problem}");
    problem.detail
}

/// The control: without a seal the guard does not know of the new holder, and takes what the old
/// one writes.
#[tokio::test]
async fn without_a_seal_a_stalled_holder_writes_until_the_next_one_does() {
    let site = Site::new(Kind::Embedded, 1, &["--seal", "other/=required"]).await;
    let locks = site.locks();
    let first = locks.brief("job", 200).await;
    expired(&locks, "job", first.lease_id).await;
    locks.grant("job", 60_000).await;
    site.writes(0, &first).await;
}

#[tokio::test]
async fn a_stalled_holder_is_refused_before_the_next_one_has_written() {
    let site = Site::new(Kind::Embedded, 2, REQUIRED).await;
    let locks = site.locks();
    // Long enough for a busy machine to seal the guards and write.
    let first = locks.grant("job", 3_000).await;
    site.writes(0, &first).await;
    expired(&locks, "job", first.lease_id).await;
    let next = locks.grant("job", 60_000).await;
    assert!(next.ttl_ms <= 60_000);
    for guard in 0..2 {
        let fence = site.guards[guard].guard().fence("job").await;
        assert_eq!((fence.mark, fence.lease_id), (Some(next.token), Some(next.lease_id)));
        site.write(guard, &first).await.problem(Code::StaleToken);
        site.writes(guard, &next).await;
    }
}

/// A client that waited, one that took over, and one that acquired several at once.
#[tokio::test]
async fn every_way_to_a_lock_is_sealed() {
    let site = Site::new(Kind::Embedded, 1, REQUIRED).await;
    let locks = site.locks();
    let guard = site.guards[0].guard();
    let first = locks.grant("job", 60_000).await;
    let next = waiting(&locks, "job");
    locks.queue_of("job", 1).await;
    locks.release("job", first.lease_id).await.expect(200);
    let next = next.await.unwrap().lease();
    assert_eq!(mark(&guard, "job").await, Some(next.token.get()));
    let body = |life: &str| json!({"owner": "o", "incarnation": life, "takeover": true});
    locks.acquire("mine", body("first life")).await.lease();
    let second = locks.acquire("mine", body("second life")).await.lease();
    assert_eq!(mark(&guard, "mine").await, Some(second.token.get()));
    let body = json!({"locks": [{"lock": "a"}, {"lock": "b"}, {"lock": "c", "mode": "shared"}]});
    let all: LeasesReply = locks.0.post("/v1/acquire", &body).await.expect(200).read();
    for lease in &all.leases[..2] {
        assert_eq!(mark(&guard, lease.lock.as_str()).await, Some(lease.token.get()));
    }
    assert_eq!(mark(&guard, "c").await, None, "a shared lease is not sealed");
}

/// The client receives its lease after the guard does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_gets_a_reply_before_the_guard_has_answered() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let locks = server.locks();
    guard.hold();
    let waiter = waiting(&locks, "job");
    let seal = guard.asked().await;
    for _ in 0..20 {
        assert_eq!(locks.show("job").await.state, LockState::Held);
    }
    assert!(!waiter.is_finished(), "granted before the guard was sealed");
    guard.answer();
    let lease = soon("the grant", waiter).await.unwrap().lease();
    assert_eq!((lease.token, lease.lease_id), (seal.token, seal.lease));
}

#[tokio::test]
async fn a_dead_guard_gives_the_lock_back() {
    let args = ["--seal", "*=required", "--seal", "free/=off"];
    let mut site = Site::new(Kind::Embedded, 2, &args).await;
    let locks = site.locks();
    site.guards[1].process.kill();
    let lease = lease_id();
    let reply = locks.acquire("job", json!({"lease_id": lease})).await;
    let detail = unsealed(&reply);
    assert!(detail.contains(&site.guards[1].base), "{detail}");
    assert!(!detail.contains(&site.guards[0].base), "{detail}");
    let shown = locks.show("job").await;
    assert_eq!(shown.state, LockState::Free, "{shown:?}");
    assert_eq!(shown.history[0].reason, EndReason::Released);
    // The id is used up, and says so; a lock of another prefix continues.
    locks.renew("job", lease).await.problem(Code::LeaseLost);
    locks.acquire("job", json!({"lease_id": lease})).await.problem(Code::LeaseLost);
    locks.grant("free/job", 60_000).await;
    let said = readiness(&site.server).await;
    assert!(said.contains("[!]seals") && said.contains(&site.guards[1].base), "{said}");
    // Several at once are given back together, those that need no seal too.
    let body = json!({"locks": [{"lock": "free/a"}, {"lock": "b"}]});
    unsealed(&locks.0.post("/v1/acquire", &body).await);
    for lock in ["free/a", "b"] {
        assert_eq!(locks.show(lock).await.state, LockState::Free);
    }
}

/// No client is granted the lock while the guard stalls, and the queue continues when it is back.
#[tokio::test]
async fn a_stalled_guard_holds_up_the_grant_and_not_the_lock() {
    let site = Site::new(Kind::Redis, 1, REQUIRED).await;
    let locks = site.locks();
    site.guards[0].process.pause();
    let detail = unsealed(&locks.acquire("job", json!({})).await);
    assert!(detail.contains("no reply within 2000 ms"), "{detail}");
    // A lease that is shorter than the patience is not waited for longer than it lives.
    let detail = unsealed(&locks.acquire("job", json!({"ttl_ms": 1_000})).await);
    assert!(!detail.contains("2000 ms"), "{detail}");
    site.guards[0].process.resume();
    site.guards[0].guard().0.get("/livez").await.expect(200);
    let lease = locks.grant("job", 60_000).await;
    site.writes(0, &lease).await;
    until_true("the check to be well", || async {
        readiness(&site.server).await.contains("[+]seals ok")
    })
    .await;
}

/// The same request again, while it is held: its holder has the reply, and a guard that has gone
/// since is no reason to end its lease.
#[tokio::test]
async fn a_repeat_gets_the_same_though_the_guard_is_gone() {
    let mut site = Site::new(Kind::Embedded, 1, REQUIRED).await;
    let body = json!({"lease_id": lease_id()});
    let first = site.locks().acquire("job", body.clone()).await.lease();
    site.writes(0, &first).await;
    let again = site.locks().acquire("job", body.clone()).await.lease();
    assert_eq!(again.token, first.token);
    assert_eq!(mark(&site.guards[0].guard(), "job").await, Some(first.token.get()));
    site.guards[0].process.kill();
    let late = site.locks().acquire("job", body).await.lease();
    assert_eq!(late.token, first.token);
    assert_eq!(site.locks().show("job").await.state, LockState::Held);
}

/// A request and its retry, whose seals are both under way: with the seal and reply of each.
async fn with_retry(guard: &Witness, locks: &Locks) -> [(Seal, JoinHandle<Reply>); 2] {
    guard.hold();
    let body = json!({"lease_id": lease_id(), "ttl_ms": 600_000});
    let ask = || async {
        let locks = locks.clone();
        let body = body.clone();
        let reply = tokio::spawn(async move { locks.acquire("job", body).await });
        (guard.seal().await, reply)
    };
    [ask().await, ask().await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_seal_ends_no_lease_that_a_retry_has_received() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let locks = server.locks();
    let [(seal, request), (retried, retry)] = with_retry(&guard, &locks).await;
    retried.take();
    let lease = soon("the grant", retry).await.unwrap().lease();
    seal.fail();
    let detail = unsealed(&soon("the refusal", request).await.unwrap());
    assert!(detail.contains("an earlier request with this id stays"), "{detail}");
    let shown = locks.show("job").await;
    let holder = shown.holder.expect("a holder");
    assert_eq!((holder.lease_id, holder.info.token), (lease.lease_id, lease.token));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_receives_no_lease_that_a_failed_seal_has_ended() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let locks = server.locks();
    let [(seal, request), (retried, retry)] = with_retry(&guard, &locks).await;
    seal.fail();
    let detail = unsealed(&soon("the refusal", request).await.unwrap());
    assert!(detail.contains("was rolled back"), "{detail}");
    retried.take();
    let detail = unsealed(&soon("the reply", retry).await.unwrap());
    assert!(detail.contains("found a guard that was not sealed"), "{detail}");
    assert_eq!(locks.show("job").await.state, LockState::Free);
}

/// The retry is answered by what became of its request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_fails_too_learns_of_the_rollback() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let [(seal, request), (retried, retry)] = with_retry(&guard, &server.locks()).await;
    seal.fail();
    unsealed(&soon("the refusal", request).await.unwrap());
    retried.fail();
    let detail = unsealed(&soon("the reply", retry).await.unwrap());
    assert!(detail.contains("rolls the lease back"), "{detail}");
}

/// A lock whose client hangs up while its guard is sealed is no lock that is held and not sealed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_during_the_seal_leaves_no_unsealed_lease() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let locks = server.locks();
    let before = locks.grant("job", 600_000).await;
    guard.asked().await;
    guard.hold();
    for waits in [true, false] {
        let body = json!({"lease_id": lease_id(), "ttl_ms": 600_000, "wait_ms": 60_000});
        let asking = locks.clone();
        let asked = body.clone();
        let request = tokio::spawn(async move { asking.acquire("job", asked).await });
        if waits {
            locks.queue_of("job", 1).await;
            locks.release("job", before.lease_id).await.expect(200);
        }
        let seal = guard.seal().await;
        request.abort();
        let _ = request.await;
        seal.fail();
        until_true("the lock to be free", || async {
            locks.show("job").await.state == LockState::Free
        })
        .await;
    }
    // A sealed one stays for its retry.
    let body = json!({"lease_id": lease_id(), "ttl_ms": 600_000});
    let asking = locks.clone();
    let asked = body.clone();
    let request = tokio::spawn(async move { asking.acquire("job", asked).await });
    let seal = guard.seal().await;
    request.abort();
    let _ = request.await;
    let token = seal.fence.token;
    seal.take();
    // The retry may come before the reply to the first seal.
    guard.answer();
    guard.answer();
    let again = soon("the grant", locks.acquire("job", body)).await;
    assert_eq!(again.lease().token, token);
}

/// The client leaves before there is anything to seal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_during_the_commit_leaves_no_unsealed_lease() {
    let redis = Redis::start().await;
    let guard = Witness::start().await;
    let setup = with_guards(&redis.url(), &[&guard.base]).args(REQUIRED);
    let server = setup.args(&["--store-timeout", "60s"]).in_process().await;
    let locks = server.locks();
    guard.hold();
    for path in ["/v1/locks/job/acquire", "/v1/acquire"] {
        let _: String = redis.run(&["CLIENT", "PAUSE", "600000", "WRITE"]).await;
        let mut body = json!({"lease_id": lease_id(), "ttl_ms": 600_000});
        if path == "/v1/acquire" {
            body["locks"] = json!([{"lock": "job"}]);
        }
        let asking = locks.clone();
        let request = tokio::spawn(async move { asking.0.post(path, &body).await });
        until_true("the request to be there", || async {
            let metrics = locks.0.get("/metrics").await;
            let text = String::from_utf8_lossy(&metrics.body).into_owned();
            // This one, and the one for the metrics.
            text.lines().any(|line| line == "fencepost_http_requests_in_flight 2")
        })
        .await;
        request.abort();
        let _ = request.await;
        let _: String = redis.run(&["CLIENT", "UNPAUSE"]).await;
        guard.seal().await.fail();
        until_true("the lock to be free", || async {
            locks.show("job").await.state == LockState::Free
        })
        .await;
    }
}

/// Of a group that is refused for one lease, none stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_lost_one_during_its_seal_gives_the_others_back() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let locks = server.locks();
    guard.hold();
    let lease = lease_id();
    let body =
        json!({"lease_id": lease, "ttl_ms": 600_000, "locks": [{"lock": "a"}, {"lock": "b"}]});
    let asking = locks.clone();
    let request = tokio::spawn(async move { asking.0.post("/v1/acquire", &body).await });
    let seals = [guard.seal().await, guard.seal().await];
    locks.release("b", lease).await.expect(200);
    seals.into_iter().for_each(Seal::take);
    let problem = soon("the reply", request).await.unwrap().problem(Code::LeaseLost);
    assert!(problem.detail.contains("lock b"), "{problem}");
    assert_eq!(locks.show("a").await.state, LockState::Free);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_released_during_its_seal_is_not_acknowledged() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let locks = server.locks();
    guard.hold();
    for path in ["/v1/locks/job/acquire", "/v1/acquire"] {
        let lease = lease_id();
        let mut body = json!({"lease_id": lease, "ttl_ms": 600_000});
        if path == "/v1/acquire" {
            body["locks"] = json!([{"lock": "job"}]);
        }
        let asking = locks.clone();
        let request = tokio::spawn(async move { asking.0.post(path, &body).await });
        let seal = guard.seal().await;
        locks.release("job", lease).await.expect(200);
        seal.take();
        let problem = soon("the reply", request).await.unwrap().problem(Code::LeaseLost);
        assert_eq!(problem.extension("reason"), Some("released".to_owned()), "{path}");
    }
}

/// The store cannot be used at the moment when an unsealed grant is to be returned: it is returned
/// later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsealed_grant_is_returned_when_the_store_can_be_used_again() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let guard = Witness::start().await;
    let url = format!("redis://{}", proxy.address());
    let server = with_guards(&url, &[&guard.base]).args(REQUIRED).in_process().await;
    let direct = with_guards(&redis.url(), &[&guard.base]).in_process().await;
    let other = direct.locks();
    guard.hold();
    let own = server.locks();
    let body = json!({"lease_id": lease_id(), "ttl_ms": 600_000});
    let reply = tokio::spawn(async move { own.acquire("job", body).await });
    guard.asked().await;
    proxy.set(Fault::Refuse);
    let detail = unsealed(&soon("the refusal", reply).await.unwrap());
    assert!(detail.contains("is being retried"), "{detail}");
    assert_eq!(other.show("job").await.state, LockState::Held);
    proxy.heal();
    until_true("the lock to be free", || async {
        other.show("job").await.state == LockState::Free
    })
    .await;
}

/// A client that hangs up while the guards are sealed, without an id that it could ask with again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_no_retry_can_ask_for_is_rolled_back() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let locks = server.locks();
    guard.hold();
    let asking = locks.clone();
    let request =
        tokio::spawn(async move { asking.acquire("job", json!({"ttl_ms": 600_000})).await });
    guard.asked().await;
    assert_eq!(locks.show("job").await.state, LockState::Held);
    request.abort();
    until_true("the lock to be free", || async {
        locks.show("job").await.state == LockState::Free
    })
    .await;
}

#[tokio::test]
async fn lazy_replies_at_once_and_seals_behind() {
    let site = Site::new(Kind::Embedded, 1, LAZY).await;
    let locks = site.locks();
    let guard = site.guards[0].guard();
    let first = locks.brief("job", 200).await;
    expired(&locks, "job", first.lease_id).await;
    let next = locks.grant("job", 60_000).await;
    until_true("the seal", || async { mark(&guard, "job").await == Some(next.token.get()) }).await;
    site.write(0, &first).await.problem(Code::StaleToken);
}

/// A guard that is unreachable keeps no client from the lock; that is counted and warned of.
#[tokio::test]
async fn lazy_grants_without_the_guard() {
    let mut site = Site::new(Kind::Embedded, 1, LAZY).await;
    site.guards[0].process.kill();
    let locks = site.locks();
    locks.grant("job", 60_000).await;
    until_true("the warning", || async { readiness(&site.server).await.contains("[!]seals") })
        .await;
    let metrics = locks.0.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let line = format!(
        "fencepost_lock_guard_seals_total{{cause=\"lazy\",guard=\"{}\",outcome=\"failed\"}} 1",
        site.guards[0].base
    );
    assert!(metrics.contains(&line), "{metrics}");
    locks.0.get("/readyz").await.expect(200);
}

/// A seal with the token of one reader would shut the other readers out.
#[tokio::test]
async fn shared_leases_and_permits_are_not_sealed() {
    let site = Site::new(Kind::Embedded, 1, REQUIRED).await;
    let locks = site.locks();
    let guard = site.guards[0].guard();
    for body in [json!({"mode": "shared"}), json!({"mode": "permit", "size": 2})] {
        let lock = body["mode"].as_str().unwrap().to_owned();
        let first = locks.acquire(&lock, body.clone()).await.lease();
        locks.acquire(&lock, body).await.lease();
        assert_eq!(mark(&guard, &lock).await, None);
        site.writes(0, &first).await;
    }
}

/// A guard that has seen a higher token refuses the new holder: it gets no reply with its lease,
/// and the next token is above that mark.
#[tokio::test]
async fn a_mark_above_the_grant_lifts_the_next_one() {
    let guard = Setup::fenced_store("memory:").start().await;
    let server = with_guards("memory:", &[&guard.base]).args(REQUIRED).in_process().await;
    let lock = "witness";
    raise(&guard, FAR).await;
    let detail = unsealed(&server.locks().acquire(lock, json!({})).await);
    assert!(detail.contains(&FAR.to_string()), "{detail}");
    let next = server.locks().grant(lock, 60_000).await;
    assert!(next.token.get() > FAR);
    assert_eq!(mark(&guard.guard(), lock).await, Some(next.token.get()));
}

#[tokio::test]
async fn seals_need_guards_and_come_from_every_layer() {
    for args in [REQUIRED, LAZY] {
        let output = Setup::lock_server("memory:").args(args).refused().await;
        assert_eq!(output.code, 64, "{output:?}");
        assert!(output.stderr.contains("--guard names none"), "{}", output.stderr);
    }
    let guard = Setup::fenced_store("memory:").start().await;
    let setup = with_guards("memory:", &[&guard.base]);
    let output = setup.clone().args(&["--seal", "a=b=off"]).refused().await;
    assert!(output.code == 64 && output.stderr.contains("a=b"), "{output:?}");
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("lock-server.toml");
    std::fs::write(&file, "seal = [\"a/=required\", \"b/=off\"]\n").unwrap();
    let from_file = setup.clone().args(&["--config", text(&file)]).in_process().await;
    let from_variable = setup.env("LOCK_SERVER_SEAL", "a/=required;b/=off").in_process().await;
    for server in [from_file, from_variable] {
        let sealed = server.locks().grant("a/1", 60_000).await;
        assert_eq!(mark(&guard.guard(), "a/1").await, Some(sealed.token.get()));
        server.locks().release("a/1", sealed.lease_id).await.expect(200);
        server.locks().grant("b/1", 60_000).await;
        assert_eq!(mark(&guard.guard(), "b/1").await, None);
    }
}
