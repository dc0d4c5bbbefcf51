//! A guard that is paused, or dies, between any two steps of a hand-over. Another guard finishes
//! what it began; and when it resumes, it does no harm.

use fence_tests::journal::{Answer, Entry, Journal, Seal, WriteReport};
use fence_tests::redis_flood::Flood;
use fence_tests::redis_holders::{entries, length};
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::{Grant, patient};
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::wait::until_true;

use super::{Port, port, setup};

/// The fault that hits the guard under test at the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hurt {
    Stop,
    Kill,
}

/// The holder after the one whose guard was hurt, at the other guard.
#[derive(Clone, Copy, Debug)]
enum NewHolder {
    /// The same holder, with the same token and lease.
    Same,
    /// A new holder with a higher token.
    Higher,
}

struct Scene {
    redis: Redis,
    healthy: Port,
}

impl Scene {
    async fn new() -> Self {
        let redis = Redis::with(&[("appendonly", "no")]).await;
        let healthy = port(&setup(&redis.url())).await;
        Self { redis, healthy }
    }

    async fn failing(&self, point: &str, hurt: Hurt) -> Port {
        let action = if hurt == Hurt::Stop { "stop" } else { "kill" };
        let fail_at = format!("{point}={action}");
        port(&setup(&self.redis.url()).args(&["--fail-at", &fail_at])).await
    }

    async fn seal(&self, token: u64, id: &str) -> Seal {
        Seal { token, length: length(&self.redis.address(), id).await }
    }

    async fn judge(&self, id: &str, seals: Vec<Seal>, flood: Flood, what: &str) -> usize {
        let mut answers = flood.ended().await;
        let entries = entries(&self.redis.address(), id).await;
        // The writes of the new holders are checked where they are made.
        let others = entries.iter().filter(|entry| entry.token != 10).cloned();
        let answer = |Entry { token, op }| Answer { token, op, report: WriteReport::Applied };
        answers.extend(others.map(answer));
        let judged = Journal { entries, seals, answers };
        judged.check().unwrap_or_else(|error| panic!("{what}: {error}"));
        judged.entries.len()
    }
}

/// An old holder floods through a healthy guard. A new one comes through the failing guard, which
/// is hurt at `point`; its client has no answer then. NewHolder comes through the healthy one.
async fn raise_over_a_flood(scene: &Scene, point: &str, hurt: Hurt, next: NewHolder) {
    let what = format!("{point} {hurt:?} {next:?}");
    let id = what.replace(' ', "-");
    let old = Grant::new(10, &id);
    let new = Grant::new(20, &id);
    let last = match next {
        NewHolder::Same => new.clone(),
        NewHolder::Higher => Grant::new(30, &id),
    };
    let client = RespClient::fenced(&scene.healthy.address, &old.credential).await;
    let flood = Flood::start(client, &old, 300_000);
    flood.answered(500).await;

    let mut failing = scene.failing(point, hurt).await;
    let mut waiting = RespClient::connect(&failing.address).await;
    waiting.send(&["AUTH", "fence", &new.credential]).await;
    // It may be dead by now.
    let write = request(&["RPUSH", &new.journal(), "20 through-the-hurt-guard"]);
    let _ = waiting.try_send_raw(&write).await;
    match hurt {
        Hurt::Stop => failing.server.process.stopped().await,
        Hurt::Kill => assert_eq!(failing.server.process.ended().await.code, 128 + 9, "{what}"),
    }
    if hurt == Hurt::Stop {
        assert!(!waiting.receives_within(20).await, "{what}: answered before it was sealed");
    }

    let mut client = RespClient::fenced(&scene.healthy.address, &last.credential).await;
    let seal = scene.seal(last.token, &id).await;
    let entry = format!("{} after", last.token);
    let reply = client.call(&["RPUSH", &last.journal(), &entry]).await;
    assert!(matches!(reply, Resp::Integer(_)), "{what}: {reply:?}");

    if hurt == Hurt::Stop {
        failing.server.process.resume();
        assert_final_reply(&mut waiting, next, &what).await;
    }
    let reply = client.call(&["RPUSH", &last.journal(), &format!("{entry}-all")]).await;
    assert!(matches!(reply, Resp::Integer(_)), "{what}: {reply:?}");
    let entries = scene.judge(&id, vec![seal], flood, &what).await;
    assert!(entries >= 500, "{what}: {entries} entries");
}

/// Asserts the final reply to the client of the guard that was paused.
async fn assert_final_reply(waiting: &mut RespClient, next: NewHolder, what: &str) {
    match next {
        // Its token is as good as that of the other connection.
        NewHolder::Same => {
            assert_eq!(waiting.reply().await, Resp::simple("OK"), "{what}");
            assert!(matches!(waiting.reply().await, Resp::Integer(_)), "{what}");
        }
        // Its token was the highest when it was sealed; by now it is not.
        NewHolder::Higher => {
            let auth = patient(waiting.next()).await;
            let write = patient(waiting.next()).await;
            let is_ok = matches!(&auth, Ok(Resp::Simple(ok)) if ok == "OK");
            let was_sealed = what.starts_with("after-sealed");
            assert!(!is_ok || was_sealed, "{what}: {auth:?}");
            assert!(write.map_or(true, |reply| reply.error().is_some()), "{what}");
        }
    }
}

