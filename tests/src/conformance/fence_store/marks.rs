//! The mark: what raises it, what meets it.

use fenced_store::stores::contract::FenceQuery;

use super::*;

/// The first token that a lock ever sees is its mark, however large.
pub async fn the_first_token_makes_the_mark(store: &Store) {
    assert_eq!(mark_of(store, "first").await, None);
    let effect = applied(store, fence("first", 33), put("first", "a")).await;
    assert_eq!(effect, Effect::Stored { created: true });
    assert_eq!(mark_of(store, "first").await, Some(mark(33, 33)));
    assert_eq!(text_at(store, "first").await.as_deref(), Some("a"));
}

/// The same token of the same lease is admitted again and again.
pub async fn the_holder_of_the_mark_continues(store: &Store) {
    for body in ["a", "b", "c"] {
        applied(store, fence("continues", 5), put("continues", body)).await;
        assert_eq!(text_at(store, "continues").await.as_deref(), Some(body));
    }
    applied(store, fence("continues", 6), put("continues", "d")).await;
    assert_eq!(mark_of(store, "continues").await, Some(mark(6, 6)));
}

/// G1, G2, G6: below the mark nothing is done, whatever is asked.
pub async fn a_stale_token_changes_nothing(store: &Store) {
    applied(store, fence("stale", 34), put("stale", "new")).await;
    let refusal = FenceOutcome::Stale { mark: mark(34, 34) };
    for token in [1, 33] {
        for operation in [put("stale", "old"), delete("stale"), get("stale"), get("absent")] {
            let outcome = store.apply(Some(fence("stale", token)), operation).await.unwrap();
            assert_eq!(outcome, refusal);
        }
        assert_eq!(store.seal(fence("stale", token)).await.unwrap(), refusal);
    }
    // The lease of the mark does not help a lower token.
    let same_lease = Fence { lock: lock("stale"), presented: mark(33, 34) };
    assert_eq!(store.apply(Some(same_lease), put("stale", "old")).await.unwrap(), refusal);
    assert_eq!(text_at(store, "stale").await.as_deref(), Some("new"));
    assert_eq!(mark_of(store, "stale").await, Some(mark(34, 34)));
}

/// G3, G6: the mark's number from another lease is refused.
pub async fn a_collision_changes_nothing(store: &Store) {
    applied(store, fence("collision", 7), put("collision", "mine")).await;
    let other = || Fence { lock: lock("collision"), presented: mark(7, 99) };
    let refusal = FenceOutcome::Collision { mark: mark(7, 7) };
    for operation in [put("collision", "theirs"), delete("collision"), get("collision")] {
        assert_eq!(store.apply(Some(other()), operation).await.unwrap(), refusal);
    }
    assert_eq!(store.seal(other()).await.unwrap(), refusal);
    assert_eq!(text_at(store, "collision").await.as_deref(), Some("mine"));
    assert_eq!(mark_of(store, "collision").await, Some(mark(7, 7)));
}

/// G2: a new holder that has read can no longer be overtaken, also where it read nothing.
pub async fn reads_raise_the_mark(store: &Store) {
    applied(store, fence("reads", 1), put("reads", "a")).await;
    let found = applied(store, fence("reads", 2), get("reads")).await;
    assert!(matches!(found, Effect::Found(_)), "{found:?}");
    let late = store.apply(Some(fence("reads", 1)), put("reads", "late")).await.unwrap();
    assert_eq!(late, FenceOutcome::Stale { mark: mark(2, 2) });
    assert_eq!(applied(store, fence("reads", 3), get("reads/none")).await, Effect::Absent);
    let late = store.apply(Some(fence("reads", 2)), put("reads", "late")).await.unwrap();
    assert_eq!(late, FenceOutcome::Stale { mark: mark(3, 3) });
    assert_eq!(text_at(store, "reads").await.as_deref(), Some("a"));
}

/// A delete is a write; the mark outlives the object (G4).
pub async fn deletes_raise_the_mark(store: &Store) {
    applied(store, fence("deletes", 1), put("deletes", "a")).await;
    assert_eq!(applied(store, fence("deletes", 2), delete("deletes")).await, Effect::Deleted);
    assert_eq!(mark_of(store, "deletes").await, Some(mark(2, 2)));
    let late = store.apply(Some(fence("deletes", 1)), put("deletes", "late")).await.unwrap();
    assert_eq!(late, FenceOutcome::Stale { mark: mark(2, 2) });
    assert_eq!(text_at(store, "deletes").await, None);
}

