//! Pages, and other servers.

use lock_server::engines::contract::{ServerId, Wakeup};
use lock_server::store::ListQuery;

use super::*;
use crate::wait::{soon, until_true};

/// In the order of their names, each once, also where one name begins with another.
pub async fn items_come_in_pages((store, _): &Servers) {
    let key = session();
    let items = (0..1_000).map(|at| (format!("{at}"), Some(vec![1])));
    let mut first = put(&key, "x");
    first.items = items.collect();
    let mut wanted: Vec<ItemName> = first.items.iter().map(|(name, _)| name.clone()).collect();
    wanted.sort();
    write(store, Version::ABSENT, first).await.unwrap();
    let mut found: Vec<ItemName> = Vec::new();
    loop {
        let after = found.last().map(String::as_str);
        let page = store.items(&key, after, 64).await.unwrap();
        assert!(page.len() <= 64);
        if page.is_empty() {
            break;
        }
        found.extend(page.into_iter().map(|(name, _)| name));
    }
    assert_eq!(found, wanted);
    // After a name that is no item.
    assert_eq!(names(&store.items(&key, Some("98a"), 2).await.unwrap()), ["99", "990"]);
    assert_eq!(store.items(&key, None, 0).await.unwrap(), []);
}

/// By prefix, after a name; items and sessions are no locks.
pub async fn locks_come_in_pages((store, _): &Servers) {
    let all = ["a", "b/1", "b/10", "b/2", "b:x", "c"];
    let keys = all.map(lock);
    let bound = session();
    let groups = keys.iter().chain([&bound]).map(|key| {
        let mut first = put(key, "x");
        first.items = named(&[("i", Some("1"))]);
        group(&[(key, Version::ABSENT)], vec![first])
    });
    commit(store, batch(groups.collect())).await;
    let list = async |prefix: &str, after: Option<&str>, limit| {
        let after = after.map(|name| LockName::new(name).unwrap());
        let query = ListQuery { prefix: prefix.to_owned(), after, limit, owner: None };
        let (page, has_more) = store.locks(&query).await.unwrap();
        (page.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), has_more)
    };
    let page = |names: &str, has_more| (names.to_owned(), has_more);
    assert_eq!(list("", None, 9).await, page("a b/1 b/10 b/2 b:x c", false));
    assert_eq!(list("", None, 6).await, page("a b/1 b/10 b/2 b:x c", false));
    assert_eq!(list("", None, 2).await, page("a b/1", true));
    assert_eq!(list("b/", Some("b/1"), 1).await, page("b/10", true));
    assert_eq!(list("b/", Some("b/10"), 1).await, page("b/2", false));
    assert_eq!(list("b", Some("b/3"), 9).await, page("b:x", false));
    assert_eq!(list("d", None, 9).await, page("", false));
    assert_eq!(list("*", None, 9).await, page("", false));
}

/// In the order of their ids.
pub async fn sessions_come_in_pages((store, _): &Servers) {
    let mut ids: Vec<SessionId> = (0..5).map(|_| new_session()).collect();
    for key in ids.iter().map(|id| Key::Session(*id)).chain([lock("a")]) {
        must_put(store, Version::ABSENT, put(&key, "x")).await;
    }
    ids.sort();
    assert_eq!(store.sessions(None, 5).await.unwrap(), (ids.clone(), false));
    assert_eq!(store.sessions(None, 2).await.unwrap(), (ids[..2].to_vec(), true));
    assert_eq!(store.sessions(Some(ids[1]), 9).await.unwrap(), (ids[2..].to_vec(), false));
}

/// Of the groups that were committed.
pub async fn servers_are_notified((store, other): &Servers) {
    let one = ServerId(1);
    let two = ServerId(2);
    let mut wakeups = other.wakeups(two);
    let key = lock("a");
    let bound = session();
    let lost = lock("lost");
    let notify = async |server, key: &Key, over| {
        let notice = Group { notify: vec![(server, key.clone())], ..group(&[(key, over)], vec![]) };
        commit(store, batch(vec![notice])).await
    };
    let first = async {
        let key = Wakeup::Record(key.clone());
        while !std::iter::from_fn(|| wakeups.try_recv().ok()).any(|found| found == key) {
            notify(two, &lock("a"), Version::ABSENT).await;
        }
    };
    soon("a message", first).await;
    notify(two, &lost, next_version()).await;
    notify(one, &lost, Version::ABSENT).await;
    notify(two, &bound, Version::ABSENT).await;
    loop {
        let found = soon("a message", wakeups.recv()).await.expect("an engine that still runs");
        assert_ne!(found, Wakeup::Record(lost.clone()));
        if found == Wakeup::Record(bound.clone()) {
            break;
        }
    }
}

/// For as long as each said.
pub async fn live_servers_know_each_other((store, other): &Servers) {
    let one = ServerId(7);
    let two = ServerId(8);
    let three = ServerId(u32::MAX);
    assert_eq!(store.beat(two, 60_000).await.unwrap(), [two]);
    until_true("a beat that is answered in its time", async || {
        let seen = other.beat(one, 300).await.unwrap();
        assert!(seen == [one, two] || seen == [two], "{seen:?}");
        seen == [one, two]
    })
    .await;
    assert_eq!(other.beat(three, 60_000).await.unwrap().last(), Some(&three));
    until_true("the first server to be dead", async || {
        store.beat(two, 60_000).await.unwrap() == [two, three]
    })
    .await;
    assert_eq!(store.beat(one, 60_000).await.unwrap(), [one, two, three]);
}
