//! Grants that replicas must have before the reply: `--wait-replicas`.

use fence_protocol::wire::lock::LeaseReply;
use std::time::Duration;

use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Locks, Reply};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use serde_json::{Value, json};

use super::forged::publish;

/// A master and replicas in step with it.
struct Replicated {
    master: Redis,
    replicas: Vec<Redis>,
}

impl Replicated {
    async fn start(replicas: usize) -> Self {
        // No disk: how fast that is here says nothing of replicas.
        let quick = [("repl-diskless-sync-delay", "0"), ("appendonly", "no")];
        let mut all = Self { master: Redis::with(&quick).await, replicas: Vec::new() };
        let address = all.master.address();
        let (host, port) = address.split_once(':').unwrap();
        for _ in 0..replicas {
            let replica = Redis::with(&quick).await;
            let _: () = replica.run(&["REPLICAOF", host, port]).await;
            all.replicas.push(replica);
        }
        all.are_in_step().await;
        all
    }

    async fn are_in_step(&self) {
        let online = "state=online";
        until_true("the replicas to be in step", || async {
            let info: String = self.master.run(&["INFO", "replication"]).await;
            info.matches(online).count() == self.replicas.len()
        })
        .await;
    }

    /// The first replica acknowledges nothing from now on.
    async fn stop(&self) {
        self.replicas[0].process().pause();
    }

    fn go_on(&self) {
        self.replicas[0].process().resume();
    }

    /// A lock server that waits for so many replicas.
    async fn server(&self, count: usize, timeout: &str) -> Server {
        let count = count.to_string();
        let args = ["--wait-replicas", &count, "--wait-timeout", timeout, "--liveness", "30s"];
        let patient = ["--store-timeout", "10s"];
        Setup::lock_server(&self.master.url()).args(&args).args(&patient).start().await
    }
}

fn request(lease: LeaseId) -> Value {
    json!({"lease_id": lease, "ttl_ms": 60_000, "owner": "me"})
}

/// A grant, once the replicas keep up.
async fn granted(locks: &Locks, lock: &str, lease: LeaseId) -> LeaseReply {
    until("a grant that the replicas have", || async {
        let reply = locks.acquire(lock, request(lease)).await;
        (reply.status == 200).then(|| reply.lease())
    })
    .await
}

/// A request that waits in a task of its own, once it is in the queue.
async fn waiter(
    locks: &Locks,
    lock: &'static str,
    lease: LeaseId,
) -> tokio::task::JoinHandle<Reply> {
    let own = locks.clone();
    let body = json!({"lease_id": lease, "ttl_ms": 60_000, "wait_ms": 60_000, "owner": "waiter"});
    let waiting = tokio::spawn(async move { own.acquire(lock, body).await });
    locks.queue_of(lock, 1).await;
    waiting
}

/// Checks the reply to a caller whose grant was rolled back.
fn was_rolled_back(reply: &Reply, numbers: &str) {
    let problem = reply.problem(Code::StoreUnavailable);
    assert!(problem.detail.contains(numbers), "{}", problem.detail);
    assert!(
        problem.detail.contains("it was rolled back, try again") && problem.retryable,
        "{}",
        problem.detail
    );
}

