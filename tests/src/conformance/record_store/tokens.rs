//! The counter, and the clock.

use fence_protocol::Token;

use super::*;

/// The counter before a batch stands beside each value that the batch wrote. It may jump, and no
/// token is taken twice.
pub async fn tokens_follow_the_counter((store, other): &Servers) {
    let a = lock("a");
    let b = lock("b");
    let (_, start) = store.read(&[]).await.unwrap();
    let groups = vec![
        group(&[(&a, Version::ABSENT)], vec![put(&a, "1")]),
        group(&[(&b, Version::ABSENT)], vec![put(&b, "2")]),
    ];
    let committed = commit(store, Batch { groups, counter: start, tokens: 2, ..Batch::default() });
    let first = committed.await.base;
    assert!(first >= start, "{first} after {start}");
    let (snapshots, counter) = other.read(&[a.clone(), b.clone()]).await.unwrap();
    assert!(counter >= first + 2, "{counter} after {first}");
    assert!(snapshots.iter().all(|found| found.base == first), "{snapshots:?}");
    let second = take(other, 500).await.unwrap().base;
    assert!(second >= counter, "{second} after {counter}");
    let next = group(&[(&a, snapshots[0].version)], vec![put(&a, "1")]);
    let committed =
        commit(store, Batch { groups: vec![next], counter: start, tokens: 1, ..Batch::default() });
    let third = committed.await.base;
    assert!(third >= second + 500, "{third} after {second}");
    assert_eq!(read(other, &a).await.base, third);
    assert_eq!(read(other, &b).await.base, first);
}

/// If the batch that it follows never arrives, or arrives later, its tokens are above those all the
/// same.
pub async fn tokens_are_above_a_batch_under_way((store, other): &Servers) {
    if store.overlap_min(1).is_none() {
        return;
    }
    let (_, start) = store.read(&[]).await.unwrap();
    let follows = Batch { counter: start + 5, ahead: 5, tokens: 2, ..Batch::default() };
    assert_eq!(commit(store, follows).await.base, start + 5);
    let late = Batch { counter: start, tokens: 5, ..Batch::default() };
    assert_eq!(commit(store, late).await.base, start + 7);
    assert_eq!(take(other, 1).await.unwrap().base, start + 12);
}

/// The tokens of a refused group may be lost or not: none is given twice.
pub async fn a_refused_group_takes_no_token_twice((store, _): &Servers) {
    let key = lock("a");
    must_put(store, Version::ABSENT, put(&key, "x")).await;
    let (_, before) = store.read(&[]).await.unwrap();
    let lost = group(&[(&key, Version::ABSENT)], vec![put(&key, "lost")]);
    let lost = commit(store, Batch { groups: vec![lost], tokens: 1, ..Batch::default() }).await;
    assert!(lost.groups[0].is_err());
    let next = take(store, 1).await.unwrap().base;
    assert!(next >= before, "{next} after {before}");
}

/// Then none is given, and nothing else is changed; what takes none succeeds. An engine may keep
/// the last ones to itself.
pub async fn tokens_are_used_up((store, _): &Servers) {
    let lifted = store.lift(Token::new(Token::MAX - 2).unwrap()).await;
    assert!(matches!(lifted, Ok(()) | Err(StoreError::Exhausted)), "{lifted:?}");
    let key = lock("a");
    let wish = |tokens| {
        let groups = vec![group(&[(&key, Version::ABSENT)], vec![put(&key, "x")])];
        store.commit(Batch { groups, tokens, ..Batch::default() })
    };
    let many = if lifted.is_ok() { 3 } else { Token::MAX };
    assert_eq!(wish(many).await, Err(StoreError::Exhausted));
    assert_eq!(read(store, &key).await, Snapshot::absent(key.clone()));
    if lifted.is_ok() {
        assert_eq!(wish(2).await.unwrap().base, Token::MAX - 2);
        assert_eq!(take(store, 1).await, Err(StoreError::Exhausted));
    }
    assert!(take(store, 0).await.unwrap().base <= Token::MAX);
}

/// And a mark that is below the counter changes nothing.
pub async fn a_mark_is_exceeded((store, other): &Servers) {
    let (_, counter) = store.read(&[]).await.unwrap();
    let mark = counter + 50_000_000;
    store.lift(Token::new(mark).unwrap()).await.unwrap();
    let base = take(other, 10).await.unwrap().base;
    assert!(base >= mark, "{base}");
    store.lift(Token::new(mark).unwrap()).await.unwrap();
    let next = take(store, 1).await.unwrap().base;
    assert!((base + 10..mark + 50_000_000).contains(&next) || mark < base, "{next} after {base}");
}

/// Of the engine's own, where it has one.
pub async fn the_time_is_never_ahead((store, other): &Servers) {
    for _ in 0..50 {
        let known = store.now_ms();
        let Some(now) = take(other, 0).await.unwrap().now_ms else { return };
        assert!(known <= now, "{known} at {now}");
        let now = take(store, 0).await.unwrap().now_ms.expect("an engine with a clock");
        assert!(store.now_ms() >= now);
    }
}
