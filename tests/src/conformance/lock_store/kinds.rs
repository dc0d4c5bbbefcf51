//! Shared leases and permits: who may be beside whom, and who waits behind whom.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use fence_protocol::wire::lock::{LeaseMode, LockLine, LockState};
use futures_util::future::join_all;
use lock_server::store::{Kind, Limits, ListQuery};

use super::*;
use crate::checks;
use crate::history::{Granted, History};

/// Each has a token of its own, one above the other; the lock is free when the last one ends.
pub async fn shared_leases_live_side_by_side(store: &Store) {
    let mut last = 0;
    let mut leases = Vec::new();
    for _ in 0..3 {
        let asked = shared("side", LONG_MS, 0);
        let grant = take(store, asked.clone()).await;
        assert!(grant.token.get() > last, "{} after {last}", grant.token);
        assert_eq!(grant.mode, Mode::Shared);
        last = grant.token.get();
        let again = take(store, asked).await;
        assert_eq!((again.token, again.mode), (grant.token, Mode::Shared), "a repeat is no fourth");
        leases.push(grant);
    }
    assert_eq!(store.show(&name("side")).await.unwrap().lease_count, 3);
    for grant in &leases {
        refused(store, request("side", LONG_MS, 0)).await;
        assert_eq!(released(store, "side", grant.lease_id).await, grant.token);
    }
    let exclusive = take(store, request("side", LONG_MS, 0)).await;
    assert_eq!(exclusive.mode, Mode::Exclusive);
    refused(store, shared("side", LONG_MS, 0)).await;
    refused(store, request("side", LONG_MS, 0)).await;
}

/// A writer waits for the readers that were there, and for none that came after it.
pub async fn a_writer_is_not_overtaken_by_readers(store: &Store) {
    let reader = take(store, shared("writer", LONG_MS, 0)).await;
    let writer = enqueue(store, request("writer", LONG_MS, LONG_MS)).await;
    refused(store, shared("writer", LONG_MS, 0)).await;
    let late = enqueue(store, shared("writer", LONG_MS, LONG_MS)).await;
    assert_eq!(store.show(&name("writer")).await.unwrap().lease_count, 1);
    released(store, "writer", reader.lease_id).await;
    let wrote = granted(writer).await;
    assert!(wrote.token > reader.token);
    assert!(!late.is_finished(), "a reader beside a writer");
    released(store, "writer", wrote.lease_id).await;
    assert!(granted(late).await.token > wrote.token);
}

/// Readers come and go without a moment in which none is there; a writer gets the lock all the
/// same.
pub async fn a_stream_of_readers_starves_no_writer(store: &Store) {
    let done = Arc::new(AtomicBool::new(false));
    let readings = Arc::new(AtomicU64::new(0));
    let readers = (0..4).map(|_| {
        let store = store.clone();
        let done = done.clone();
        let readings = readings.clone();
        tokio::spawn(async move {
            let mut held = take(&store, shared("stream", LONG_MS, LONG_MS)).await;
            while !done.load(Ordering::SeqCst) {
                // The next one is asked for while this one is held, so that they overlap, as far as
                // a writer lets them.
                match store.acquire(shared("stream", LONG_MS, 0)).await {
                    Ok(next) => {
                        released(&store, "stream", held.lease_id).await;
                        held = next;
                    }
                    Err(StoreError::Held { .. }) => {
                        released(&store, "stream", held.lease_id).await;
                        held = take(&store, shared("stream", LONG_MS, LONG_MS)).await;
                    }
                    Err(other) => panic!("{other:?}"),
                }
                readings.fetch_add(1, Ordering::SeqCst);
            }
            released(&store, "stream", held.lease_id).await;
        })
    });
    let readers: Vec<_> = readers.collect();
    for _ in 0..5 {
        let before = readings.load(Ordering::SeqCst);
        until_true("readers to read", || async { readings.load(Ordering::SeqCst) > before + 4 })
            .await;
        let writer = soon("the writer", store.acquire(request("stream", LONG_MS, LONG_MS))).await;
        released(store, "stream", writer.unwrap().lease_id).await;
    }
    done.store(true, Ordering::SeqCst);
    for reader in readers {
        soon("a reader", reader).await.unwrap();
    }
    until_free(store, "stream").await;
}

