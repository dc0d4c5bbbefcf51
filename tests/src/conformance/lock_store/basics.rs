//! Grants, refusals, tokens and what can be read.

use std::sync::atomic::{AtomicBool, Ordering};

use fence_protocol::wire::lock::LockState;
use lock_server::store::ListQuery;

use super::*;
use crate::checks;
use crate::history::{Granted, History};

/// L1, one after the other: every grant, of whatever lock, is above all before it.
pub async fn tokens_rise_over_all_locks(store: &Store) {
    let mut last = 0;
    for round in 0..12 {
        let lock = format!("rise/{}", round % 3);
        let grant = grant(store, &lock, LONG_MS).await;
        assert!(grant.token.get() > last, "{} after {last}", grant.token);
        last = grant.token.get();
        assert_eq!(released(store, &lock, grant.lease_id).await, grant.token);
    }
}

/// L3: a repeat, as after a lost reply, learns of the grant that it has already.
pub async fn the_same_id_gets_the_same_grant(store: &Store) {
    let request = request("once", LONG_MS, 0);
    let first = store.acquire(request.clone()).await.unwrap();
    assert!(first.remaining_ms <= LONG_MS);
    // Not beside the first reply: a commit that took long is subtracted there.
    until_true("a repeat to be no renewal, so that time is missing", || async {
        let again = store.acquire(request.clone()).await.unwrap();
        assert_eq!((again.token, again.lease_id), (first.token, first.lease_id));
        again.remaining_ms + 50 <= LONG_MS
    })
    .await;
    let waits = Acquire { wait_ms: 1_000, ..request };
    assert_eq!(store.acquire(waits).await.unwrap().token, first.token);
    assert_eq!(store.show(&name("once")).await.unwrap().queue_length, 0);
}

/// An id that another client uses is refused, and changes nothing.
pub async fn an_id_belongs_to_its_owner(store: &Store) {
    let mine = request("conflict", LONG_MS, 0);
    let held = store.acquire(mine.clone()).await.unwrap();
    let theirs = Acquire { owner: owner("another owner"), ..mine.clone() };
    let refused = store.acquire(theirs).await.unwrap_err();
    assert_eq!(refused, StoreError::IdConflict { owner: mine.owner.clone() });
    assert_eq!(store.acquire(mine).await.unwrap().token, held.token);
}

/// L2, and the holder in the refusal.
pub async fn a_held_lock_is_refused_with_its_holder(store: &Store) {
    let held = grant(store, "held", LONG_MS).await;
    match store.acquire(request("held", LONG_MS, 0)).await.unwrap_err() {
        StoreError::Held { holder, queue_length } => {
            assert_eq!((holder.token, holder.owner), (held.token, held.owner));
            assert!(holder.expires_in_ms > 0 && holder.expires_in_ms <= LONG_MS);
            assert_eq!(queue_length, 0);
        }
        other => panic!("{other:?}"),
    }
}

/// A mark that a guard has seen is below the next token; one that is not news lifts nothing, and
/// leases that are live stay as they are.
pub async fn a_guards_mark_is_exceeded(store: &Store) {
    let held = grant(store, "lifted/held", LONG_MS).await;
    let mark = Token::new(900_000_000_000_000).unwrap();
    store.lift(mark).await.unwrap();
    let first = grant(store, "lifted/a", LONG_MS).await.token;
    assert!(first > mark, "{first} after the mark {mark}");
    store.lift(held.token).await.unwrap();
    store.lift(first).await.unwrap();
    let second = grant(store, "lifted/b", LONG_MS).await.token;
    // Revisions of etcd count what others write too; a counter that was lifted again is far above.
    assert!(second > first && second.get() - first.get() < 1_000_000, "{second} after {first}");
    let renewed = store.renew(&name("lifted/held"), held.lease_id, None).await.unwrap();
    assert_eq!(renewed.token, held.token);
}

/// A floor is above every token that was issued before, whichever lock had it, and not above any
/// later one; leases stay as they are.
pub async fn a_floor_parts_earlier_tokens_from_later_ones(store: &Store) {
    let lock = |number: u32| format!("floor/{number}");
    let mut earlier = Vec::new();
    for number in 0..24 {
        earlier.push(grant(store, &lock(number), LONG_MS).await.token);
    }
    // One lock has used up more of them than the others.
    for _ in 0..30 {
        earlier.push(store.mint(&name(&lock(0))).await.unwrap());
    }
    let floor = store.floor().await.unwrap();
    for token in earlier {
        assert!(token < floor, "{token} below the floor {floor}");
    }
    let again = store.floor().await.unwrap();
    assert!(again >= floor, "{again} after {floor}");
    for number in 0..48 {
        let lock = name(&lock(number));
        let later = match number % 2 {
            0 => store.mint(&lock).await.unwrap(),
            _ => grant(store, &format!("{lock}/later"), LONG_MS).await.token,
        };
        assert!(later >= floor, "{later} of {lock} after the floor {floor}");
    }
}

