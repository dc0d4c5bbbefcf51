//! `--after-loss`: grants wait for leases that Redis may have lost.

mod hand_over;
mod keys;
mod servers;

use std::sync::Arc;

use fence_protocol::Ttl;
use fence_tests::checks::{overlaps, tokens_rise};
use fence_tests::history::{Granted, History};
use fence_tests::key_file::session_id;
use fence_tests::redis_server::Redis;
use fence_tests::wait::{until, until_true};
use lock_server::engines::loss::{AfterLoss, LossOptions};
use lock_server::engines::options::StoreOptions;
use lock_server::store::{
    Acquire, Grant, LockStore, Mode, NewSession, Revoke, StoreError, Takeover,
};
use service_kit::Kit;

use super::LATE_MS;
use super::kinds::{LASTING, name, request};

pub(super) type Store = Arc<dyn LockStore>;

/// Longer than every lease of these tests: what waits so long is granted by something else.
const PATIENT_MS: u64 = 60_000;

async fn server_at(url: &str, after_loss: AfterLoss) -> Store {
    let loss = LossOptions { after_loss, ..LossOptions::default() };
    let options = StoreOptions { loss, liveness: LASTING, ..fence_tests::store_options::patient() };
    let url = url.parse().unwrap();
    lock_server::engines::open(&url, &options, &Kit::new("loss")).await.unwrap()
}

async fn server(redis: &Redis) -> Store {
    server_at(&redis.url(), AfterLoss::Wait).await
}

fn new_session(ttl_ms: u64) -> NewSession {
    let owner = request("a", 100, 0).owner;
    let ttl = Ttl::from_ms(ttl_ms).unwrap();
    NewSession { session_id: session_id(), owner, ttl, metadata: None, principal: None }
}

/// Returns the rest of the pause in milliseconds.
fn left(outcome: Result<Grant, StoreError>) -> u64 {
    match outcome {
        Err(StoreError::Paused { left_ms }) => left_ms,
        other => panic!("not paused: {other:?}"),
    }
}

/// Exists while no lease may begin.
const PAUSE: &str = "{fence:default}:paused-for";
/// Until when leases may live.
const LIVES: &str = "{fence:default}:lives-until";

/// Until when Redis lets no lease begin, 0 for no pause, and what its clock shows; ms.
pub(super) async fn pause(redis: &Redis) -> (u64, u64) {
    let until: i64 = redis.run(&["PEXPIRETIME", PAUSE]).await;
    let (seconds, micros): (u64, u64) = redis.run(&["TIME"]).await;
    (u64::try_from(until).unwrap_or(0), seconds * 1_000 + micros / 1_000)
}

/// Begins a pause of so many milliseconds, as a server would.
pub(super) async fn begin_pause(redis: &Redis, ms: u64) {
    let ms = ms.to_string();
    let _: () = redis.run(&["SET", PAUSE, &ms, "PX", &ms]).await;
}

/// The memory of Redis is gone; the next caller begins a new lineage.
async fn forget(redis: &Redis) {
    let _: () = redis.run(&["FLUSHALL"]).await;
}

/// A new lineage, but every lease is still there.
async fn doubt(redis: &Redis) {
    let _: u64 = redis.run(&["DEL", "{fence:default}:lineage"]).await;
}

/// The holder of a lock that Redis has forgotten believes in its lease until its time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_holder_is_waited_for() {
    let redis = Redis::start().await;
    let history = History::new();
    let store = server(&redis).await;
    let ask = async |ttl_ms, wait_ms| {
        let invoked_ns = history.now_ns();
        let grant = store.acquire(request("a", ttl_ms, wait_ms)).await?;
        history.granted(Granted {
            lock: "a".to_owned(),
            lease: grant.lease_id,
            token: grant.token.get(),
            ttl_ms,
            span: history.since(invoked_ns),
            released_ns: None,
            kept_ns: None,
        });
        Ok::<Grant, StoreError>(grant)
    };
    ask(8_000, 0).await.unwrap();
    forget(&redis).await;
    let left_ms = left(ask(8_000, 0).await);
    assert!((1..=8_000 + LATE_MS).contains(&left_ms), "{left_ms}");
    // A caller that can wait is granted as soon as the pause is over, and one that retries is too.
    let (waited, asked) = tokio::join!(
        ask(4_000, PATIENT_MS),
        until("a grant", || async { ask(4_000, 0).await.ok() })
    );
    assert_ne!(waited.unwrap().token, asked.token);
    let grants = history.grants();
    assert_eq!(grants.len(), 3);
    assert_eq!(overlaps(&grants), Vec::<String>::new());
    assert_eq!(tokens_rise(&grants), Ok(()));
}

