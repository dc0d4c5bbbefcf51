//! Takeovers at the same moment as each other, and as whatever else may end the lease.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_server::store::{NewSession, NoTakeover};
use tokio::sync::Barrier;

use super::*;
use crate::key_file::session_id;

/// Runs of each race; every run has a lock of its own.
const RACES: usize = 30;
const SUPERVISORS: usize = 5;

fn life(lock: &str, incarnation: &str, takeover: Takeover, wait_ms: u64) -> Acquire {
    Acquire {
        owner: owner("racer"),
        incarnation: Some(owner(incarnation)),
        takeover,
        ..request(lock, LONG_MS, wait_ms)
    }
}

/// Starts it when all of the barrier's parties are there.
fn together(store: &Store, barrier: &Arc<Barrier>, request: Acquire) -> Waiting {
    let store = store.clone();
    let barrier = barrier.clone();
    tokio::spawn(async move {
        barrier.wait().await;
        store.acquire(request).await
    })
}

/// Every lease that the lock remembers ended once, in the order of the tokens.
async fn one_end_each(store: &Store, lock: &str) -> Vec<(LeaseId, EndReason)> {
    let shown = store.show(&name(lock)).await.unwrap();
    let mut tokens: Vec<Token> = shown.history.iter().filter_map(|ended| ended.token).collect();
    tokens.reverse();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{lock}: {:?}", shown.history);
    shown.history.iter().map(|ended| (ended.lease_id, ended.reason)).collect()
}

/// Several saw the same process die. One of them takes its lock; the others get the new holder.
pub async fn one_of_many_supervisors_takes_over(store: &Store) {
    for race in 0..RACES {
        let lock = format!("supervisors/{race}");
        let dead = life(&lock, "boot 1", Takeover::Never, 0);
        let old = store.acquire(dead.clone()).await.unwrap();
        let barrier = Arc::new(Barrier::new(SUPERVISORS));
        let asked: Vec<Acquire> = (0..SUPERVISORS)
            .map(|number| life(&lock, &number.to_string(), Takeover::Of(dead.lease_id), 0))
            .collect();
        let races: Vec<Waiting> =
            asked.iter().map(|asked| together(store, &barrier, asked.clone())).collect();
        let mut won = None;
        let mut refused = Vec::new();
        for race in races {
            match soon("a supervisor's answer", race).await.unwrap() {
                Ok(grant) => assert!(won.replace(grant).is_none(), "{lock} was granted twice"),
                Err(StoreError::Held { holder, .. }) => refused.push(holder),
                Err(other) => panic!("{lock}: {other:?}"),
            }
        }
        let won = won.expect("one took over");
        assert!(won.token > old.token);
        assert!(refused.iter().all(|holder| holder.token == won.token), "{lock}: {refused:?}");
        assert_eq!(
            one_end_each(store, &lock).await,
            [(dead.lease_id, EndReason::Superseded)],
            "{lock}"
        );
        // Retried, as after a lost reply: the winner has its grant, the others have none.
        for again in asked {
            let winner = again.lease_id == won.lease_id;
            match store.acquire(again).await {
                Ok(grant) => assert!(winner && grant.token == won.token, "{grant:?}"),
                Err(error) => assert!(!winner, "{lock}: the winner lost: {error:?}"),
            }
        }
    }
}

