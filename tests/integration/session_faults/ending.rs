//! The end of a session is torn apart: what clears it away dies between two of its parts.

use fence_protocol::wire::lock::{LeaseReply, LockPage};
use fence_protocol::{Code, SessionId};
use fence_tests::api::Locks;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{TTL_MS, bonds, has_ended, hold_all, sessions, until_nothing_is_left};

/// More than one part of any end.
const LEASES: usize = 700;
/// Short, so that a test sees what is left after it, and longer than one that looks for it takes.
const RETENTION: [&str; 4] = ["--ended-retention", "2s", "--liveness", "500ms"];

/// Server without the pause after a loss: these tests are about what sessions leave behind.
fn lock_server(store: &str) -> Setup {
    Setup::lock_server(store).args(&RETENTION).args(&["--after-loss", "grant"])
}

/// A session that has ended in Redis, while none of its leases is cleared away.
struct HalfEnded {
    redis: Redis,
    /// Its replies are swallowed since the end was asked for.
    server: Server,
    session: SessionId,
    leases: Vec<LeaseReply>,
    /// Locks whose records name the session still.
    uncleared: Vec<String>,
    _proxy: FaultProxy,
}

impl HalfEnded {
    /// The server that granted the leases dies, and another one, which knows of none of them, ends
    /// the session.
    async fn with_leases(leases: usize) -> Self {
        let redis = Redis::start().await;
        let mut holder = lock_server(&redis.url()).start().await;
        let session = sessions(&holder.locks()).begin("worker", TTL_MS).await.session_id;
        let leases = hold_all(&holder.locks(), session, "half", leases).await;
        holder.process.kill();
        let proxy = FaultProxy::before(&redis.address()).await;
        let server = lock_server(&format!("redis://{}", proxy.address()));
        let server = server.args(&["--store-timeout", "8s"]).start().await;
        proxy.set(Fault::DropReplies);
        let ended = sessions(&server.locks()).end(session).await.expect("an answer");
        ended.problem(Code::OutcomeUnknown);
        assert!(has_ended(&redis, session).await, "the session has not ended");
        let uncleared = bonds(&redis, session).await;
        assert_eq!(uncleared.len(), leases.len());
        Self { redis, server, session, leases, uncleared, _proxy: proxy }
    }

    /// Whatever a client asks of a lock that is not cleared away, its lease has ended.
    async fn seen_by(&self, locks: &Locks) {
        let highest = self.leases.iter().map(|lease| lease.token).max().unwrap();
        for (turn, lock) in self.uncleared.iter().enumerate() {
            let lease = self.leases.iter().find(|lease| lease.lock.as_str() == lock).unwrap();
            match turn % 6 {
                0 => {
                    let shown = locks.show(lock).await;
                    assert!(shown.holder.is_none(), "{lock} is held by the ended session");
                }
                1 => session_ended(locks.renew(lock, lease.lease_id).await),
                2 => session_ended(locks.release(lock, lease.lease_id).await),
                3 => {
                    let owner = json!({"owner": "worker", "takeover_of": lease.lease_id});
                    assert!(locks.acquire(lock, owner).await.lease().token > highest, "{lock}");
                }
                4 => assert!(locks.grant(lock, TTL_MS).await.token > highest, "{lock}"),
                // No client asks for it before it is listed.
                _ => {}
            }
        }
        let path = "/v1/locks?prefix=half/&limit=1000";
        let page: LockPage = locks.0.get(path).await.expect(200).read();
        for line in page.locks {
            assert!(
                line.holder.as_ref().is_some_and(|holder| holder.token > highest),
                "{} is listed for the ended session",
                line.lock
            );
        }
        let one = self.leases[0].lock.as_str();
        let ask = json!({"session_id": self.session, "owner": "worker"});
        let refused = locks.acquire(one, ask).await;
        assert!(matches!(refused.status, 404 | 410), "{refused:?}");
        let beat = sessions(locks).heartbeat(self.session).await.expect("an answer");
        assert!(matches!(beat.status, 404 | 410), "{beat:?}");
    }

    async fn until_nothing_is_left(&self, locks: &Locks) {
        for (turn, lock) in self.uncleared.iter().enumerate() {
            if [3, 4].contains(&(turn % 6)) {
                locks.revoke(lock, "the test is over").await;
            }
        }
        until_nothing_is_left(&self.redis).await;
    }
}

/// Releases a lease, whatever is unreachable meanwhile.
async fn let_go(locks: &Locks, lease: &LeaseReply) {
    until_true("a release", || async {
        let reply = locks.release(lease.lock.as_str(), lease.lease_id).await;
        assert!(matches!(reply.status, 200 | 410 | 503 | 504), "{reply:?}");
        matches!(reply.status, 200 | 410)
    })
    .await;
}

/// The lease is gone. By the time that a busy machine comes to ask, how it ended may be forgotten,
/// which is reported as `expired`.
fn session_ended(reply: fence_tests::api::Reply) {
    let reason = reply.problem(Code::LeaseLost).extension::<String>("reason").unwrap();
    assert!(["session-ended", "expired"].contains(&reason.as_str()), "{reason}");
}

/// Redis dies with the reply to the first part, and comes back with its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_dies_between_two_parts() {
    let mut half = HalfEnded::with_leases(LEASES).await;
    half.redis.kill();
    half.server.process.kill();
    half.redis.start_again().await;
    let left = bonds(&half.redis, half.session).await;
    assert_eq!(left.len(), half.uncleared.len(), "Redis did not keep its data");
    let other = lock_server(&half.redis.url()).start().await;
    half.seen_by(&other.locks()).await;
    half.until_nothing_is_left(&other.locks()).await;
}