async fn is_free(locks: &Locks, lock: &str) {
    let state = locks.show(lock).await;
    assert!(state.holder.is_none() && state.history.is_empty(), "{state:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_grant_is_in_every_replica() {
    let redis = Replicated::start(2).await;
    let server = redis.server(2, "10s").await;
    let locks = server.locks();
    for round in 0..20 {
        let lock = format!("a/{round}");
        let lease = locks.grant(&lock, 60_000).await;
        for replica in &redis.replicas {
            let record: Vec<u8> =
                replica.run(&["GET", &format!("{{fence:default}}:lock:{lock}")]).await;
            let mut ids = record.windows(16);
            assert!(ids.any(|id| id == lease.lease_id.uuid().as_bytes()), "{record:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_too_few_replicas_have_is_rolled_back() {
    let redis = Replicated::start(2).await;
    let server = redis.server(2, "1s").await;
    let locks = server.locks();
    let before = granted(&locks, "warm", lease_id()).await;
    redis.stop().await;
    let lease = lease_id();
    was_rolled_back(&soon("503", locks.acquire("a", request(lease))).await, "of 2 replicas");
    is_free(&locks, "a").await;
    let both = json!({"ttl_ms": 60_000, "locks": [{"lock": "b"}, {"lock": "c"}]});
    was_rolled_back(&soon("503", locks.0.post("/v1/acquire", &both)).await, "of 2 replicas");
    is_free(&locks, "b").await;
    is_free(&locks, "c").await;
    // The lease that was granted before continues, and is given back.
    locks.renew("warm", before.lease_id).await.expect(200);
    locks.release("warm", before.lease_id).await.expect(200);
    redis.go_on();
    redis.are_in_step().await;
    // The id was never granted as far as any client knows.
    assert!(granted(&locks, "a", lease).await.token > before.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_replicas_than_there_are_are_never_enough() {
    let redis = Replicated::start(1).await;
    let server = redis.server(2, "100ms").await;
    let locks = server.locks();
    was_rolled_back(&soon("503", locks.acquire("a", request(lease_id()))).await, "of 2 replicas");
    is_free(&locks, "a").await;
}

/// A retry of a grant that replicas have is answered without them; one of a grant that they may
/// lack waits for them, at whichever server it comes in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_is_waited_for_where_replicas_may_lack_the_grant() {
    let redis = Replicated::start(1).await;
    let servers = [redis.server(1, "30s").await, redis.server(1, "1s").await];
    let [locks, others] = [servers[0].locks(), servers[1].locks()];
    let lease = lease_id();
    let first = granted(&locks, "a", lease).await;
    redis.stop().await;
    for locks in [&locks, &others] {
        assert_eq!(locks.acquire("a", request(lease)).await.lease().token, first.token);
    }
    let own = locks.clone();
    let lease = lease_id();
    let asking = tokio::spawn(async move { own.acquire("b", request(lease)).await });
    until_true("the grant to be made", || async { locks.show("b").await.holder.is_some() }).await;
    for is_new_connection in [false, true] {
        if is_new_connection {
            let _: i64 = redis.master.run(&["CLIENT", "KILL", "TYPE", "NORMAL"]).await;
        }
        let reply = until_asked(&others, lease).await;
        let problem = reply.problem(Code::OutcomeUnknown);
        assert!(problem.detail.contains("of 1 replicas"), "{}", problem.detail);
    }
    redis.go_on();
    let outcome = soon("an answer", asking).await.unwrap();
    assert!([200, 503, 504].contains(&outcome.status), "{outcome:?}");
}

/// Asks until the server has its connections to Redis.
async fn until_asked(locks: &Locks, lease: LeaseId) -> Reply {
    until("an answer about the replicas", || async {
        let reply = soon("an answer", locks.acquire("b", request(lease))).await;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        (reply.status == 200 || text.contains("of 1 replicas")).then_some(reply)
    })
    .await
}

/// A waiter gets no reply about a hand-over that the replicas do not have; at the server that hands
/// over, at another one, and for several locks at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_waited_for_and_rolled_back() {
    let redis = Replicated::start(1).await;
    let servers = [redis.server(1, "1s").await, redis.server(1, "1s").await];
    let [here, there] = [servers[0].locks(), servers[1].locks()];
    for (lock, locks) in [("own", &here), ("other", &there)] {
        let held = granted(&here, lock, lease_id()).await;
        let waiting = waiter(locks, lock, lease_id()).await;
        redis.stop().await;
        // A release is not waited for.
        here.release(lock, held.lease_id).await.expect(200);
        was_rolled_back(&soon("503 to the waiter", waiting).await.unwrap(), "of 1 replicas");
        assert!(here.show(lock).await.holder.is_none(), "{lock}");
        redis.go_on();
    }
    let held = granted(&here, "b", lease_id()).await;
    let own = here.clone();
    let both =
        json!({"ttl_ms": 60_000, "wait_ms": 60_000, "locks": [{"lock": "c"}, {"lock": "b"}]});
    let waiting = tokio::spawn(async move { own.0.post("/v1/acquire", &both).await });
    here.queue_of("b", 1).await;
    redis.stop().await;
    here.release("b", held.lease_id).await.expect(200);
    was_rolled_back(&soon("503 to the waiter", waiting).await.unwrap(), "of 1 replicas");
    for lock in ["b", "c"] {
        assert!(here.show(lock).await.holder.is_none(), "{lock}");
    }
}

/// A forged word of a hand-over takes nothing back that was granted, and refuses no waiter, whether
/// the replicas keep up or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_word_takes_nothing_back() {
    let redis = Replicated::start(1).await;
    let server = redis.server(1, "1s").await;
    let locks = server.locks();
    let other = granted(&locks, "other", lease_id()).await;
    granted(&locks, "held", lease_id()).await;
    let waiting = waiter(&locks, "held", lease_id()).await;
    let messages = ["lock:other", "lock:held"].map(str::to_owned);
    for is_stopped in [false, true] {
        if is_stopped {
            redis.stop().await;
        }
        publish(&redis.master, &messages).await;
        // One that is asked for now is rolled back after it.
        if is_stopped {
            was_rolled_back(
                &soon("503", locks.acquire("a", request(lease_id()))).await,
                "of 1 replicas",
            );
        }
        locks.renew("other", other.lease_id).await.expect(200);
        locks.queue_of("held", 1).await;
        assert!(!waiting.is_finished(), "nothing was handed over");
    }
    redis.go_on();
}

/// Neither a renewal nor a repeat reports a grant that replicas lack, and neither keeps it from
/// being rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reply_reports_a_grant_that_is_to_be_rolled_back() {
    let redis = Replicated::start(1).await;
    let servers = [redis.server(1, "20s").await, redis.server(1, "1s").await];
    let [locks, others] = [servers[0].locks(), servers[1].locks()];
    let warm = granted(&locks, "warm", lease_id()).await;
    redis.stop().await;
    // One that replicas have is renewed without them, here and at another server.
    for locks in [&locks, &others] {
        locks.renew("warm", warm.lease_id).await.expect(200);
    }
    let own = locks.clone();
    let lease = lease_id();
    let asking = tokio::spawn(async move { own.acquire("a", request(lease)).await });
    until_true("the grant to be made", || async { locks.show("a").await.holder.is_some() }).await;
    let problem = others.renew("a", lease).await.problem(Code::OutcomeUnknown);
    assert!(problem.detail.contains("of 1 replicas"), "{}", problem.detail);
    let (renewed, repeated) =
        tokio::join!(locks.renew("a", lease), locks.acquire("a", request(lease)));
    assert!([503, 504, 410].contains(&renewed.status), "{renewed:?}");
    assert!([503, 504].contains(&repeated.status), "{repeated:?}");
    was_rolled_back(&soon("503", asking).await.unwrap(), "of 1 replicas");
    redis.go_on();
}

/// With the replica there, waiters are notified as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_that_the_replica_has_is_acknowledged() {
    let redis = Replicated::start(1).await;
    let servers = [redis.server(1, "10s").await, redis.server(1, "10s").await];
    let [here, there] = [servers[0].locks(), servers[1].locks()];
    let mut held = here.grant("a", 60_000).await;
    for locks in [&here, &there, &here] {
        let waiting = waiter(locks, "a", lease_id()).await;
        here.release("a", held.lease_id).await.expect(200);
        let next = soon("the grant", waiting).await.unwrap().lease();
        assert!(next.token > held.token);
        held = next;
    }
}

/// The lease was over before the replicas had it: its client gets 410, and not a lease of no time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_over_before_its_client_has_it_is_lost() {
    let redis = Replicated::start(0).await;
    let proxy = FaultProxy::before(&redis.master.address()).await;
    let replica = Redis::with(&[("appendonly", "no")]).await;
    let host = proxy.address();
    let port = proxy.address();
    let host = host.split_once(':').unwrap().0;
    let port = port.split_once(':').unwrap().1;
    let _: () = replica.run(&["REPLICAOF", host, port]).await;
    let redis = Replicated { replicas: vec![replica], ..redis };
    redis.are_in_step().await;
    let server = redis.server(1, "10s").await;
    let locks = server.locks();
    let held = locks.grant("waited", 60_000).await;
    proxy.set(Fault::Delay(Duration::from_millis(300)));
    for body in [
        json!({"ttl_ms": 100, "lease_id": lease_id()}),
        json!({"ttl_ms": 100}),
        json!({"ttl_ms": 100, "wait_ms": 60_000}),
    ] {
        let reply = soon("410", locks.acquire("a", body)).await;
        let problem = reply.problem(Code::LeaseLost);
        assert_eq!(problem.extension("reason"), Some("expired".to_owned()));
    }
    let own = locks.clone();
    let body = json!({"ttl_ms": 100, "wait_ms": 60_000});
    let waiting = tokio::spawn(async move { own.acquire("waited", body).await });
    locks.queue_of("waited", 1).await;
    locks.release("waited", held.lease_id).await.expect(200);
    soon("410", waiting).await.unwrap().problem(Code::LeaseLost);
    let both = json!({"ttl_ms": 100, "locks": [{"lock": "b"}, {"lock": "c"}]});
    soon("410", locks.0.post("/v1/acquire", &both)).await.problem(Code::LeaseLost);
}

