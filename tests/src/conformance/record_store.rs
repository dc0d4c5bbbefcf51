//! Requirements on every `RecordStore`.
//!
//! [`record_store_suite!`](crate::record_store_suite) makes a test of every case for one engine. A
//! case has a namespace of its own, and two handles on it, as two servers have them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fence_protocol::{LockName, SessionId};
use lock_server::engines::contract::{
    Batch, Change, Committed, Group, ItemName, Key, RecordStore, Snapshot, Version, Write,
};
use lock_server::store::StoreError;

use crate::key_file::session_id;

mod lists;
mod lives;
mod races;
mod reference;
mod tokens;
mod writes;

pub use lists::*;
pub use lives::*;
pub use races::*;
pub use reference::*;
pub use tokens::*;
pub use writes::*;

/// An engine under test.
pub type Store = Arc<dyn RecordStore>;

/// Two handles on the same records.
pub type Servers = (Store, Store);

/// A test of each case; `$servers` is an expression that gives a guard and [`Servers`].
///
/// An engine that bounds a group says so: `record_store_suite!(servers().await, bounded)`.
#[macro_export]
macro_rules! record_store_suite {
    ($servers:expr) => {
        $crate::record_store_suite!($servers, bounded);
        $crate::record_store_suite!(@cases $servers; a_large_group_is_one_group);
    };
    ($servers:expr, bounded) => {
        $crate::record_store_suite!(@cases $servers;
            what_was_never_written_is_absent
            what_was_put_is_read_by_every_server
            any_bytes_are_kept
            a_group_is_refused_where_a_record_has_changed
            a_refused_group_returns_its_items
            a_group_happens_whole_or_not_at_all
            groups_are_independent
            a_group_sees_the_groups_before_it
            a_group_has_its_time
            items_alone_leave_the_version
            items_of_an_absent_record_are_not_kept
            a_removed_record_takes_its_items
            a_large_batch_is_one_batch
            a_group_has_many_records
            tokens_follow_the_counter
            tokens_are_above_a_batch_under_way
            a_refused_group_takes_no_token_twice
            tokens_are_used_up
            a_mark_is_exceeded
            the_time_is_never_ahead
            a_record_is_forgotten_with_its_items
            a_later_write_decides_when_it_is_forgotten
            items_come_in_pages
            locks_come_in_pages
            sessions_come_in_pages
            servers_are_notified
            live_servers_know_each_other
            no_update_is_lost
            it_does_what_the_reference_does
        );
    };
    (@cases $servers:expr; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (_guard, servers) = $servers;
                $crate::conformance::record_store::$case(&servers).await;
            }
        )*
    };
}

/// Key of the records of a lock.
pub fn lock(name: &str) -> Key {
    Key::Lock(LockName::new(name).unwrap())
}

/// A session with an id that no other case has.
pub fn session() -> Key {
    Key::Session(new_session())
}

fn new_session() -> SessionId {
    session_id()
}

/// A version that was not given before.
pub fn next_version() -> Version {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // Above 2^53, where Lua cannot count any more.
    Version(0xfff0_0001_0000_0000 + u64::from(NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A write with a new version.
pub fn put(key: &Key, value: &str) -> Write {
    put_for(key, value, None)
}

/// The same that may be forgotten.
pub fn put_for(key: &Key, value: &str, lives_ms: Option<u64>) -> Write {
    let change = Change::Put { version: next_version(), value: value.into(), lives_ms };
    Write { key: key.clone(), change, items: Vec::new() }
}

/// The version that a write gives its record.
pub fn version_of(write: &Write) -> Version {
    match write.change {
        Change::Put { version, .. } => version,
        Change::Keep | Change::Remove => Version::ABSENT,
    }
}

/// A write of items alone.
pub fn keep(key: &Key, items: &[(&str, Option<&str>)]) -> Write {
    Write { key: key.clone(), change: Change::Keep, items: named(items) }
}

/// Items.
pub fn named(items: &[(&str, Option<&str>)]) -> Vec<(ItemName, Option<Vec<u8>>)> {
    let named = |(name, value): &(&str, Option<&str>)| {
        ((*name).to_owned(), value.map(|value| value.as_bytes().to_vec()))
    };
    items.iter().map(named).collect()
}

/// A removal.
pub fn remove(key: &Key) -> Write {
    Write { key: key.clone(), change: Change::Remove, items: Vec::new() }
}

/// A group without bounds.
pub fn group(reads: &[(&Key, Version)], writes: Vec<Write>) -> Group {
    let reads = reads.iter().map(|(key, version)| ((*key).clone(), *version)).collect();
    Group { reads, writes, before_ms: u64::MAX, ..Group::default() }
}

/// A batch without tokens.
pub fn batch(groups: Vec<Group>) -> Batch {
    Batch { groups, ..Batch::default() }
}

/// Commits one write over a version.
pub async fn write(store: &Store, over: Version, write: Write) -> Result<(), Vec<Snapshot>> {
    let key = write.key.clone();
    let mut committed = commit(store, batch(vec![group(&[(&key, over)], vec![write])])).await;
    committed.groups.pop().unwrap().map_err(all_timeless)
}

/// Commits a put over a version, and gives the new one.
pub async fn must_put(store: &Store, over: Version, put: Write) -> Version {
    let version = version_of(&put);
    write(store, over, put).await.unwrap();
    version
}

/// Commits a batch that must not fail.
pub async fn commit(store: &Store, batch: Batch) -> Committed {
    let groups = batch.groups.len();
    let committed = store.commit(batch).await.unwrap();
    assert_eq!(committed.groups.len(), groups);
    committed
}

/// Takes tokens for nothing.
pub async fn take(store: &Store, tokens: u64) -> Result<Committed, StoreError> {
    store.commit(Batch { tokens, ..Batch::default() }).await
}

/// One record.
pub async fn read(store: &Store, key: &Key) -> Snapshot {
    let (mut snapshots, _) = store.read(std::slice::from_ref(key)).await.unwrap();
    assert_eq!(snapshots.len(), 1);
    timeless(snapshots.pop().unwrap())
}

/// A record without what depends on the clock of the server that reads it.
pub fn timeless(found: Snapshot) -> Snapshot {
    Snapshot { shift_ms: 0, ..found }
}

/// Records without what depends on the clock of the server that reads them.
pub fn all_timeless(found: Vec<Snapshot>) -> Vec<Snapshot> {
    found.into_iter().map(timeless).collect()
}

/// The value of a record, as text.
pub async fn text(store: &Store, key: &Key) -> String {
    String::from_utf8(read(store, key).await.value).unwrap()
}

/// The names of items.
pub fn names(items: &[(ItemName, Vec<u8>)]) -> Vec<&str> {
    items.iter().map(|(name, _)| name.as_str()).collect()
}

/// Items by their names, as text.
pub fn by_name(items: &[(ItemName, Vec<u8>)]) -> HashMap<&str, &str> {
    let text = |value| std::str::from_utf8(value).unwrap();
    items.iter().map(|(name, value)| (name.as_str(), text(value))).collect()
}
