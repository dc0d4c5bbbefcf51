//! The stream of events, on every store, and between servers.

use std::time::Duration;

use fence_protocol::Code;
use fence_protocol::wire::event::{EventKind, ExplainedLock};
use fence_tests::api::Locks;
use fence_tests::event_stream::EventStream;
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Setup};
use fence_tests::wait::{soon, until};
use serde_json::json;
use tokio::time::{Instant, sleep};

use EventKind::{
    Dropped, Expired, Gap, Granted, Left, Lineage, Queued, Refused, Released, Revoked,
    SessionBegun, SessionClosed, SessionEnded, Superseded,
};

async fn explained(locks: &Locks, lock: &str) -> ExplainedLock {
    locks.0.get(&format!("/v1/locks/{lock}")).await.expect(200).read()
}

/// One story with every way in which a lease can end.
async fn story(locks: &Locks, brief_ms: u64) {
    let mut stream = EventStream::open(&locks.0, "", "").await;

    let id = lease_id();
    let ask = json!({"lease_id": id, "owner": "one", "ttl_ms": 60_000});
    let first = locks.acquire("a", ask.clone()).await.lease();
    locks.acquire("a", ask).await.lease();
    locks.release("a", id).await.expect(200);
    let granted = stream.next().await;
    assert_eq!((granted.kind, granted.token), (Granted, Some(first.token)));
    assert_eq!(granted.owner.unwrap().as_str(), "one");
    let released = stream.next().await;
    assert_eq!((released.kind, released.lease_id), (Released, Some(id)), "the repeat is no event");
    assert_eq!(released.owner.unwrap().as_str(), "one");

    locks.grant("b", brief_ms).await;
    assert_eq!(stream.kinds(2).await, [Granted, Expired]);

    locks.grant("c", 60_000).await;
    locks.revoke("c", "the host burns").await.expect(200);
    assert_eq!(stream.next().await.kind, Granted);
    let revoked = stream.next().await;
    assert_eq!((revoked.kind, revoked.text.as_deref()), (Revoked, Some("the host burns")));

    let own = |incarnation: &str| json!({"owner": "me", "incarnation": incarnation, "takeover": true, "ttl_ms": 60_000});
    let old = locks.acquire("d", own("1")).await.lease();
    locks.acquire("d", own("2")).await.lease();
    assert_eq!(stream.kinds(2).await, [Granted, Granted]);
    let superseded = stream.next().await;
    assert_eq!((superseded.kind, superseded.token), (Superseded, Some(old.token)));

    let session = json!({"owner": "me", "ttl_ms": 60_000});
    let session = locks.0.post("/v1/sessions", &session).await.expect(200).json();
    let session = session["session_id"].as_str().unwrap().to_owned();
    locks.acquire("e", json!({"session_id": session})).await.lease();
    let path = format!("/v1/sessions/{session}");
    locks.0.send(http::Method::DELETE, &path, &[], "").await.expect(200);
    assert_eq!(stream.kinds(4).await, [SessionBegun, Granted, SessionClosed, SessionEnded]);
}

#[tokio::test(start_paused = true)]
async fn every_end_is_an_event_on_memory() {
    story(&super::memory().await.locks(), 15_000).await;
}

/// Events of other locks are no sign of life for a reader of a quiet one.
#[tokio::test(start_paused = true)]
async fn a_reader_of_a_quiet_lock_is_kept_alive() {
    for between in [Duration::from_millis(3), Duration::from_secs(1)] {
        let server = super::memory().await;
        let locks = server.locks();
        let mut stream = EventStream::open(&locks.0, "?lock=a", "").await;
        let others = async {
            for number in 0_u64.. {
                sleep(between).await;
                locks.grant(&format!("b/{}", number % 50), 60_000).await;
                locks.revoke(&format!("b/{}", number % 50), "the next one").await.expect(200);
            }
        };
        let either = async {
            tokio::select! {
                () = others => {}
                () = stream.comment() => {}
            }
        };
        soon("a comment", either).await;
    }
}