/// A WAIT that blocks its connection blocks no other command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_other_command_waits_for_the_replicas() {
    let redis = Replicated::start(1).await;
    let server = redis.server(1, "30s").await;
    let locks = server.locks();
    let held = locks.grant("held", 60_000).await;
    redis.stop().await;
    let own = locks.clone();
    let blocked = tokio::spawn(async move { own.acquire("a", request(lease_id())).await });
    until_true("the grant to be made", || async { locks.show("a").await.holder.is_some() }).await;
    locks.renew("held", held.lease_id).await.expect(200);
    locks.release("held", held.lease_id).await.expect(200);
    assert!(!blocked.is_finished(), "the replica cannot have it");
    redis.go_on();
    soon("the grant", blocked).await.unwrap().expect(200);
}

/// A grant that comes while a WAIT is on its way is vouched for by the next one, together with all
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_wait_vouches_for_many() {
    let redis = Replicated::start(1).await;
    let server = redis.server(1, "30s").await;
    let locks = server.locks();
    redis.stop().await;
    let names: Vec<String> = (0..30).map(|number| format!("a/{number}")).collect();
    let mut waiting = Vec::new();
    for name in &names {
        let own = locks.clone();
        let name = name.clone();
        waiting.push(tokio::spawn(async move { own.acquire(&name, request(lease_id())).await }));
    }
    for name in &names {
        until_true("the grant to be made", || async { locks.show(name).await.holder.is_some() })
            .await;
    }
    redis.go_on();
    for waiting in waiting {
        soon("the grant", waiting).await.unwrap().expect(200);
    }
    let stats: String = redis.master.run(&["INFO", "commandstats"]).await;
    let wait = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls=")).unwrap();
    let calls: usize = wait.split(',').next().unwrap().parse().unwrap();
    assert!((2..15).contains(&calls), "{calls} for 30 grants");
}