/// A waiter that times out gets the holder of the lock, and leaves the queue.
pub async fn patience_ends_in_a_refusal(store: &Store) {
    let held = grant(store, "patience", LONG_MS).await;
    let waiting = soon("the end of patience", store.acquire(request("patience", LONG_MS, 50)));
    match waiting.await.unwrap_err() {
        StoreError::Held { holder, .. } => assert_eq!(holder.token, held.token),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.show(&name("patience")).await.unwrap().queue_length, 0);
    released(store, "patience", held.lease_id).await;
    until_free(store, "patience").await;
}

/// The guard's mark reaches the lock's counter: the grant exceeds it, and all later ones do.
pub async fn a_minimum_is_exceeded(store: &Store) {
    let first = grant(store, "minimum", LONG_MS).await;
    let wish = Token::new(first.token.get() + 500).unwrap();
    released(store, "minimum", first.lease_id).await;
    let asked = Acquire { min_token: Some(wish), ..request("minimum", LONG_MS, 0) };
    let lifted = store.acquire(asked).await.unwrap();
    assert!(lifted.token > wish);
    released(store, "minimum", lifted.lease_id).await;
    let next = grant(store, "minimum", LONG_MS).await;
    assert!(next.token > lifted.token);
    released(store, "minimum", next.lease_id).await;
    let low = Acquire { min_token: Token::new(1).ok(), ..request("minimum", LONG_MS, 0) };
    assert!(store.acquire(low).await.unwrap().token > next.token);
}

/// One counter for all locks: a mark that reaches it is exceeded by every later grant.
pub async fn a_minimum_lifts_all_locks(store: &Store) {
    let first = grant(store, "minimum/a", LONG_MS).await.token.get();
    let wish = Token::new(first + 500).unwrap();
    let asked = Acquire { min_token: Some(wish), ..request("minimum/b", LONG_MS, 0) };
    let lifted = store.acquire(asked).await.unwrap().token;
    assert!(lifted > wish);
    assert!(grant(store, "minimum/c", LONG_MS).await.token > lifted);
}

/// A wish that no token can fulfil grants nothing and takes nothing away from others.
pub async fn tokens_run_out_loudly(store: &Store) {
    let wish = Token::new(Token::MAX).ok();
    let asked = Acquire { min_token: wish, ..request("exhausted", LONG_MS, 0) };
    assert_eq!(store.acquire(asked).await.unwrap_err(), StoreError::Exhausted);
    assert_eq!(store.show(&name("exhausted")).await.unwrap().state, LockState::Free);
    grant(store, "exhausted", LONG_MS).await;
}

/// `show` returns the metadata of the holder.
pub async fn what_is_shown_is_what_was_asked(store: &Store) {
    let free = store.show(&name("shown")).await.unwrap();
    assert_eq!((free.state, free.holder, free.queue_length), (LockState::Free, None, 0));
    let metadata = Some(r#"{"job":"nightly","attempt":2}"#.to_owned());
    let asked = Acquire { metadata, owner: owner("Zoë"), ..request("shown", LONG_MS, 0) };
    let grant = store.acquire(asked.clone()).await.unwrap();
    store.renew(&name("shown"), grant.lease_id, None).await.unwrap();
    let waiting = enqueue(store, request("shown", LONG_MS, LONG_MS)).await;
    let shown = store.show(&name("shown")).await.unwrap();
    assert_eq!((shown.state, shown.queue_length), (LockState::Held, 1));
    assert_eq!(shown.queue[0].owner, owner("conformance"));
    let holder = shown.holder.unwrap();
    assert_eq!((holder.lease_id, holder.info.token), (grant.lease_id, grant.token));
    assert_eq!((holder.info.owner, holder.ttl_ms), (asked.owner, LONG_MS));
    assert_eq!(holder.renewals, 1);
    assert_eq!(holder.metadata.unwrap()["job"], "nightly");
    waiting.abort();
}

/// `list` gives every held lock of a prefix once, in order, whatever the page size.
pub async fn pages_are_complete_and_in_order(store: &Store) {
    let mut names: Vec<String> = (0..7).map(|number| format!("pages/{number}")).collect();
    names.push("pages/0/inner".to_owned());
    names.sort();
    for lock in names.iter().rev().map(String::as_str).chain(["page", "pagez"]) {
        grant(store, lock, LONG_MS).await;
    }
    let free = grant(store, "pages/free", LONG_MS).await;
    released(store, "pages/free", free.lease_id).await;
    for limit in [1, 3, 8, 100] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let query = ListQuery { prefix: "pages/".to_owned(), after, limit, owner: None };
            let page = store.list(query).await.unwrap();
            assert!(page.locks.len() <= limit);
            seen.extend(page.locks.iter().map(|line| line.lock.as_str().to_owned()));
            after = page.next_after;
            if after.is_none() || seen.len() > names.len() {
                break;
            }
        }
        assert_eq!(seen, names, "pages of {limit}");
    }
}

