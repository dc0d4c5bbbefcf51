//! Many holders at once: the fence is one step.

use std::collections::BTreeMap;

use super::*;
use crate::checks;
use crate::history::{Action, History, Operation as Event, OperationResult};
use crate::seed::Seed;
use crate::wait::soon;

/// Eight holders write with tokens of their own at once. What is there in the end is the work of
/// the highest that was acknowledged, and no later answer was below an earlier one.
pub async fn racing_tokens_leave_the_highest(store: &Store) {
    race(std::slice::from_ref(store), "race").await;
}

/// The same over several handles on one datastore: two guards are as safe as one.
pub async fn race(stores: &[Store], name: &str) {
    let mut seed = Seed::of_run(name);
    let history = Arc::new(History::new());
    let workers = (0..8_u64).map(|worker| {
        let store = stores[usize::try_from(worker).expect("small") % stores.len()].clone();
        let history = history.clone();
        let seed = seed.fork();
        let name = name.to_owned();
        tokio::spawn(async move { write_on(store, history, seed, name, worker).await })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon("a writer", worker).await.expect("no panic");
    }
    let operations = history.operations();
    checks::nothing_stale(&operations).unwrap();
    let finally = BTreeMap::from([(name.to_owned(), text_at(&stores[0], name).await)]);
    checks::nothing_lost(&operations, &finally).unwrap();
    let highest =
        operations.iter().filter(|op| op.outcome == OperationResult::Applied).map(|op| op.token);
    let mark = mark_of(&stores[0], name).await.expect("a mark").token.get();
    assert_eq!(Some(mark), highest.max(), "the mark is the highest token that was admitted");
}

async fn write_on(store: Store, history: Arc<History>, mut seed: Seed, name: String, worker: u64) {
    for round in 0..25 {
        // Tokens rise slowly and differ between workers, so that neighbours race.
        let token = 1 + worker + 8 * (round / 5 + seed.below(2));
        let value = format!("{worker}/{round}");
        let seals = seed.below(5) == 0;
        let invoked_ns = history.now_ns();
        let fence = fence(&name, token);
        let (action, outcome) = if seals {
            (Action::Raise, store.seal(fence).await)
        } else {
            let write = Action::Write { key: name.clone(), value: value.clone() };
            (write, store.apply(Some(fence), put(&name, &value)).await)
        };
        let outcome = match outcome.expect("the store works") {
            FenceOutcome::Applied { .. } => OperationResult::Applied,
            FenceOutcome::Stale { mark } => {
                assert!(mark.token.get() > token);
                OperationResult::Refused
            }
            other => panic!("{other:?}"),
        };
        let span = history.since(invoked_ns);
        history.operation(Event { lock: name.clone(), token, action, outcome, span });
    }
}

/// One holder, eight writers of it, each adding one under a condition: nothing is lost.
pub async fn racing_tokens_and_conditions_lose_nothing(store: &Store) {
    applied(store, fence("counter", 1), put("counter", "0")).await;
    let workers = (0..8).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..5 {
                add_one(&store).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon("a writer", worker).await.expect("no panic");
    }
    assert_eq!(text_at(store, "counter").await.as_deref(), Some("40"));
}

async fn add_one(store: &Store) {
    loop {
        let found = applied(store, fence("counter", 1), get("counter")).await;
        let Effect::Found(object) = found else { panic!("{found:?}") };
        let text = String::from_utf8(object.body.to_vec()).expect("text");
        let next = text.parse::<u64>().expect("a number") + 1;
        let write = put_if("counter", &next.to_string(), Condition::AnyOf(vec![object.etag]));
        match store.apply(Some(fence("counter", 1)), write).await.expect("the store works") {
            FenceOutcome::Applied { .. } => return,
            FenceOutcome::PreconditionFailed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}