/// Readiness fails while the connection that waits for replicas cannot be made, whatever the other
/// one does: no grant is acknowledged then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_wait_for_replicas_is_not_ready() {
    let redis = Replicated::start(1).await;
    let server = redis.server(1, "10s").await;
    let locks = server.locks();
    let mut own = redis.master.connect().await.unwrap();
    let mut call = async |words: &[&str]| -> String {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut own).await.unwrap()
    };
    let id = loop {
        granted(&locks, &format!("a/{}", lease_id()), lease_id()).await;
        let clients = call(&["CLIENT", "LIST"]).await;
        if let Some(line) = clients.lines().find(|line| line.contains(" cmd=wait ")) {
            break line[3..].split(' ').next().unwrap().to_owned();
        }
    };
    call(&["CONFIG", "SET", "maxclients", "1"]).await;
    let mut kill = redis::cmd("CLIENT");
    let _: u64 = kill.arg(&["KILL", "ID", &id]).query_async(&mut own).await.unwrap();
    until_true("readyz to fail", || async {
        let reply = locks.0.get("/readyz").await;
        reply.status == 503 && String::from_utf8_lossy(&reply.body).contains("replicas")
    })
    .await;
    let mut raise = redis::cmd("CONFIG");
    let _: String = raise.arg(&["SET", "maxclients", "1000"]).query_async(&mut own).await.unwrap();
    until_true("readyz", || async { locks.0.get("/readyz").await.status == 200 }).await;
    granted(&locks, "b", lease_id()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_makes_no_sense_is_refused_at_start() {
    for (store, args, reason) in [
        ("redis://127.0.0.1:1", ["--wait-replicas", "-1"], "\"-1\" is out of range: 0 to 64"),
        ("memory:", ["--wait-replicas", "1"], "this store has none"),
        ("redis://127.0.0.1:1", ["--wait-timeout", "2m"], "at most 1m"),
    ] {
        let said = Setup::lock_server(store).args(&args).refused().await;
        assert_eq!(said.code, 64, "{said:?}");
        assert!(said.stderr.contains(reason), "{}", said.stderr);
    }
}