/// `grant` does not wait: the forgotten holder and the next one believe at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_grant_no_caller_waits() {
    let redis = Redis::start().await;
    let store = server_at(&redis.url(), AfterLoss::Grant).await;
    let forgotten = store.acquire(request("a", 60_000, 0)).await.unwrap();
    forget(&redis).await;
    let next = store.acquire(request("a", 60_000, 0)).await.unwrap();
    assert!(next.token > forgotten.token);
    assert_eq!(pause(&redis).await.0, 0);
}

/// A Redis that is new, and one that an operator vouches for, have nothing to wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_start_does_not_wait() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    store.acquire(request("a", 60_000, 0)).await.unwrap();
    assert_eq!(pause(&redis).await.0, 0);

    let redis = Redis::start().await;
    let init = ["init", "--fresh", "--store", &redis.url()];
    assert_eq!(fence_tests::process::run("lock-server", &init).await.code, 0);
    let store = server(&redis).await;
    assert_eq!(store.acquire(request("a", 60_000, 0)).await.unwrap().token.get(), 1);
    assert_eq!(pause(&redis).await.0, 0);
}

/// A Redis that has restarted may have lost leases. Who vouches for it begins no lineage, which
/// would have been one without the wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_vouches_for_a_redis_in_use_ends_no_wait() {
    let redis = Redis::start().await;
    server(&redis).await.acquire(request("a", 60_000, 0)).await.unwrap();
    let _: u64 = redis.run(&["HSET", "{fence:default}:meta", "run_id", "before"]).await;
    let init = ["init", "--fresh", "--store", &redis.url()];
    for lost in ["none", "{fence:default}:lineage", "{fence:default}:token"] {
        let _: u64 = redis.run(&["DEL", lost]).await;
        let said = fence_tests::process::run("lock-server", &init).await;
        assert!(said.code == 1 && said.stderr.contains("is in use"), "{lost}: {said:?}");
    }
    left(server(&redis).await.acquire(request("b", 100, 0)).await);
    assert!(pause(&redis).await.0 > 0);
}

/// A lease of the past holds no grant up, however long it was: only leases that may still live
/// count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended_is_not_waited_for() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    store.acquire(request("a", 10_000, 0)).await.unwrap();
    until_true("word of the lease", || async { redis.run::<u64>(&["EXISTS", LIVES]).await == 1 })
        .await;
    until_true("the word to be forgotten", || async {
        redis.run::<u64>(&["EXISTS", LIVES]).await == 0
    })
    .await;
    forget(&redis).await;
    // The server believes what Redis said from the moment on in which it read it, which is later.
    let outcome = until("the end of the lease by the server's clock", || async {
        match store.acquire(request("b", 60_000, 0)).await {
            Err(StoreError::Paused { left_ms: ..=LATE_MS }) => None,
            outcome => Some(outcome),
        }
    })
    .await;
    outcome.unwrap();
    assert_eq!(pause(&redis).await.0, 0);
}

/// Times that were only asked for hold no grant up: neither a waiter's, nor that of a request that
/// was refused, nor a lock-delay of either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_only_asked_for_is_not_waited_for() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    store.acquire(request("a", 20_000, 0)).await.unwrap();
    let wish = |wait_ms| Acquire { lock_delay_ms: 200_000, ..request("a", 600_000, wait_ms) };
    let outcome = store.acquire(wish(0)).await;
    assert!(matches!(outcome, Err(StoreError::Held { .. })), "{outcome:?}");
    let own = store.clone();
    let asked = wish(PATIENT_MS);
    let waiting = tokio::spawn(async move { own.acquire(asked).await });
    super::kinds::queue_of(&store, "a", 1).await;
    // One that is granted afterwards is where a delay would be counted in.
    store.acquire(request("b", 20_000, 0)).await.unwrap();
    doubt(&redis).await;
    let left_ms = left(store.acquire(request("c", 100, 0)).await);
    assert!((1_000..=20_000 + LATE_MS).contains(&left_ms), "{left_ms}");
    waiting.abort();
}

