//! Records that are forgotten, and records that are not.

use super::*;
use crate::wait::{until, until_true};

/// Nothing stays of it.
pub async fn a_record_is_forgotten_with_its_items((store, other): &Servers) {
    for key in [lock("a"), session()] {
        until("a second write in the life of the record", async || {
            let mut first = put_for(&key, "x", Some(300));
            first.items = named(&[("a", Some("1"))]);
            let first = must_put(store, Version::ABSENT, first).await;
            write(store, first, keep(&key, &[("b", Some("2"))])).await.ok()
        })
        .await;
        until_true("the record to be forgotten", async || {
            read(other, &key).await.version == Version::ABSENT
        })
        .await;
        assert_eq!(other.items(&key, None, 9).await.unwrap(), []);
        let again = must_put(other, Version::ABSENT, put(&key, "y")).await;
        write(other, again, keep(&key, &[("c", Some("3"))])).await.unwrap();
        assert_eq!(names(&store.items(&key, None, 9).await.unwrap()), ["c"]);
    }
}

/// Of the record and of its items.
pub async fn a_later_write_decides_when_it_is_forgotten((store, _): &Servers) {
    let short = lock("short");
    let kept = lock("kept");
    let items_later = lock("items-later");
    until("a second write in the life of the record", async || {
        let mut first = put_for(&kept, "x", Some(500));
        first.items = named(&[("a", Some("1"))]);
        let first = must_put(store, Version::ABSENT, first).await;
        write(store, first, put(&kept, "y")).await.ok()
    })
    .await;
    // The items of a record that lives on live on, and those of a record that ends end.
    let first = must_put(store, Version::ABSENT, put(&items_later, "x")).await;
    write(store, first, keep(&items_later, &[("a", Some("1"))])).await.unwrap();
    must_put(store, first, put_for(&items_later, "y", Some(500))).await;
    must_put(store, Version::ABSENT, put_for(&short, "x", Some(700))).await;
    until_true("the short one to be forgotten", async || {
        read(store, &short).await.version == Version::ABSENT
    })
    .await;
    let found = read(store, &kept).await;
    assert_eq!((&found.value[..], names(&found.items)), (&b"y"[..], vec!["a"]));
    assert_eq!(read(store, &items_later).await, Snapshot::absent(items_later.clone()));
    assert_eq!(store.items(&items_later, None, 9).await.unwrap(), []);
}
