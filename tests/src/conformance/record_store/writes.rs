//! Versions, groups and items.

use super::*;

/// No record, no version; in the order of the keys.
pub async fn what_was_never_written_is_absent((store, _): &Servers) {
    let keys = [lock("b"), session(), lock("a")];
    let (snapshots, counter) = store.read(&keys).await.unwrap();
    assert_eq!(snapshots, keys.map(Snapshot::absent));
    let (snapshots, later) = store.read(&[]).await.unwrap();
    assert!(snapshots.is_empty() && later >= counter, "{later} after {counter}");
}

/// Version and value, at once and everywhere.
pub async fn what_was_put_is_read_by_every_server((store, other): &Servers) {
    for key in [lock("orders/1"), session()] {
        let first = must_put(store, Version::ABSENT, put(&key, "one")).await;
        let found = read(other, &key).await;
        assert_eq!((found.version, &found.value[..]), (first, &b"one"[..]));
        let second = must_put(other, first, put(&key, "two")).await;
        let found = read(store, &key).await;
        assert_eq!((found.version, &found.value[..]), (second, &b"two"[..]));
        assert_eq!((found.key, found.items), (key, Vec::new()));
    }
}

/// Also none.
pub async fn any_bytes_are_kept((store, _): &Servers) {
    let every: Vec<u8> = (0..=u8::MAX).cycle().take(70_000).collect();
    for (name, bytes) in [("every", every), ("none", Vec::new())] {
        let mut written = put(&lock(name), "");
        if let Change::Put { value, .. } = &mut written.change {
            value.clone_from(&bytes);
        }
        written.items.push(("item".to_owned(), Some(bytes.clone())));
        write(store, Version::ABSENT, written).await.unwrap();
        let found = read(store, &lock(name)).await;
        assert_eq!((found.value, found.items), (bytes.clone(), vec![("item".to_owned(), bytes)]));
    }
}

/// And returns what stands there.
pub async fn a_group_is_refused_where_a_record_has_changed((store, other): &Servers) {
    let key = lock("a");
    let first = must_put(store, Version::ABSENT, put(&key, "first")).await;
    for over in [Version::ABSENT, next_version()] {
        let found = write(other, over, put(&key, "lost")).await.unwrap_err();
        assert_eq!(found, [read(store, &key).await]);
        assert_eq!(found[0].version, first);
    }
    let absent = lock("never");
    let found = write(store, next_version(), put(&absent, "lost")).await.unwrap_err();
    assert_eq!(found, [Snapshot::absent(absent.clone())]);
    assert_eq!(read(store, &absent).await, Snapshot::absent(absent));
    assert_eq!(text(store, &key).await, "first");
}

/// Those of locks, in the order of their names; of sessions none.
pub async fn a_refused_group_returns_its_items((store, _): &Servers) {
    let key = lock("a");
    let bound = session();
    for record in [&key, &bound] {
        let mut first = put(record, "x");
        first.items = named(&[("2", Some("two")), ("1", Some("one")), ("10", Some("ten"))]);
        write(store, Version::ABSENT, first).await.unwrap();
    }
    let reads = [(&bound, Version::ABSENT), (&key, Version::ABSENT)];
    let refused = commit(store, batch(vec![group(&reads, vec![put(&key, "y")])])).await;
    let found = all_timeless(refused.groups[0].clone().unwrap_err());
    assert_eq!((&found[0].key, &found[1].key), (&bound, &key));
    assert_eq!(found[0].items, []);
    assert_eq!(names(&found[1].items), ["1", "10", "2"]);
    assert_eq!(by_name(&found[1].items)["10"], "ten");
    assert_eq!(found, all_timeless(store.read(&[bound, key]).await.unwrap().0));
}

/// Each read counts, also of a record that is not written.
pub async fn a_group_happens_whole_or_not_at_all((store, _): &Servers) {
    let a = lock("a");
    let b = lock("b");
    let c = session();
    let at_b = must_put(store, Version::ABSENT, put(&b, "b")).await;
    let reads = [(&a, Version::ABSENT), (&b, Version::ABSENT), (&c, Version::ABSENT)];
    let writes = vec![put(&a, "lost"), put(&c, "lost")];
    let refused = commit(store, batch(vec![group(&reads, writes)])).await;
    let found = refused.groups[0].as_ref().unwrap_err();
    assert_eq!(
        found.iter().map(|found| found.version).collect::<Vec<_>>(),
        [Version::ABSENT, at_b, Version::ABSENT]
    );
    assert_eq!((text(store, &a).await, text(store, &c).await), (String::new(), String::new()));

    let reads = [(&a, Version::ABSENT), (&b, at_b), (&c, Version::ABSENT)];
    let mut with_item = put(&c, "c");
    with_item.items = named(&[("a", Some("1"))]);
    let done = commit(store, batch(vec![group(&reads, vec![put(&a, "a"), remove(&b), with_item])]));
    assert_eq!(done.await.groups, [Ok(())]);
    assert_eq!((text(store, &a).await, text(store, &c).await), ("a".to_owned(), "c".to_owned()));
    assert_eq!(read(store, &b).await, Snapshot::absent(b));
    assert_eq!(names(&store.items(&c, None, 9).await.unwrap()), ["a"]);
}