/// L1 from many tasks at once.
pub async fn many_tasks_on_many_locks_keep_the_tokens_unique(store: &Store) {
    let history = Arc::new(History::new());
    let workers = (0..8).map(|worker| {
        let store = store.clone();
        let history = history.clone();
        tokio::spawn(async move {
            for round in 0..15 {
                work_once(&store, &history, &format!("many/{worker}/{}", round % 2)).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon("a worker", worker).await.unwrap();
    }
    assert_eq!(history.grants().len(), 120);
    checks::tokens_rise(&history.grants()).unwrap();
}

/// L1 and L2 under contention: everybody gets the lock, never two at once.
pub async fn contenders_never_hold_at_once(store: &Store) {
    let history = Arc::new(History::new());
    let busy = Arc::new(AtomicBool::new(false));
    let workers = (0..8).map(|_| {
        let store = store.clone();
        let history = history.clone();
        let busy = busy.clone();
        tokio::spawn(async move {
            for _ in 0..8 {
                let grant = acquire_recorded(&store, &history, "contended").await;
                assert!(!busy.swap(true, Ordering::SeqCst), "two holders at once");
                tokio::task::yield_now().await;
                assert!(busy.swap(false, Ordering::SeqCst));
                let_go(&store, &history, "contended", grant.lease_id).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon("a worker", worker).await.unwrap();
    }
    assert_eq!(history.grants().len(), 64);
    checks::tokens_rise(&history.grants()).unwrap();
    assert_eq!(checks::overlaps(&history.grants()), Vec::<String>::new());
}

async fn work_once(store: &Store, history: &History, lock: &str) {
    let grant = acquire_recorded(store, history, lock).await;
    let_go(store, history, lock, grant.lease_id).await;
}

async fn acquire_recorded(store: &Store, history: &History, lock: &str) -> Grant {
    let invoked_ns = history.now_ns();
    let grant = store.acquire(request(lock, LONG_MS, LONG_MS)).await.expect("a grant in time");
    history.granted(Granted {
        lock: lock.to_owned(),
        lease: grant.lease_id,
        token: grant.token.get(),
        ttl_ms: LONG_MS,
        span: history.since(invoked_ns),
        released_ns: None,
        kept_ns: None,
    });
    grant
}

async fn let_go(store: &Store, history: &History, lock: &str, lease: LeaseId) {
    history.releasing(lease);
    released(store, lock, lease).await;
}

/// Called with 0, 1, 2… on one store that is closed and opened again between: each round finds
/// what the one before left.
pub async fn reopened(store: &Store, round: u64) {
    if round > 0 {
        super::delays::found(store).await;
    }
    reopened_session(store, round).await;
    let held = name("reopened/held");
    if let Some(holder) = store.show(&held).await.unwrap().holder {
        assert_eq!(holder.renewals, 0, "a restart begins a new count");
        assert_eq!(holder.info.owner.as_str(), (round - 1).to_string());
        let rival = store.release_as(Some("rival"), &held, holder.lease_id).await;
        assert!(matches!(rival, Err(StoreError::OtherPrincipal { .. })), "{rival:?}");
        assert_eq!(released(store, "reopened/held", holder.lease_id).await, holder.info.token);
    } else {
        assert_eq!(round, 0, "a lease was forgotten");
    }
    let before = grant(store, "reopened/other", LONG_MS).await;
    let asked = Acquire {
        owner: owner(&format!("{round}")),
        principal: Some("ci".to_owned()),
        ..request("reopened/held", LONG_MS, 0)
    };
    assert!(store.acquire(asked).await.unwrap().token > before.token);
    released(store, "reopened/other", before.lease_id).await;
    super::delays::left(store).await;
}

/// A session and its leases outlive the process, and so does the end of both.
async fn reopened_session(store: &Store, round: u64) {
    let lock = name("reopened/bound");
    let sessions = store.list_sessions(None, 10).await.unwrap().sessions;
    assert_eq!(sessions.len() as u64, round.min(1), "{sessions:?}");
    if let Some(session) = sessions.first() {
        let holder = store.show(&lock).await.unwrap().holder.expect("a bound lease");
        assert_eq!((holder.session_id, session.lease_count), (Some(session.session_id), 3));
        let beat = store.heartbeat(session.session_id).await.unwrap();
        let before = format!("round.{}", round - 1);
        assert_eq!(beat.principal, Some(before), "whose it is outlives the process too");
        assert!(beat.expires_in_ms > 0 && beat.expires_in_ms <= LONG_MS);
        store.end_session(session.session_id).await.unwrap();
        let late = store.renew(&lock, holder.lease_id, None).await;
        assert_eq!(lost(late), EndReason::SessionEnded);
        let pool = store.show(&name("reopened/bound-pool")).await.unwrap();
        assert_eq!(pool.lease_count, 0, "a permit outlived its session");
    }
    let new = lock_server::store::NewSession {
        session_id: crate::key_file::session_id(),
        owner: owner("conformance"),
        ttl: Ttl::from_ms(LONG_MS).unwrap(),
        metadata: None,
        principal: Some(format!("round.{round}")),
    };
    let session = store.create_session(new).await.unwrap().session_id;
    let bound = Acquire { session: Some(session), ..request("reopened/bound", LONG_MS, 0) };
    store.acquire(bound).await.unwrap();
    for _ in 0..2 {
        let bound = Acquire { session: Some(session), ..permit("reopened/bound-pool", 2, 0) };
        store.acquire(bound).await.unwrap();
    }
}
