//! Keys that no lock server has written.

use super::*;

/// Nothing of the batch is committed, and the error names the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_kind_refuses_the_batch() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let key = "{fence:default}:lock:a";
    for foreign in [&["LPUSH", key, "x"][..], &["HSET", key, "x", "y"], &["SET", key, "short"]] {
        let _: redis::Value = redis.run(foreign).await;
        let (_, before) = one.read(&[]).await.unwrap();
        let both = ["b", "a", "c"].map(|name| grant(name, 1_000).groups.remove(0));
        let both = Batch { groups: both.into(), tokens: 3, ..Batch::default() };
        let Err(StoreError::Unavailable(why)) = one.commit(both).await else { panic!() };
        assert!(why.contains(key) && why.contains("nothing was done"), "{why}");
        let (found, counter) = one.read(&[lock("b"), lock("c")]).await.unwrap();
        assert_eq!(found, [lock("b"), lock("c")].map(Snapshot::absent));
        assert_eq!(counter, before);
        let Err(StoreError::Unavailable(why)) = one.read(&[lock("a")]).await else { panic!() };
        assert!(why.contains(key), "{why}");
        assert!(matches!(one.items(&lock("a"), None, 9).await, Err(StoreError::Unavailable(_))));
        let _: () = redis.run(&["DEL", key]).await;
    }
    assert_eq!(one.commit(grant("a", 1_000)).await.unwrap().groups, [Ok(())]);
}

/// A text of the right length that is no record is never read as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_is_no_record_is_not_read_as_one() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let text = "a text that someone has put here";
    let _: () = redis.run(&["SET", "{fence:default}:lock:a", text]).await;
    assert!(matches!(one.read(&[lock("a")]).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(one.commit(grant("a", 1_000)).await, Err(StoreError::Unknown(_))));
    let found: String = redis.run(&["GET", "{fence:default}:lock:a"]).await;
    assert_eq!(found, text);
}

/// The outcome of such a batch is not known: the script failed in its middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_of_another_kind_are_an_error() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let key = lock("a");
    let mut first = put(&key, "x");
    first.items.push(("i".to_owned(), Some(vec![1])));
    must_put(&one, Version::ABSENT, first).await;
    let items = "{fence:default}:lock:a#";
    // Items whose record is gone do not come back.
    let _: redis::Value = redis.run(&["DEL", "{fence:default}:lock:a"]).await;
    assert_eq!(one.items(&key, None, 9).await.unwrap(), []);
    let first = must_put(&one, Version::ABSENT, put(&key, "x")).await;
    assert_eq!(read(&one, &key).await.items, []);
    write(&one, first, keep(&key, &[("j", Some("1"))])).await.unwrap();
    assert_eq!(names(&read(&one, &key).await.items), ["j"]);
    let _: redis::Value = redis.run(&["DEL", items]).await;
    // Items that are gone are none.
    assert_eq!(read(&one, &key).await.items, []);
    let _: redis::Value = redis.run(&["SET", items, "x"]).await;
    assert!(matches!(one.read(std::slice::from_ref(&key)).await, Err(StoreError::Unavailable(_))));
    let mut second = put(&key, "y");
    second.items.push(("i".to_owned(), Some(vec![2])));
    let groups = vec![group(&[(&key, first)], vec![second])];
    assert!(matches!(one.commit(batch(groups)).await, Err(StoreError::Unknown(_))));
}

/// The keys beside the records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_keys_beside_the_records_grant_nothing_below() {
    let redis = Redis::start().await;
    let one = server_with(&redis, AfterLoss::Grant).await;
    let mut last = one.commit(grant("a", 1_000)).await.unwrap().base;
    for (at, name) in ["lineage", "token"].into_iter().enumerate() {
        let key = format!("{{fence:default}}:{name}");
        let _: () = redis.run(&["DEL", &key]).await;
        let _: u64 = redis.run(&["LPUSH", &key, "x"]).await;
        let base = one.commit(grant(&format!("b{at}"), 1_000)).await.unwrap().base;
        assert!(base > last, "{name}: {base} after {last}");
        last = base;
    }
    let meta = "{fence:default}:meta";
    let _: () = redis.run(&["DEL", meta]).await;
    let _: () = redis.run(&["SET", meta, "x"]).await;
    let error = open(&redis.url(), AfterLoss::Wait).await.unwrap_err();
    assert!(error.contains(meta), "{error}");
}