/// One that lost does not keep the others from being committed.
pub async fn groups_are_independent((store, _): &Servers) {
    let keys: Vec<Key> = (0..5).map(|at| lock(&format!("lock-{at}"))).collect();
    must_put(store, Version::ABSENT, put(&keys[2], "taken")).await;
    let one = |key: &Key| group(&[(key, Version::ABSENT)], vec![put(key, "mine")]);
    let committed = commit(store, batch(keys.iter().map(one).collect())).await;
    for (at, outcome) in committed.groups.iter().enumerate() {
        assert_eq!(outcome.is_ok(), at != 2, "{at}");
        let shown = if at == 2 { "taken" } else { "mine" };
        assert_eq!(text(store, &keys[at]).await, shown);
    }
}

/// A batch may go on from what it has written. What is shown of a refused group's records is as old
/// as the commit or newer.
pub async fn a_group_sees_the_groups_before_it((store, _): &Servers) {
    let key = lock("a");
    let one = put(&key, "one");
    let two = put(&key, "two");
    let at_one = version_of(&one);
    let at_two = version_of(&two);
    let last = put(&key, "again");
    let at_last = version_of(&last);
    let groups = vec![
        group(&[(&key, Version::ABSENT)], vec![one]),
        group(&[(&key, at_one)], vec![two]),
        group(&[(&key, Version::ABSENT)], vec![put(&key, "lost")]),
        group(&[(&key, at_two)], vec![remove(&key)]),
        group(&[(&key, Version::ABSENT)], vec![last]),
    ];
    let committed = commit(store, batch(groups)).await;
    let ok: Vec<bool> = committed.groups.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, true, false, true, true]);
    let shown = committed.groups[2].as_ref().unwrap_err()[0].version;
    assert!([at_two, at_last].contains(&shown), "{shown:?}");
    assert_eq!(text(store, &key).await, "again");
}

/// By the engine's clock, or by the server's where it has none, from one moment and before another.
pub async fn a_group_has_its_time((store, _): &Servers) {
    let key = lock("a");
    let now_ms = take(store, 0).await.unwrap().now_ms.unwrap_or_else(|| store.now_ms());
    let hour_ms = 3_600_000;
    for (not_before_ms, before_ms, is_in_time) in [
        (now_ms + hour_ms, u64::MAX, false),
        (0, now_ms.saturating_sub(1), false),
        (0, now_ms, false),
        (now_ms, now_ms + hour_ms, true),
    ] {
        let one = group(&[(&key, Version::ABSENT)], vec![put(&key, "x")]);
        let one = Group { not_before_ms, before_ms, ..one };
        let outcome = commit(store, batch(vec![one])).await.groups.pop().unwrap();
        assert_eq!(outcome.is_ok(), is_in_time, "{not_before_ms} {before_ms} at {now_ms}");
        let refused = all_timeless(outcome.err().unwrap_or_default());
        assert!(refused.iter().all(|found| *found == Snapshot::absent(key.clone())));
    }
}

/// Added, replaced, removed.
pub async fn items_alone_leave_the_version((store, other): &Servers) {
    for key in [lock("a"), session()] {
        let first = must_put(store, Version::ABSENT, put(&key, "x")).await;
        let items: &[(&str, Option<&str>)] = &[("b", Some("1")), ("a", Some("2"))];
        write(store, first, keep(&key, items)).await.unwrap();
        let items: &[(&str, Option<&str>)] =
            &[("b", Some("3")), ("c", Some("4")), ("a", None), ("never", None)];
        write(other, first, keep(&key, items)).await.unwrap();
        let found = read(store, &key).await;
        assert_eq!((found.version, &found.value[..]), (first, &b"x"[..]));
        let items = store.items(&key, None, 9).await.unwrap();
        assert_eq!(names(&items), ["b", "c"]);
        assert_eq!(by_name(&items)["b"], "3");
        assert_eq!(found.items, if matches!(key, Key::Lock(_)) { items } else { Vec::new() });
        // A new value keeps them.
        let second = must_put(store, first, put(&key, "y")).await;
        assert_eq!(names(&other.items(&key, None, 9).await.unwrap()), ["b", "c"]);
        // Without any left, it is as if there had been none.
        write(store, second, keep(&key, &[("b", None), ("c", None)])).await.unwrap();
        assert_eq!(store.items(&key, None, 9).await.unwrap(), []);
        let third = must_put(store, second, put(&key, "z")).await;
        write(store, third, keep(&key, &[("d", Some("5"))])).await.unwrap();
        assert_eq!(names(&store.items(&key, None, 9).await.unwrap()), ["d"]);
    }
}