async fn all_of(point: &str) {
    let scene = Scene::new().await;
    for hurt in [Hurt::Stop, Hurt::Kill] {
        for next in [NewHolder::Same, NewHolder::Higher] {
            raise_over_a_flood(&scene, point, hurt, next).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurt_before_register() {
    all_of("before-register").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurt_after_raise() {
    all_of("after-raise").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurt_mid_abort() {
    all_of("mid-abort").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurt_after_abort() {
    all_of("after-abort").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurt_after_sealed() {
    all_of("after-sealed").await;
}

/// The token is registered and its client gets no reply; a higher token comes elsewhere; the guard
/// resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurt_after_register() {
    let scene = Scene::new().await;
    for hurt in [Hurt::Stop, Hurt::Kill] {
        let id = format!("{hurt:?}");
        let old = Grant::new(10, &id);
        let new = Grant::new(20, &id);
        let mut failing = scene.failing("after-register", hurt).await;
        let mut waiting = RespClient::connect(&failing.address).await;
        waiting.send(&["AUTH", "fence", &old.credential]).await;
        let _ = waiting.try_send_raw(&request(&["RPUSH", &old.journal(), "10 late"])).await;
        match hurt {
            Hurt::Stop => failing.server.process.stopped().await,
            Hurt::Kill => assert_eq!(failing.server.process.ended().await.code, 128 + 9),
        }
        let mut next = RespClient::fenced(&scene.healthy.address, &new.credential).await;
        if hurt == Hurt::Stop {
            failing.server.process.resume();
            for reply in [patient(waiting.next()).await, patient(waiting.next()).await] {
                let is_error = reply.as_ref().map_or(true, |reply| reply.error().is_some());
                // AUTH may say OK: the token was the highest when it was registered.
                let is_ok = matches!(&reply, Ok(Resp::Simple(ok)) if ok == "OK");
                assert!(is_error || is_ok, "{reply:?}");
            }
        }
        let list = next.call(&["LRANGE", &new.journal(), "0", "-1"]).await;
        assert_eq!(list.items(), [], "{hurt:?}");
    }
}

/// A registration that was left behind by a connection that ended blocks neither the same token nor
/// a higher one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurt_before_retire() {
    let scene = Scene::new().await;
    for hurt in [Hurt::Stop, Hurt::Kill] {
        let id = format!("{hurt:?}");
        let old = Grant::new(10, &id);
        let new = Grant::new(20, &id);
        let mut failing = scene.failing("before-retire", hurt).await;
        let mut client = RespClient::fenced(&failing.address, &old.credential).await;
        // A connection of its own, so that it ends with its client.
        client.call(&["WATCH", &old.key("a")]).await;
        client.call(&["RPUSH", &old.journal(), "10 early"]).await;
        drop(client);
        match hurt {
            Hurt::Stop => failing.server.process.stopped().await,
            Hurt::Kill => assert_eq!(failing.server.process.ended().await.code, 128 + 9),
        }
        let mut same = RespClient::fenced(&scene.healthy.address, &old.credential).await;
        assert_eq!(same.call(&["RPUSH", &old.journal(), "10 again"]).await, Resp::Integer(2));
        let mut next = RespClient::fenced(&scene.healthy.address, &new.credential).await;
        assert_eq!(next.call(&["RPUSH", &new.journal(), "20 next"]).await, Resp::Integer(3));
        if hurt == Hurt::Stop {
            failing.server.process.resume();
        }
        assert_eq!(next.call(&["RPUSH", &new.journal(), "20 more"]).await, Resp::Integer(4));
    }
}

/// The guards leave nothing behind when everything ended well: no registration of a connection
/// that is gone stays in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registrations_are_removed_with_their_connections() {
    let scene = Scene::new().await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    for grant in [&old, &new] {
        let mut client = RespClient::fenced(&scene.healthy.address, &grant.credential).await;
        client.call(&["WATCH", &grant.key("a")]).await;
        client.call(&["SET", &grant.key("a"), "1"]).await;
    }
    let conns = "{fence:default}:guard:conns:orders/1";
    until_true("the registrations to be gone", || async {
        let left: Vec<String> = scene.redis.run(&["HKEYS", conns]).await;
        let mut alive = Vec::new();
        for field in left {
            let id = field.rsplit(':').next().unwrap().to_owned();
            let list: String = scene.redis.run(&["CLIENT", "LIST", "ID", &id]).await;
            alive.push(!list.trim().is_empty());
        }
        alive.iter().all(|alive| *alive)
    })
    .await;
}