/// Compatible waiters at the front are granted in one step, and none from behind
/// a writer.
pub async fn readers_are_let_in_together(store: &Store) {
    let first = take(store, request("together", LONG_MS, 0)).await;
    let one = enqueue(store, shared("together", LONG_MS, LONG_MS)).await;
    let two = enqueue(store, shared("together", LONG_MS, LONG_MS)).await;
    let writer = enqueue(store, request("together", LONG_MS, LONG_MS)).await;
    let last = enqueue(store, shared("together", LONG_MS, LONG_MS)).await;
    released(store, "together", first.lease_id).await;
    let shown = store.show(&name("together")).await.unwrap();
    assert_eq!((shown.lease_count, shown.queue_length), (2, 2));
    let one = granted(one).await;
    let two = granted(two).await;
    assert!(first.token < one.token && one.token < two.token);
    released(store, "together", one.lease_id).await;
    assert_eq!(queue_length(store, "together").await, 2, "a writer beside a reader");
    released(store, "together", two.lease_id).await;
    let writer = granted(writer).await;
    assert_eq!(queue_length(store, "together").await, 1);
    released(store, "together", writer.lease_id).await;
    granted(last).await;
}

/// A waiting writer that leaves, for any reason, no longer holds up the readers behind it.
pub async fn a_writer_that_leaves_lets_the_readers_in(store: &Store) {
    let reader = take(store, shared("gone", LONG_MS, 0)).await;
    for way in ["caller", "patience", "release"] {
        let patience = if way == "patience" { 12 * SHORT_MS } else { LONG_MS };
        let asked = request("gone", LONG_MS, patience);
        let writer = enqueue(store, asked.clone()).await;
        let behind = enqueue(store, shared("gone", LONG_MS, LONG_MS)).await;
        match way {
            "caller" => writer.abort(),
            "release" => drop(store.release(&asked.lock, asked.lease_id).await),
            _ => {}
        }
        let behind = granted(behind).await;
        assert!(behind.token > reader.token);
        released(store, "gone", behind.lease_id).await;
    }
    assert_eq!(store.show(&name("gone")).await.unwrap().lease_count, 1);
}