/// A reader gets the first event at once, also where another lock had one before, and together what
/// comes in the milliseconds after it.
#[tokio::test(start_paused = true)]
async fn events_that_soon_follow_others_gather() {
    const GATHERING: Duration = Duration::from_millis(5);
    let server = super::memory().await;
    let locks = server.locks();
    let mut stream = EventStream::open(&locks.0, "?lock=a", "").await;
    locks.grant("b", 60_000).await;
    let begin = Instant::now();
    let grant = async {
        sleep(GATHERING * 4).await;
        locks.grant("a", 60_000).await
    };
    let (granted, lease) = tokio::join!(stream.next(), grant);
    assert_eq!(granted.kind, Granted);
    let first = begin.elapsed();
    assert!((GATHERING * 4..GATHERING * 5).contains(&first), "{first:?}");
    locks.release("a", lease.lease_id).await.expect(200);
    let again = async {
        sleep(GATHERING / 2).await;
        locks.grant("a", 60_000).await
    };
    let (released, _) = tokio::join!(stream.next(), again);
    assert_eq!(released.kind, Released);
    let second = begin.elapsed() - first;
    assert!((GATHERING..GATHERING * 2).contains(&second), "{second:?}");
    assert_eq!(stream.next().await.kind, Granted);
    assert_eq!(begin.elapsed() - first, second, "it came with the release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_end_is_an_event_on_embedded() {
    let data = DataDir::new();
    let server = Setup::lock_server(&data.store()).in_process().await;
    story(&server.locks(), 3_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_end_is_an_event_on_redis() {
    let redis = Redis::start().await;
    let server = Setup::lock_server(&redis.url()).in_process().await;
    story(&server.locks(), 3_000).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_that_come_and_leave_are_events() {
    let server = super::memory().await;
    let locks = server.locks();
    let first = locks.grant("q/1", 60_000).await;
    let mut stream = EventStream::open(&server, "?prefix=q/", "").await;
    let mut one = EventStream::open(&server, "?lock=q/1", "").await;
    locks.grant("other", 60_000).await;
    locks.grant("q/1/2", 60_000).await;
    assert_eq!(stream.next().await.kind, Granted, "of q/1/2");
    let ask = json!({"wait_ms": 10_000, "owner": "impatient"});
    locks.acquire("q/1", ask).await.problem(Code::LockHeld);
    assert_eq!(stream.kinds(2).await, [Queued, Left], "and nothing of the other lock");
    assert_eq!(one.kinds(2).await, [Queued, Left], "and nothing of the locks below it");
    let own = locks.clone();
    let waiting = tokio::spawn(async move {
        own.acquire("q/1", json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await.lease()
    });
    assert_eq!(stream.next().await.kind, Queued);
    locks.release("q/1", first.lease_id).await.expect(200);
    soon("the grant", waiting).await.unwrap();
    // The two answers leave at the same time.
    let mut kinds = stream.kinds(2).await;
    kinds.sort_by_key(|kind| *kind == Granted);
    assert_eq!(kinds, [Released, Granted], "a grant is reported in place of leaving");
}

#[tokio::test]
async fn a_stream_is_resumed_where_it_broke() {
    let server = super::memory().await;
    let locks = server.locks();
    let mut stream = EventStream::open(&server, "", "").await;
    let begin = stream.last_id.clone();
    let mut tokens = Vec::new();
    for n in 0..6 {
        tokens.push(locks.grant(&format!("r/{n}"), 60_000).await.token);
    }
    for token in &tokens[..3] {
        assert_eq!(stream.next().await.token, Some(*token));
    }
    let mut resumed = EventStream::open(&server, "", &stream.last_id).await;
    for token in &tokens[3..] {
        assert_eq!(resumed.next().await.token, Some(*token));
    }
    let mut whole = EventStream::open(&server, "", &begin).await;
    assert_eq!(whole.next().await.token, Some(tokens[0]));
}

/// Events that are forgotten, or were sent in another life of the server, are a gap and never
/// silence.
#[tokio::test]
async fn what_is_not_remembered_is_a_gap() {
    let server = Setup::lock_server("memory:").args(&["--event-history", "4"]).in_process().await;
    let locks = server.locks();
    let begin = EventStream::open(&server, "", "").await.last_id;
    let mut tokens = Vec::new();
    for n in 0..6 {
        tokens.push(locks.grant(&format!("g/{n}"), 60_000).await.token);
    }
    for seen in [begin.as_str(), "1-1"] {
        let mut stream = EventStream::open(&server, "?prefix=g/", seen).await;
        assert_eq!(stream.next().await.kind, Gap, "{seen}");
        assert_eq!(stream.next().await.token, Some(tokens[2]), "{seen}");
    }
}

/// A page that opens after an incident shows what there was: of the newest events of all locks
/// those under its prefix.
#[tokio::test]
async fn a_stream_may_begin_with_the_newest_events() {
    let server = super::memory().await;
    let locks = server.locks();
    let first = locks.grant("a/1", 60_000).await;
    locks.grant("b", 60_000).await;
    let last = locks.grant("a/2", 60_000).await;
    let mut all = EventStream::open(&server, "?recent=1000", "").await;
    assert_eq!(all.kinds(3).await, [Granted; 3]);
    let mut under = EventStream::open(&server, "?recent=2&prefix=a/", "").await;
    assert_eq!(under.next().await.token, Some(last.token));
    locks.release("a/1", first.lease_id).await.expect(200);
    assert_eq!(under.next().await.kind, Released);
    let resumed = EventStream::open(&server, "?recent=1000", &under.last_id).await;
    assert_eq!(resumed.last_id, under.last_id);
    locks.0.get("/v1/events?recent=1001").await.problem(Code::InvalidRequest);
}

/// A reader that takes nothing gets a marker and is cut, and no other reader notices.
#[tokio::test]
async fn a_slow_reader_is_cut_with_a_marker() {
    let server = Setup::lock_server("memory:").args(&["--event-history", "64"]).in_process().await;
    let locks = server.locks();
    let mut slow = EventStream::open(&server, "", "").await;
    // More than the server holds for a reader.
    let refusal = json!({"lock": "s".repeat(256), "token": 7, "lease_id": lease_id(), "mark": 9,
                         "operation": "o".repeat(256), "owner": "w".repeat(256)});
    let report = json!({"refusals": vec![refusal; 64]});
    for _ in 0..10 {
        locks.0.post("/v1/refusals", &report).await.expect(200);
    }
    let mut last = None;
    while let Some(event) = soon("the end of the stream", slow.next_or_end()).await {
        last = Some(event.kind);
    }
    assert_eq!(last, Some(Dropped));
    assert_eq!(server.metric("fencepost_lock_event_readers_cut_total").await, 1);
    let mut resumed = EventStream::open(&server, "", &slow.last_id).await;
    assert_eq!(resumed.next().await.kind, Gap);
}

#[tokio::test]
async fn bad_input_is_refused_with_the_value() {
    let server =
        Setup::lock_server("memory:").args(&["--max-event-readers", "1"]).in_process().await;
    let api = server.locks().0;
    for bad in ["?prefix=a%20b", "?prefix=%C3%A4", "?colour=red", "?lock=a//b", "?lock=a&prefix=a"]
    {
        api.get(&format!("/v1/events{bad}")).await.problem(Code::InvalidRequest);
    }
    for bad in ["x", "", "1", "-1-1", "1-1-1"] {
        let headers = [("last-event-id", bad)];
        let reply = api.send(http::Method::GET, "/v1/events", &headers, "").await;
        reply.problem(Code::InvalidRequest);
    }
    let reader = EventStream::open(&server, "", "").await;
    api.get("/v1/events").await.problem(Code::LimitReached);
    drop(reader);
    let off = Setup::lock_server("memory:").args(&["--event-history", "0"]).in_process().await;
    off.locks().0.get("/v1/events").await.problem(Code::NotOffered);
    assert!(explained(&off.locks(), "a").await.recent.events.is_empty());
    let report = json!({"refusals": []});
    off.locks().0.post("/v1/refusals", &report).await.problem(Code::NotOffered);
    off.locks().0.get("/v1/locks/a?lease_id=x").await.problem(Code::InvalidRequest);
}

#[tokio::test]
async fn reported_refusals_are_explained() {
    let server = super::memory().await;
    let locks = server.locks();
    let mine = lease_id();
    let refusal = |n: u64| {
        let lease_id = if n == 7 { mine } else { lease_id() };
        json!({"lock": "a", "token": n, "lease_id": lease_id, "mark": 99,
               "operation": "PUT a: stale-token", "owner": "late", "ms_ago": n})
    };
    let report = json!({"refusals": [refusal(7), refusal(8)], "dropped": 3});
    assert_eq!(locks.0.post("/v1/refusals", &report).await.expect(200).json()["taken"], 2);
    let recent = explained(&locks, "a").await.recent;
    let tokens: Vec<_> = recent.events.iter().map(|event| event.token.unwrap().get()).collect();
    assert_eq!(tokens, [8, 7], "newest first");
    assert_eq!(recent.refusals, recent.events);
    let newest = &recent.events[0];
    assert_eq!((newest.kind, newest.mark.unwrap().get()), (Refused, 99));
    assert_eq!((newest.late_ms, newest.happened_ms_ago()), (Some(8), newest.ms_ago + 8));
    assert_eq!(recent.gap.unwrap().missed, Some(3));
    // What else happens to the lock pushes out no refusal, and one may ask for one's own.
    for _ in 0..30 {
        let lease = locks.grant("a", 60_000).await;
        locks.release("a", lease.lease_id).await.expect(200);
    }
    let recent = explained(&locks, "a").await.recent;
    assert_eq!((recent.events.len(), recent.refusals.len()), (50, 2));
    let own = explained(&locks, &format!("a?lease_id={mine}")).await.recent;
    assert_eq!((own.events.len(), own.refusals.len()), (1, 1));
    assert_eq!(own.refusals[0].lease_id, Some(mine));
    let many: Vec<_> = (1..=65).map(refusal).collect();
    locks.0.post("/v1/refusals", &json!({"refusals": many})).await.problem(Code::InvalidRequest);
    let odd = json!({"refusals": [{"lock": "a"}]});
    locks.0.post("/v1/refusals", &odd).await.problem(Code::InvalidRequest);
}

/// An event at one server is sent by another too, once, and a stream may move between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_before_one_redis_send_the_same_events() {
    let redis = Redis::start().await;
    let setup = Setup::lock_server(&redis.url());
    let one = setup.in_process().await;
    let two = setup.in_process().await;
    let mut at_two = EventStream::open(&two, "", "").await;
    let id = lease_id();
    let ask = json!({"lease_id": id, "ttl_ms": 60_000});
    let lease = one.locks().acquire("a", ask.clone()).await.lease();
    two.locks().acquire("a", ask).await.lease();
    let granted = at_two.next().await;
    assert_eq!((granted.kind, granted.token), (Granted, Some(lease.token)));
    let after_grant = at_two.last_id.clone();
    one.locks().grant("b", 3_000).await;
    assert_eq!(at_two.kinds(2).await, [Granted, Expired], "the repeat at two is no event");
    one.locks().release("a", id).await.expect(200);
    assert_eq!(at_two.next().await.kind, Released);
    // Resumed at the other one, and at one that started later.
    let three = setup.in_process().await;
    for server in [&one, &three] {
        let mut moved = EventStream::open(server, "", &after_grant).await;
        assert_eq!(moved.kinds(3).await, [Granted, Expired, Released]);
        assert_eq!(moved.last_id, at_two.last_id);
    }
}

/// The server that granted is dead: another one sends the expiry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_servers_expiries_are_sent_by_another() {
    let redis = Redis::start().await;
    let setup = Setup::lock_server(&redis.url());
    let mut one = setup.start().await;
    let two = setup.start().await;
    let mut at_two = EventStream::open(&two.base, "", "").await;
    one.locks().grant("a", 3_000).await;
    assert_eq!(at_two.next().await.kind, Granted);
    one.process.kill();
    assert_eq!(at_two.next().await.kind, Expired);
}

/// Redis is emptied: the servers say that their memory has a hole, and go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_is_a_gap_and_a_lineage() {
    let redis = Redis::start().await;
    let server =
        Setup::lock_server(&redis.url()).args(&["--after-loss", "grant"]).in_process().await;
    let locks = server.locks();
    let mut stream = EventStream::open(&server, "", "").await;
    locks.grant("a", 60_000).await;
    assert_eq!(stream.next().await.kind, Granted);
    let _: String = redis.run(&["FLUSHALL"]).await;
    // With an id: an attempt of unknown outcome is repeated, and is no second grant.
    let ask = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    let token = until("a grant of the new lineage", || async {
        let reply = locks.acquire("c", ask.clone()).await;
        (reply.status == 200).then(|| reply.lease().token)
    })
    .await;
    let mut kinds = Vec::new();
    while !(kinds.contains(&Gap) && kinds.contains(&Lineage) && kinds.contains(&Granted)) {
        let event = stream.next().await;
        if event.kind == Granted {
            assert_eq!(event.token, Some(token));
        }
        kinds.push(event.kind);
    }
}