/// There is nothing that they could belong to.
pub async fn items_of_an_absent_record_are_not_kept((store, _): &Servers) {
    let key = lock("a");
    write(store, Version::ABSENT, keep(&key, &[("a", Some("1"))])).await.unwrap();
    assert_eq!(store.items(&key, None, 9).await.unwrap(), []);
    must_put(store, Version::ABSENT, put(&key, "x")).await;
    assert_eq!(read(store, &key).await.items, []);
}

/// They do not come back with it.
pub async fn a_removed_record_takes_its_items((store, _): &Servers) {
    let key = lock("a");
    let mut first = put(&key, "x");
    first.items = named(&[("a", Some("1"))]);
    let first = must_put(store, Version::ABSENT, first).await;
    assert!(write(store, next_version(), remove(&key)).await.is_err());
    write(store, first, remove(&key)).await.unwrap();
    assert_eq!(read(store, &key).await, Snapshot::absent(key.clone()));
    assert_eq!(store.items(&key, None, 9).await.unwrap(), []);
    let second = must_put(store, Version::ABSENT, put(&key, "y")).await;
    write(store, second, keep(&key, &[("b", Some("2"))])).await.unwrap();
    assert_eq!(names(&read(store, &key).await.items), ["b"]);
}

/// Thousands of groups.
pub async fn a_large_batch_is_one_batch((store, _): &Servers) {
    let keys: Vec<Key> = (0..9_000).map(|at| lock(&format!("many/{at}"))).collect();
    let groups =
        keys.iter().map(|key| group(&[(key, Version::ABSENT)], vec![put(key, "one")])).collect();
    let committed = commit(store, batch(groups)).await;
    assert!(committed.groups.iter().all(Result::is_ok));
    let (snapshots, _) = store.read(&keys).await.unwrap();
    assert!(snapshots.iter().zip(&keys).all(|(found, key)| found.key == *key));
    assert!(snapshots.iter().all(|found| found.value == b"one"));
}

/// As large as an engine that bounds it has to take it: all of it happens, or nothing.
pub async fn a_group_has_many_records(servers: &Servers) {
    all_or_nothing(servers, 64).await;
}

/// Thousands of records.
pub async fn a_large_group_is_one_group(servers: &Servers) {
    all_or_nothing(servers, 9_000).await;
}

async fn all_or_nothing((store, _): &Servers, count: usize) {
    let keys: Vec<Key> = (0..count).map(|at| lock(&format!("many/{at}"))).collect();
    let writes: Vec<Write> = keys.iter().map(|key| put(key, "one")).collect();
    let versions: Vec<Version> = writes.iter().map(version_of).collect();
    let reads: Vec<(&Key, Version)> = keys.iter().map(|key| (key, Version::ABSENT)).collect();
    assert_eq!(commit(store, batch(vec![group(&reads, writes)])).await.groups, [Ok(())]);
    let reads: Vec<(&Key, Version)> = keys.iter().zip(versions).collect();
    let writes = keys.iter().map(|key| put(key, "two")).collect();
    assert_eq!(commit(store, batch(vec![group(&reads, writes)])).await.groups, [Ok(())]);
    let (snapshots, _) = store.read(&keys).await.unwrap();
    assert!(snapshots.iter().all(|found| found.value == b"two"));
    // All of it is refused where the last read has changed.
    let mut reads: Vec<(&Key, Version)> =
        snapshots.iter().map(|found| (&found.key, found.version)).collect();
    reads[count - 1].1 = Version::ABSENT;
    let writes = keys.iter().map(remove).collect();
    let committed = commit(store, batch(vec![group(&reads, writes)])).await;
    assert_eq!(committed.groups[0].as_ref().unwrap_err(), &snapshots);
}
