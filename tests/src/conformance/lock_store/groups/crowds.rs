//! Many groups at once: no group waits forever, and no lock has two holders.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::checks;
use crate::history::{Granted, History};

/// Records each lease of a group.
fn record(history: &History, asked: &[Acquire], grants: &[Grant], invoked_ns: u64) {
    for (part, grant) in asked.iter().zip(grants) {
        history.granted(Granted {
            lock: part.lock.as_str().to_owned(),
            lease: grant.lease_id,
            token: grant.token.get(),
            ttl_ms: LONG_MS,
            span: history.since(invoked_ns),
            kept_ns: None,
            released_ns: None,
        });
    }
}

/// Five locks in a circle, five tasks that need two neighbours each, hundreds of meals: no
/// deadlock, no starvation, no fork in two hands.
pub async fn philosophers_never_starve(store: &Store) {
    let forks: Arc<Vec<AtomicBool>> = Arc::new((0..5).map(|_| AtomicBool::new(false)).collect());
    let history = Arc::new(History::new());
    let tasks = (0..5_usize).map(|seat| {
        let store = store.clone();
        let forks = forks.clone();
        let history = history.clone();
        tokio::spawn(async move {
            // Each takes its own fork first: the order in which plain locks run into a circle.
            let mine = [seat, (seat + 1) % 5];
            let locks = mine.map(|fork| format!("fork/{fork}"));
            for _ in 0..60 {
                let asked = parts(LONG_MS, &[&locks[0], &locks[1]]);
                let invoked_ns = history.now_ns();
                let grants = store.acquire_all(asked.clone()).await.expect("both forks in time");
                record(&history, &asked, &grants, invoked_ns);
                for fork in mine {
                    assert!(!forks[fork].swap(true, Ordering::SeqCst), "fork {fork} in two hands");
                }
                tokio::task::yield_now().await;
                for fork in mine {
                    assert!(forks[fork].swap(false, Ordering::SeqCst));
                }
                history.releasing(asked[0].lease_id);
                release_all(&store, &asked).await;
            }
        })
    });
    for philosopher in tasks.collect::<Vec<_>>() {
        tokio::time::timeout(4 * crate::wait::patience(), philosopher)
            .await
            .expect("no deadlock")
            .unwrap();
    }
    let grants = history.grants();
    assert_eq!(grants.len(), 600);
    for fork in 0..5 {
        let lock = format!("fork/{fork}");
        let own: Vec<_> = grants.iter().filter(|grant| grant.lock == lock).cloned().collect();
        checks::tokens_rise(&own).unwrap();
        assert_eq!(checks::overlaps(&own), Vec::<String>::new());
    }
}

/// Groups of all sizes, readers, writers and some who give up, on four locks: everybody gets
/// through or is refused, and nothing is left in the end.
pub async fn groups_and_single_waiters_get_on(store: &Store) {
    let rounds = Arc::new(AtomicU64::new(0));
    let inside: Arc<Vec<AtomicBool>> = Arc::new((0..4).map(|_| AtomicBool::new(false)).collect());
    let tasks = (0..8_usize).map(|task| {
        let store = store.clone();
        let rounds = rounds.clone();
        let inside = inside.clone();
        tokio::spawn(async move {
            for round in 0..15_usize {
                let first = (task + round) % 4;
                let count = 1 + (task * 7 + round * 3) % 4;
                let own: Vec<usize> = (0..count).map(|step| (first + step) % 4).collect();
                let locks: Vec<String> = own.iter().map(|lock| format!("mixed/{lock}")).collect();
                let locks: Vec<&str> = locks.iter().map(String::as_str).collect();
                let impatient = (task + round) % 5 == 0;
                let asked = parts(if impatient { 1 } else { LONG_MS }, &locks);
                let outcome = match count {
                    1 => store.acquire(asked[0].clone()).await.map(|grant| vec![grant]),
                    _ => store.acquire_all(asked.clone()).await,
                };
                if outcome.is_err() && impatient {
                    continue;
                }
                outcome.expect("a grant in time");
                for lock in &own {
                    assert!(!inside[*lock].swap(true, Ordering::SeqCst), "two in mixed/{lock}");
                }
                tokio::task::yield_now().await;
                for lock in &own {
                    assert!(inside[*lock].swap(false, Ordering::SeqCst));
                }
                release_all(&store, &asked).await;
                rounds.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        tokio::time::timeout(4 * crate::wait::patience(), task)
            .await
            .expect("no deadlock")
            .unwrap();
    }
    assert!(rounds.load(Ordering::SeqCst) >= 90);
    for lock in 0..4 {
        let shown = store.show(&name(&format!("mixed/{lock}"))).await.unwrap();
        assert_eq!((shown.lease_count, shown.queue_length), (0, 0));
    }
}