/// The lock server dies between two parts, and another one continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_server_dies_between_two_parts() {
    let mut half = HalfEnded::with_leases(LEASES).await;
    half.server.process.kill();
    let other = lock_server(&half.redis.url()).start().await;
    half.seen_by(&other.locks()).await;
    half.until_nothing_is_left(&other.locks()).await;
}

/// No client waits for anything or looks: what the dead server left is cleared away all the same,
/// and soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_server_left_is_cleared_away_unasked() {
    let mut half = HalfEnded::with_leases(LEASES).await;
    half.server.process.kill();
    let _other = lock_server(&half.redis.url()).start().await;
    until_nothing_is_left(&half.redis).await;
}

/// The session is remembered as long as leases name it: its id does not bring them back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_a_half_ended_session_begins_nothing_new() {
    let mut half = HalfEnded::with_leases(LEASES).await;
    half.server.process.kill();
    let record = format!("{{fence:default}}:session:{}", half.session);
    assert_eq!(half.redis.run::<i64>(&["PTTL", &record]).await, -1, "it would be forgotten");
    let args = ["--ended-retention", "60s", "--liveness", "500ms", "--after-loss", "grant"];
    let other = Setup::lock_server(&half.redis.url()).args(&args).start().await;
    let locks = other.locks();
    let ask = json!({"owner": "worker", "ttl_ms": TTL_MS, "session_id": half.session});
    let again = sessions(&locks).try_create(&ask).await.expect("an answer");
    again.problem(Code::SessionEnded);
    half.seen_by(&locks).await;
}

/// Waiters for a lock of the session.
struct Crowd {
    waiting: Vec<(usize, JoinHandle<Result<LeaseReply, String>>)>,
}

impl Crowd {
    /// One waiter for every tenth lock; each lets go what it got.
    async fn at(locks: &Locks, prefix: &str, from: usize) -> Self {
        let mut waiting = Vec::new();
        for number in (from..LEASES).step_by(10) {
            let own = locks.clone();
            let lock = format!("{prefix}/{number}");
            let task = async move {
                // A grant that its server could not claim in time, because Redis was unreachable,
                // is over; its waiter starts over with another id, as the SDK does.
                for _ in 0..5 {
                    let ask = json!({"ttl_ms": TTL_MS, "wait_ms": 60_000});
                    let reply = own.try_acquire(&lock, ask).await?;
                    if !matches!(reply.status, 410 | 503 | 504) {
                        return Ok(reply.lease());
                    }
                }
                Err(format!("{lock}: never granted"))
            };
            waiting.push((number, tokio::spawn(task)));
        }
        for (number, _) in &waiting {
            let lock = format!("{prefix}/{number}");
            until("the waiter to wait", || async {
                (locks.show(&lock).await.queue_length > 0).then_some(())
            })
            .await;
        }
        Self { waiting }
    }

    /// Every one of them is granted, above every token of the session.
    async fn all_granted(self, prefix: &str, above: u64, at: &Locks) -> Vec<u64> {
        let mut tokens = Vec::new();
        for (number, task) in self.waiting {
            let what = format!("the waiter for {prefix}/{number}");
            let lease = soon(&what, task).await.unwrap().unwrap();
            assert!(lease.token.get() > above, "{lease:?} is not above {above}");
            let_go(at, &lease).await;
            tokens.push(lease.token.get());
        }
        tokens
    }
}

/// A session ends while many wait for its locks at two servers, and Redis or the server that clears
/// it away dies at any moment of that.
async fn a_death_in_the_middle(test: &str, redis_dies: bool) {
    let mut seed = Seed::of_run(&format!("session_faults::ending::{test}"));
    for _ in 0..rounds(2, 40) {
        let mut redis = Redis::start().await;
        let (mut one, two) =
            (lock_server(&redis.url()).start().await, lock_server(&redis.url()).start().await);
        let ending = one.locks();
        let locks = two.locks();
        let session = sessions(&ending).begin("worker", TTL_MS).await.session_id;
        let held = hold_all(&ending, session, "torn", LEASES).await;
        let highest = held.iter().map(|lease| lease.token.get()).max().unwrap();
        let crowd = Crowd::at(&locks, "torn", 0).await;
        let asked = tokio::spawn(async move { sessions(&ending).end(session).await });
        until_true("the end to begin", || has_ended(&redis, session)).await;
        tokio::time::sleep(seed.time_ms(0, 12)).await;
        if redis_dies {
            redis.kill();
            redis.start_again().await;
        } else {
            one.process.kill();
        }
        eprintln!("{} bonds were left", bonds(&redis, session).await.len());
        // Whether or not there was a reply: it has ended.
        drop(soon("an answer, or none", asked).await);
        let tokens = crowd.all_granted("torn", highest, &locks).await;
        let mut once = tokens.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), tokens.len(), "a token was given twice: {tokens:?}");
        let path = "/v1/locks?prefix=torn/&limit=1000";
        let page: LockPage = locks.0.get(path).await.expect(200).read();
        assert_eq!(page.locks, [], "a lease of the ended session lives");
        until_nothing_is_left(&redis).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_is_granted_though_redis_dies() {
    a_death_in_the_middle("every_waiter_is_granted_though_redis_dies", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_is_granted_though_the_server_dies() {
    a_death_in_the_middle("every_waiter_is_granted_though_the_server_dies", false).await;
}