/// A lease that has a lock-delay is waited for with it, and what is granted when it is over is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_delay_is_waited_for_with_its_lease() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let delayed = Acquire { lock_delay_ms: 10_000, ..request("a", 6_000, 0) };
    store.acquire(delayed).await.unwrap();
    doubt(&redis).await;
    let left_ms = left(store.acquire(request("c", 100, 0)).await);
    assert!((8_000..=16_000 + LATE_MS).contains(&left_ms), "{left_ms}");
    until("the pause to be over", || async { store.acquire(request("d", 100, 0)).await.ok() })
        .await;
    until_true("the lease and its delay to be over", || async {
        redis.run::<u64>(&["EXISTS", LIVES]).await == 0
    })
    .await;
    store.acquire(request("e", 6_000, 0)).await.unwrap();
    doubt(&redis).await;
    let left_ms = left(store.acquire(request("f", 100, 0)).await);
    assert!(left_ms <= 6_000 + LATE_MS, "{left_ms}");
}

/// A session's locks live as long as it does, so its time counts as a lease's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_session_is_waited_for() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    store.create_session(new_session(10_000)).await.unwrap();
    forget(&redis).await;
    let left_ms = left(store.acquire(request("a", 100, 0)).await);
    assert!((1_000..=10_000 + LATE_MS).contains(&left_ms), "{left_ms}");
}

/// A lease that lives continues to live in a pause; a new one waits, in whatever way it is asked
/// for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_leases_continue_and_new_ones_wait() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let exclusive = request("x", 60_000, 0);
    let shared = |wait_ms| Acquire { mode: Mode::Shared, ..request("s", 60_000, wait_ms) };
    let permit = || Acquire { mode: Mode::Permit { size: 3 }, ..request("p", 60_000, 0) };
    let held = store.acquire(exclusive.clone()).await.unwrap();
    store.acquire(shared(0)).await.unwrap();
    store.acquire(permit()).await.unwrap();
    doubt(&redis).await;

    assert_eq!(store.acquire(exclusive.clone()).await.unwrap().token, held.token);
    assert_eq!(store.renew(&name("x"), held.lease_id, None).await.unwrap().token, held.token);
    for new in [request("free", 100, 0), shared(0), permit()] {
        assert!(left(store.acquire(new).await) > 50_000);
    }
    // There is room, but another caller waits for it already.
    let own = store.clone();
    let asked = shared(PATIENT_MS);
    let waiting = tokio::spawn(async move { own.acquire(asked).await });
    super::kinds::queue_of(&store, "s", 1).await;
    let outcome = store.acquire(shared(0)).await;
    assert!(matches!(outcome, Err(StoreError::Held { .. })), "{outcome:?}");
    waiting.abort();
    // A lock that is held is still reported with its holder.
    let outcome = store.acquire(request("x", 100, 0)).await;
    assert!(matches!(outcome, Err(StoreError::Held { .. })), "{outcome:?}");
    let takeover = Takeover::Of(held.lease_id);
    assert!(left(store.acquire(Acquire { takeover, ..request("x", 100, 0) }).await) > 50_000);
    let one = request("g/1", 100, 0);
    let two = Acquire { lock: name("g/2"), ..one.clone() };
    let outcome = store.acquire_all(vec![one, two]).await;
    let Err(StoreError::Part { refusal, .. }) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(*refusal, StoreError::Paused { .. }), "{refusal:?}");
    // A caller whose patience ends in the pause learns of the pause, and leaves nothing behind.
    assert!(left(store.acquire(request("free", 100, 300)).await) > 50_000);
    assert_eq!(store.show(&name("free")).await.unwrap().queue_length, 0);
    store.release(&name("x"), held.lease_id).await.unwrap();
    store.revoke(&name("p"), Revoke::default()).await.unwrap();
}
