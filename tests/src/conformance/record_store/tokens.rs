//! The counter, and the clock.

use fence_protocol::Token;

use super::*;

/// The counter before a batch stands beside each value that the batch wrote.
pub async fn tokens_follow_the_counter((store, other): &Servers) {
    let (a, b) = (lock("a"), lock("b"));
    let (_, start) = store.read(&[]).await.unwrap();
    let groups = vec![
        group(&[(&a, Version::ABSENT)], vec![put(&a, "1")]),
        group(&[(&b, Version::ABSENT)], vec![put(&b, "2")]),
    ];
    let committed = commit(store, Batch { groups, counter: start, tokens: 2, ..Batch::default() });
    assert_eq!(committed.await.base, start);
    let (snapshots, counter) = other.read(&[a.clone(), b.clone()]).await.unwrap();
    assert_eq!(counter, start + 2);
    assert!(snapshots.iter().all(|found| found.base == start), "{snapshots:?}");
    assert_eq!(take(other, 5).await.unwrap().base, start + 2);
    let next = group(&[(&a, snapshots[0].version)], vec![put(&a, "1")]);
    let committed =
        commit(store, Batch { groups: vec![next], counter: start, tokens: 1, ..Batch::default() });
    assert_eq!(committed.await.base, start + 7);
    assert_eq!(read(other, &a).await.base, start + 7);
    assert_eq!(read(other, &b).await.base, start);
}

/// Whether or not its tokens are lost.
pub async fn a_refused_group_takes_no_token_twice((store, _): &Servers) {
    let key = lock("a");
    must_put(store, Version::ABSENT, put(&key, "x")).await;
    let (_, before) = store.read(&[]).await.unwrap();
    let lost = group(&[(&key, Version::ABSENT)], vec![put(&key, "lost")]);
    let lost = commit(store, Batch { groups: vec![lost], tokens: 1, ..Batch::default() }).await;
    assert!(lost.groups[0].is_err());
    let next = take(store, 1).await.unwrap().base;
    assert!((before..=before + 1).contains(&next), "{next} after {before}");
}

/// The last one is given, and then none, and nothing else is changed.
pub async fn tokens_are_used_up((store, _): &Servers) {
    store.lift(Token::new(Token::MAX - 2).unwrap()).await.unwrap();
    let key = lock("a");
    let wish = |tokens| {
        let groups = vec![group(&[(&key, Version::ABSENT)], vec![put(&key, "x")])];
        store.commit(Batch { groups, tokens, ..Batch::default() })
    };
    assert_eq!(wish(3).await, Err(StoreError::Exhausted));
    assert_eq!(read(store, &key).await, Snapshot::absent(key.clone()));
    assert_eq!(wish(2).await.unwrap().base, Token::MAX - 2);
    assert_eq!(take(store, 1).await, Err(StoreError::Exhausted));
    assert_eq!(take(store, 0).await.unwrap().base, Token::MAX);
}

/// And a mark that is below the counter changes nothing.
pub async fn a_mark_is_exceeded((store, other): &Servers) {
    let (_, counter) = store.read(&[]).await.unwrap();
    let mark = counter + 50_000_000;
    store.lift(Token::new(mark).unwrap()).await.unwrap();
    let base = take(other, 10).await.unwrap().base;
    assert!(base >= mark, "{base}");
    store.lift(Token::new(mark).unwrap()).await.unwrap();
    assert_eq!(take(store, 1).await.unwrap().base, base + 10);
}

/// Of the engine's own.
pub async fn the_time_is_never_ahead((store, other): &Servers) {
    for _ in 0..50 {
        let known = store.now_ms();
        let now = take(other, 0).await.unwrap().now_ms.expect("an engine with a clock");
        assert!(known <= now, "{known} at {now}");
        let now = take(store, 0).await.unwrap().now_ms.expect("an engine with a clock");
        assert!(store.now_ms() >= now);
    }
}
