//! Fuzz target: replies of our scripts in Redis.

use ::redis::Value;
use fence_protocol::LockName;

use super::codec::{self, Commit};
use crate::engines::contract::{Batch, Group, Key, Version};

/// A reply to every script and scan.
pub(crate) fn replies(value: &Value) {
    let Ok(lock) = LockName::new("orders/42") else { return };
    let keys = [Key::Lock(lock)];
    let _ = codec::beat(value.clone());
    let _ = codec::items(value.clone());
    let _ = codec::scan(value.clone());
    if let Ok((snapshots, ..)) = codec::records(&keys, value.clone()) {
        assert_eq!(snapshots.len(), keys.len());
    }
    let reads = vec![(keys[0].clone(), Version::ABSENT)];
    let group = Group { reads, ..Group::everything() };
    let batch = Batch { groups: vec![group], ..Batch::default() };
    if let Ok(committed) = Commit::new(&batch).and_then(|commit| commit.read(value.clone())) {
        assert_eq!(committed.groups.len(), 1);
    }
}