/// A supervisor that lost the race for the dead lease and waits is granted in its turn, once.
pub async fn supervisors_that_wait_are_granted_in_turn(store: &Store) {
    let dead = life("turns-of-many", "boot 1", Takeover::Never, 0);
    let mut last = store.acquire(dead.clone()).await.unwrap();
    let barrier = Arc::new(Barrier::new(SUPERVISORS));
    let asked = |number: usize| {
        life("turns-of-many", &number.to_string(), Takeover::Of(dead.lease_id), LONG_MS)
    };
    let mut races: Vec<Waiting> =
        (0..SUPERVISORS).map(|number| together(store, &barrier, asked(number))).collect();
    let mut seen = vec![last.token];
    while !races.is_empty() {
        let grant = soon("the next supervisor", async {
            loop {
                if let Some(at) = races.iter().position(JoinHandle::is_finished) {
                    return races.swap_remove(at).await.unwrap().unwrap();
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        assert!(grant.token > last.token, "{seen:?}, then {grant:?}");
        seen.push(grant.token);
        assert_eq!(released(store, "turns-of-many", grant.lease_id).await, grant.token);
        last = grant;
    }
    until_free(store, "turns-of-many").await;
    let ends = one_end_each(store, "turns-of-many").await;
    let superseded = ends.iter().filter(|(_, reason)| *reason == EndReason::Superseded).count();
    assert_eq!((ends.len(), superseded), (1 + SUPERVISORS, 1), "{ends:?}");
}

/// The process was not dead: it releases in the moment in which its lock is taken over. Whichever
/// comes first, the lease ends once and its heir has the lock before any waiter, or waits.
pub async fn a_takeover_races_a_release(store: &Store) {
    for race in 0..RACES {
        let lock = format!("race-release/{race}");
        let first = life(&lock, "boot 1", Takeover::Never, 0);
        let old = store.acquire(first.clone()).await.unwrap();
        let other = enqueue(store, request(&lock, LONG_MS, LONG_MS)).await;
        let barrier = Arc::new(Barrier::new(2));
        let by = [Takeover::EarlierSelf, Takeover::Of(first.lease_id)][race % 2];
        let heir = together(store, &barrier, life(&lock, "boot 2", by, 0));
        let own = store.clone();
        let gate = barrier.clone();
        let id = first.clone();
        let releasing = tokio::spawn(async move {
            gate.wait().await;
            own.release(&id.lock, id.lease_id).await
        });
        let let_go = soon("the release", releasing).await.unwrap();
        let heir = soon("the takeover", heir).await.unwrap();
        let first_end = match (&let_go, &heir) {
            (Err(error), Ok(grant)) => {
                assert_eq!(
                    *error,
                    StoreError::Lost { reason: EndReason::Superseded, why: None, is_known: true }
                );
                assert!(grant.token > old.token && !other.is_finished(), "{lock}");
                assert_eq!(released(store, &lock, grant.lease_id).await, grant.token);
                EndReason::Superseded
            }
            // The lock went to the one who waited. It is not the heir's to take.
            (
                Ok(ended),
                Err(
                    StoreError::Held { .. }
                    | StoreError::TakeoverRefused { why: NoTakeover::OtherOwner, .. },
                ),
            ) => {
                assert_eq!(ended.token, old.token);
                EndReason::Released
            }
            other => panic!("{lock}: {other:?}"),
        };
        let next = granted(other).await;
        assert!(next.token > old.token);
        let ends = one_end_each(store, &lock).await;
        assert!(ends.contains(&(first.lease_id, first_end)), "{lock}: {ends:?}");
        released(store, &lock, next.lease_id).await;
    }
}

/// The lease runs out around the moment in which it is taken over: it has ended one way or the
/// other, and its heir has the lock either way.
pub async fn a_takeover_races_an_expiry(store: &Store) {
    let mut ends = Vec::new();
    let mut races = Vec::new();
    for race in 0..RACES {
        let tries = AtomicUsize::new(0);
        // A store may roll back a grant whose time had passed before it could reply.
        let (lock, first, old) = until("a grant that was in time", || async {
            let lock = format!("race-expiry/{race}/{}", tries.fetch_add(1, Ordering::Relaxed));
            let first = Acquire {
                ttl: Ttl::from_ms(SHORT_MS).unwrap(),
                ..life(&lock, "boot 1", Takeover::Never, 0)
            };
            match store.acquire(first.clone()).await {
                Ok(old) => Some((lock, first, old)),
                Err(StoreError::Lost { reason: EndReason::Expired, .. }) => None,
                Err(error) if is_late(&error) => None,
                Err(other) => panic!("{lock}: {other:?}"),
            }
        })
        .await;
        let own = store.clone();
        let by = [Takeover::EarlierSelf, Takeover::Of(first.lease_id)];
        let after_ms = SHORT_MS - 10 + 20 * race as u64 / RACES as u64;
        races.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            let heir = own.acquire(life(&lock, "boot 2", by[race % 2], 0)).await;
            (lock, first, old, heir)
        }));
    }
    for race in races {
        let (lock, first, old, heir) = soon("a takeover", race).await.unwrap();
        let heir = heir.unwrap_or_else(|error| panic!("{lock}: {error:?}"));
        assert!(heir.token > old.token && heir.remaining_ms > SHORT_MS, "{lock}: {heir:?}");
        let late = lost(store.renew(&first.lock, first.lease_id, None).await);
        let ended = one_end_each(store, &lock).await;
        assert_eq!(ended, [(first.lease_id, late)], "{lock}");
        assert!([EndReason::Expired, EndReason::Superseded].contains(&late), "{lock}: {late:?}");
        released(store, &lock, heir.lease_id).await;
        ends.push(late);
    }
    let expired = ends.iter().filter(|end| **end == EndReason::Expired).count();
    eprintln!("{expired} of {RACES} leases expired before they were taken over");
}

/// The session of the dead process ends in the moment in which a supervisor takes its lock: the
/// heir, who is no part of the session, has the lock either way and keeps it.
pub async fn a_takeover_races_the_end_of_the_session(store: &Store) {
    for race in 0..RACES {
        let lock = format!("race-session/{race}");
        let session = NewSession {
            session_id: session_id(),
            owner: owner("racer"),
            ttl: Ttl::from_ms(LONG_MS).unwrap(),
            metadata: None,
            principal: None,
        };
        let session = store.create_session(session).await.unwrap().session_id;
        let first = Acquire { session: Some(session), ..life(&lock, "boot 1", Takeover::Never, 0) };
        let old = store.acquire(first.clone()).await.unwrap();
        let barrier = Arc::new(Barrier::new(2));
        let by = [Takeover::EarlierSelf, Takeover::Of(first.lease_id)][race % 2];
        let heir = together(store, &barrier, life(&lock, "boot 2", by, 0));
        let own = store.clone();
        let gate = barrier.clone();
        let ending = tokio::spawn(async move {
            gate.wait().await;
            own.end_session(session).await
        });
        let ended = soon("the end of the session", ending).await.unwrap().unwrap();
        let heir = soon("the takeover", heir).await.unwrap().unwrap();
        assert!(heir.token > old.token);
        let reason = lost(store.renew(&first.lock, first.lease_id, None).await);
        let count = usize::from(reason == EndReason::SessionEnded);
        assert_eq!(ended.lease_count, count, "{lock}: {reason:?}");
        assert_eq!(one_end_each(store, &lock).await, [(first.lease_id, reason)], "{lock}");
        let same = store.renew(&name(&lock), heir.lease_id, None).await.unwrap();
        assert_eq!(same.token, heir.token, "the heir lost what was never the session's");
        released(store, &lock, heir.lease_id).await;
    }
}

/// A takeover that is repeated while its first copy is on its way, many times over, is one grant.
pub async fn a_takeover_in_many_copies_is_one_grant(store: &Store) {
    for race in 0..RACES {
        let lock = format!("copies/{race}");
        let first = life(&lock, "boot 1", Takeover::Never, 0);
        store.acquire(first.clone()).await.unwrap();
        let barrier = Arc::new(Barrier::new(4));
        let by = [Takeover::EarlierSelf, Takeover::Of(first.lease_id)][race % 2];
        let asked = life(&lock, "boot 2", by, if race % 4 < 2 { 0 } else { LONG_MS });
        let copies: Vec<Waiting> =
            (0..4).map(|_| together(store, &barrier, asked.clone())).collect();
        let mut tokens = Vec::new();
        for copy in copies {
            tokens.push(granted(copy).await.token);
        }
        tokens.dedup();
        assert_eq!(tokens.len(), 1, "{lock}: one id has several grants: {tokens:?}");
        assert_eq!(
            one_end_each(store, &lock).await,
            [(first.lease_id, EndReason::Superseded)],
            "{lock}"
        );
        assert_eq!(released(store, &lock, asked.lease_id).await, tokens[0]);
        until_free(store, &lock).await;
        assert_eq!(lost(store.acquire(asked).await), EndReason::Released);
    }
}