/// A seal raises the mark and touches no data; a repeat of it succeeds.
pub async fn seals_raise_the_mark_alone(store: &Store) {
    applied(store, fence("seals", 1), put("seals", "a")).await;
    for _ in 0..2 {
        let outcome = store.seal(fence("seals", 9)).await.unwrap();
        let sealed = Token::new(9).ok();
        assert_eq!(outcome, FenceOutcome::Applied { effect: Effect::Sealed, mark: sealed });
    }
    let late = store.apply(Some(fence("seals", 8)), put("seals", "late")).await.unwrap();
    assert_eq!(late, FenceOutcome::Stale { mark: mark(9, 9) });
    assert_eq!(text_at(store, "seals").await.as_deref(), Some("a"));
    store.seal(fence("seals/never-written", 3)).await.unwrap();
    assert_eq!(mark_of(store, "seals/never-written").await, Some(mark(3, 3)));
}

/// The mark belongs to the lock: what one key saw counts for the others.
pub async fn one_lock_covers_many_keys(store: &Store) {
    applied(store, fence("covers", 4), put("covers/a", "a")).await;
    applied(store, fence("covers", 5), put("covers/b", "b")).await;
    let late = store.apply(Some(fence("covers", 4)), put("covers/a", "late")).await.unwrap();
    assert_eq!(late, FenceOutcome::Stale { mark: mark(5, 5) });
    assert_eq!(text_at(store, "covers/a").await.as_deref(), Some("a"));
}

/// A high mark of one lock says nothing about another, also where names begin alike.
pub async fn locks_do_not_touch_each_other(store: &Store) {
    applied(store, fence("apart", 100), put("apart", "a")).await;
    for other in ["apart/b", "apar", "apart.", "apart:b", "apartb"] {
        applied(store, fence(other, 1), put(other, "b")).await;
        assert_eq!(mark_of(store, other).await, Some(mark(1, 1)));
    }
    assert_eq!(mark_of(store, "apart").await, Some(mark(100, 100)));
}

/// Fifteen digits are compared exactly, and as numbers: 9 is below 10.
pub async fn the_largest_tokens_are_exact(store: &Store) {
    for (low, high) in [(9, 10), (Token::MAX - 1, Token::MAX), (99_999, 100_000)] {
        let name = format!("exact/{low}");
        applied(store, fence(&name, low), put(&name, "low")).await;
        applied(store, fence(&name, high), put(&name, "high")).await;
        let late = store.apply(Some(fence(&name, low)), put(&name, "late")).await.unwrap();
        assert_eq!(late, FenceOutcome::Stale { mark: mark(high, high) });
        assert_eq!(mark_of(store, &name).await, Some(mark(high, high)));
    }
}

/// `list` gives every fence of a prefix once, in order, whatever the page size.
pub async fn fences_are_listed_in_pages(store: &Store) {
    let mut names: Vec<String> = (0..6).map(|number| format!("listed/{number}")).collect();
    names.push("listed/0/inner".to_owned());
    names.sort();
    for name in names.iter().rev().map(String::as_str).chain(["liste", "listed", "listedz"]) {
        store.seal(fence(name, 3)).await.unwrap();
    }
    for limit in [1, 3, 7, 100] {
        let mut seen: Vec<String> = Vec::new();
        let mut after = None;
        loop {
            let query = FenceQuery { prefix: "listed/".to_owned(), after, limit };
            let page = store.list(query).await.unwrap();
            assert!(page.fences.len() <= limit && page.fences.iter().all(|f| f.1 == mark(3, 3)));
            seen.extend(page.fences.iter().map(|(name, _)| name.as_str().to_owned()));
            after = page.fences.last().map(|(name, _)| name.clone());
            if !page.more || seen.len() > names.len() {
                break;
            }
        }
        assert_eq!(seen, names, "pages of {limit}");
    }
}

/// Called with 0, 1, 2… on one store that is closed and opened again between: each round finds
/// what the one before left (G4).
pub async fn reopened(store: &Store, round: u64) {
    let before = (round > 0).then(|| mark(10 + round, 10 + round));
    assert_eq!(mark_of(store, "reopened").await, before);
    if let Some(before) = before {
        let kept = text_at(store, "reopened").await;
        assert_eq!(kept, Some(format!("round {}", round - 1)));
        let late = store.apply(Some(fence("reopened", 9 + round)), put("reopened", "late")).await;
        assert_eq!(late.unwrap(), FenceOutcome::Stale { mark: before });
        assert_eq!(store.highest_mark().await.unwrap(), Some(before.token));
    }
    // What was named in an earlier round is a repeat in this one.
    let named = put("reopened/named", "named");
    let once = Once::new(Some(&lock("reopened")), "named", &named);
    let outcome = store.apply_once(Some(fence("reopened", 11 + round)), named, Some(once)).await;
    let is_repeat = matches!(outcome.unwrap(), FenceOutcome::Repeated { .. });
    assert_eq!(is_repeat, round > 0);
    let body = format!("round {round}");
    applied(store, fence("reopened", 11 + round), put("reopened", &body)).await;
}