/// L2 for both kinds of lease at once: never a writer beside another holder, and all are granted.
pub async fn readers_and_writers_never_meet(store: &Store) {
    // Readers count up by one, a writer counts down by a thousand.
    let inside = Arc::new(AtomicI64::new(0));
    let history = Arc::new(History::new());
    let workers = (0..9).map(|worker| {
        let store = store.clone();
        let inside = inside.clone();
        let history = history.clone();
        tokio::spawn(async move {
            for _ in 0..12 {
                let (asked, weight) = match worker % 3 {
                    0 => (request("meet", LONG_MS, LONG_MS), -1_000),
                    _ => (shared("meet", LONG_MS, LONG_MS), 1),
                };
                let lease = acquire_recorded(&store, &history, asked).await;
                let before = inside.fetch_add(weight, Ordering::SeqCst);
                let alone = if weight < 0 { before == 0 } else { before >= 0 };
                assert!(alone, "{weight} beside {before}");
                tokio::task::yield_now().await;
                inside.fetch_sub(weight, Ordering::SeqCst);
                released(&store, "meet", lease).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon("a worker", worker).await.unwrap();
    }
    assert_eq!(history.grants().len(), 108);
    checks::tokens_rise(&history.grants()).unwrap();
}

/// Acquires, and records the grant.
pub(super) async fn acquire_recorded(store: &Store, history: &History, asked: Acquire) -> LeaseId {
    let invoked_ns = history.now_ns();
    let lock = asked.lock.as_str().to_owned();
    let grant = store.acquire(asked).await.expect("a grant in time");
    history.granted(Granted {
        lock,
        lease: grant.lease_id,
        token: grant.token.get(),
        ttl_ms: LONG_MS,
        span: history.since(invoked_ns),
        kept_ns: None,
        released_ns: None,
    });
    grant.lease_id
}

/// As many as the store allows, and the next one waits for the first of them to end.
pub async fn shared_leases_are_bounded(store: &Store) {
    let most = Limits::default().shared_per_lock;
    let first = take(store, shared("bounded", LONG_MS, 0)).await;
    let others: Vec<_> = (1..most).collect();
    // Each commit writes all that hold the lock, so they come many at a time.
    for slice in others.chunks(100) {
        join_all(slice.iter().map(|_| take(store, shared("bounded", LONG_MS, 0)))).await;
    }
    refused(store, shared("bounded", LONG_MS, 0)).await;
    let next = enqueue(store, shared("bounded", LONG_MS, LONG_MS)).await;
    let shown = store.show(&name("bounded")).await.unwrap();
    assert_eq!((shown.lease_count, shown.also_held.len()), (most, 100));
    released(store, "bounded", first.lease_id).await;
    granted(next).await;
    let ended = store.revoke(&name("bounded"), Revoke::default()).await.unwrap();
    assert_eq!(ended.len(), most);
}

/// A lease that expires or is renewed says nothing of those beside it.
pub async fn one_of_several_leases_ends_alone(store: &Store) {
    let long = take(store, shared("alone", LONG_MS, 0)).await;
    let short = brief(store, shared("alone", LONG_MS, 0)).await;
    let kept = take(store, shared("alone", LONG_MS / 2, 0)).await;
    let writer = enqueue(store, request("alone", LONG_MS, LONG_MS)).await;
    let longer = Ttl::from_ms(LONG_MS).ok();
    let renewed = store.renew(&name("alone"), kept.lease_id, longer).await.unwrap();
    assert_eq!((renewed.token, renewed.mode), (kept.token, Mode::Shared));
    assert!(renewed.remaining_ms > LONG_MS / 2);
    until_true("the short one to expire", || async {
        store.show(&name("alone")).await.unwrap().lease_count == 2
    })
    .await;
    let late = store.renew(&name("alone"), short.lease_id, None).await;
    assert_eq!(lost(late), EndReason::Expired);
    assert!(!writer.is_finished(), "a writer beside readers");
    released(store, "alone", long.lease_id).await;
    released(store, "alone", kept.lease_id).await;
    granted(writer).await;
    // And an expiry among permits hands that permit on, though others are held.
    take(store, permit("alone/permits", 2, 0)).await;
    let brief = brief(store, permit("alone/permits", 2, 0)).await;
    let next = soon("a permit", store.acquire(permit("alone/permits", 2, LONG_MS))).await.unwrap();
    assert!(next.token > brief.token);
}

/// Of several holders the refusal names the one whose time is over first: that is the one to wait
/// for.
pub async fn the_refusal_names_who_goes_first(store: &Store) {
    take(store, shared("first", LONG_MS, 0)).await;
    let soonest = take(store, shared("first", LONG_MS / 2, 0)).await;
    take(store, shared("first", LONG_MS, 0)).await;
    let holder = refused(store, request("first", LONG_MS, 0)).await;
    assert_eq!(holder.token, soonest.token);
    assert!(holder.expires_in_ms <= LONG_MS / 2);
    released(store, "first", soonest.lease_id).await;
    let holder = refused(store, request("first", LONG_MS, 0)).await;
    assert!(holder.expires_in_ms > LONG_MS / 2);
}

fn kind_of<T: std::fmt::Debug>(outcome: Result<T, StoreError>) -> Kind {
    match outcome {
        Err(StoreError::OtherKind(kind)) => kind,
        other => panic!("expected another kind: {other:?}"),
    }
}

/// One lock is of one kind while it is in use, and a request for another kind changes nothing, also
/// if it would wait.
pub async fn another_kind_is_refused(store: &Store) {
    let three = Mode::Permit { size: 3 };
    let semaphore = Kind::Semaphore { size: 3 };
    for (number, (first, other, kind)) in [
        (Mode::Exclusive, three, Kind::Lock),
        (Mode::Shared, three, Kind::Lock),
        (Mode::Shared, Mode::Permit { size: 1 }, Kind::Lock),
        (three, Mode::Exclusive, semaphore),
        (three, Mode::Shared, semaphore),
        (three, Mode::Permit { size: 2 }, semaphore),
        (three, Mode::Permit { size: 4 }, semaphore),
    ]
    .into_iter()
    .enumerate()
    {
        let lock = format!("kind/{number}");
        let held = take(store, Acquire { mode: first, ..request(&lock, LONG_MS, 0) }).await;
        for wait_ms in [0, LONG_MS] {
            let asked = Acquire { mode: other, ..request(&lock, LONG_MS, wait_ms) };
            let outcome = soon("a refusal at once", store.acquire(asked)).await;
            assert_eq!(kind_of(outcome), kind, "{other:?} beside {first:?}");
        }
        let shown = store.show(&name(&lock)).await.unwrap();
        assert_eq!((shown.lease_count, shown.queue_length), (1, 0));
        assert_eq!(shown.history, Vec::new(), "a refusal was remembered as an end");
        assert_eq!(released(store, &lock, held.lease_id).await, held.token);
        // Idle, it is of no kind.
        take(store, Acquire { mode: other, ..request(&lock, LONG_MS, 0) }).await;
    }
}

/// A waiter keeps the kind of the lock, also after the last holder has gone: a group that waits for
/// another lock too is then alone with its place.
pub async fn a_waiting_kind_is_a_kind(store: &Store) {
    let held = take(store, permit("waiting-kind", 1, 0)).await;
    let waits = enqueue(store, permit("waiting-kind", 1, LONG_MS)).await;
    let elsewhere = take(store, request("waiting-kind/other", LONG_MS, 0)).await;
    let parts = super::groups::parts(LONG_MS, &["waiting-kind", "waiting-kind/other"]);
    let parts = super::groups::with_modes(parts, &[Mode::Permit { size: 1 }, Mode::Exclusive]);
    let group = super::groups::enqueue_all(store, parts).await;
    released(store, "waiting-kind", held.lease_id).await;
    let next = granted(waits).await;
    released(store, "waiting-kind", next.lease_id).await;
    let shown = store.show(&name("waiting-kind")).await.unwrap();
    assert_eq!((shown.state, shown.lease_count, shown.queue_length), (LockState::Free, 0, 1));
    let outcome = store.acquire(request("waiting-kind", LONG_MS, 0)).await;
    assert_eq!(kind_of(outcome), Kind::Semaphore { size: 1 });
    released(store, "waiting-kind/other", elsewhere.lease_id).await;
    super::groups::all_granted(group).await;
}

/// A retry with the same id gets its grant, whatever mode it names now; also a waiter.
pub async fn a_repeat_with_another_mode_is_the_same_grant(store: &Store) {
    let asked = shared("other-mode", LONG_MS, 0);
    let first = take(store, asked.clone()).await;
    for mode in [Mode::Exclusive, Mode::Permit { size: 2 }] {
        let again = take(store, Acquire { mode, ..asked.clone() }).await;
        assert_eq!((again.token, again.mode), (first.token, Mode::Shared));
    }
    assert_eq!(store.show(&asked.lock).await.unwrap().lease_count, 1);
    released(store, "other-mode", first.lease_id).await;
    let late = Acquire { mode: Mode::Permit { size: 2 }, ..asked };
    assert_eq!(lost(store.acquire(late).await), EndReason::Released);
}

/// A takeover ends one exclusive lease; where there is something else, it is an acquire like any
/// other.
pub async fn what_is_shared_is_not_taken_over(store: &Store) {
    let life = |life: &str, mode| Acquire {
        owner: owner("worker"),
        incarnation: Some(owner(life)),
        mode,
        ..request("shared-life", LONG_MS, 0)
    };
    let first = life("boot 1", Mode::Shared);
    let held = take(store, first.clone()).await;
    for takeover in [Takeover::EarlierSelf, Takeover::Of(held.lease_id)] {
        refused(store, Acquire { takeover, ..life("boot 2", Mode::Exclusive) }).await;
    }
    let same = store.renew(&first.lock, held.lease_id, None).await.unwrap();
    assert_eq!(same.token, held.token);
}

/// All of them, the oldest first, with how they share; a listing has one line a lock.
pub async fn several_leases_are_shown_and_listed(store: &Store) {
    let one = take(store, shared("several-shown/a", LONG_MS, 0)).await;
    let two = take(store, shared("several-shown/a", LONG_MS, 0)).await;
    let three = take(store, shared("several-shown/a", LONG_MS, 0)).await;
    let waits = enqueue(store, request("several-shown/a", LONG_MS, LONG_MS)).await;
    let also = enqueue(store, shared("several-shown/a", LONG_MS, LONG_MS)).await;
    released(store, "several-shown/a", two.lease_id).await;
    let shown = store.show(&name("several-shown/a")).await.unwrap();
    assert_eq!((shown.state, shown.lease_count, shown.size), (LockState::Held, 2, None));
    let holder = shown.holder.unwrap();
    assert_eq!((holder.lease_id, holder.mode), (one.lease_id, LeaseMode::Shared));
    let others: Vec<_> = shown.also_held.iter().map(|other| other.lease_id).collect();
    assert_eq!(others, [three.lease_id]);
    assert_eq!(
        (shown.also_held[0].info.token, shown.also_held[0].mode),
        (three.token, LeaseMode::Shared)
    );
    let modes: Vec<_> = shown.queue.iter().map(|waiter| waiter.mode).collect();
    assert_eq!(modes, [LeaseMode::Exclusive, LeaseMode::Shared]);
    let only = take(store, permit("several-shown/b", 4, 0)).await;
    let query =
        ListQuery { prefix: "several-shown/".to_owned(), after: None, limit: 10, owner: None };
    let lines = store.list(query).await.unwrap().locks;
    let token = |line: &LockLine| line.holder.as_ref().unwrap().token;
    let seen: Vec<_> = lines.iter().map(|line| (token(line), line.queue_length)).collect();
    assert_eq!(seen, [(one.token, 2), (only.token, 0)]);
    let kinds: Vec<_> = lines.iter().map(|line| (line.mode, line.lease_count, line.size)).collect();
    assert_eq!(kinds, [(LeaseMode::Shared, 2, None), (LeaseMode::Permit, 1, Some(4))]);
    let permit = store.show(&name("several-shown/b")).await.unwrap();
    assert_eq!((permit.size, permit.holder.unwrap().mode), (Some(4), LeaseMode::Permit));
    waits.abort();
    also.abort();
}
