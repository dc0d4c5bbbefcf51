//! Keys that no lock server has written.

use super::*;

/// Others in the batch are committed, by either script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_kind_refuses_its_group_alone() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let key = "{fence:default}:lock:a";
    for foreign in [
        &["LPUSH", key, "x"][..],
        &["HSET", key, "x", "y"],
        &["SET", key, "short"],
        &["SET", key, ""],
    ] {
        let _: redis::Value = redis.run(foreign).await;
        for is_plain in [true, false] {
            let mut groups = ["b", "a", "c"].map(|name| grant(name, 1_000).groups.remove(0));
            if !is_plain {
                groups[2].writes[0].items.push(("i".to_owned(), Some(vec![1])));
            }
            let all = Batch { groups: groups.into(), tokens: 3, ..Batch::default() };
            let outcome = one.commit(all).await.unwrap().groups;
            let unreadable = vec![Snapshot::unreadable(lock("a"))];
            assert_eq!(outcome, [Ok(()), Err(unreadable), Ok(())]);
            for name in ["b", "c"] {
                let found = read(&one, &lock(name)).await;
                assert_eq!(found.items.len(), usize::from(name == "c" && !is_plain));
                write(&one, found.version, remove(&lock(name))).await.unwrap();
            }
        }
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
    let outcome = one.commit(grant("a", 1_000)).await.unwrap().groups;
    assert_eq!(outcome, [Err(vec![Snapshot::unreadable(lock("a"))])]);
    let found: String = redis.run(&["GET", "{fence:default}:lock:a"]).await;
    assert_eq!(found, text);
}

/// The outcome of a batch that writes such items is not known: the script failed in its middle. One
/// that only finds them refuses their group.
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
    for is_plain in [true, false] {
        let mut groups = ["b", "a"].map(|name| grant(name, 1_000).groups.remove(0));
        if !is_plain {
            groups[0].writes[0].items.push(("i".to_owned(), Some(vec![1])));
        }
        let both = Batch { groups: groups.into(), tokens: 2, ..Batch::default() };
        let outcome = one.commit(both).await.unwrap().groups;
        assert_eq!(outcome, [Ok(()), Err(vec![Snapshot::unreadable(key.clone())])]);
        let found = read(&one, &lock("b")).await;
        write(&one, found.version, remove(&lock("b"))).await.unwrap();
    }
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
