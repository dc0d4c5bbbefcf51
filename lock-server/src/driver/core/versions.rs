//! Versions of the loaded records, and how many of those that this server wrote last are live.

use std::collections::HashMap;

use lease::Session;

use super::Core;
use crate::engines::contract::{Key, ServerId, Version};
use crate::store::figures::Held;

/// Versions of the loaded records. Empty if this server is alone.
///
/// Every record has one last writer, so the counts of all servers add up to what the store holds,
/// but for records whose writer has ended and for changes by other servers that this one has not
/// read yet.
pub(super) struct Versions {
    server: ServerId,
    /// With whether the record counts in `held`.
    records: HashMap<Key, (Version, bool)>,
    held: Held,
}

impl Versions {
    pub(super) fn new(server: ServerId) -> Self {
        Self { server, records: HashMap::new(), held: Held::default() }
    }

    pub(super) fn held(&self) -> Held {
        self.held
    }

    pub(super) fn get(&self, key: &Key) -> Version {
        self.records.get(key).map_or(Version::ABSENT, |(version, _)| *version)
    }

    /// Records the version of a record, which holds a live lease or is a live session if `is_live`.
    pub(super) fn set(&mut self, key: Key, version: Version, is_live: bool) {
        if version == Version::ABSENT {
            self.remove(&key);
            return;
        }
        let counts = is_live && version.writer() == self.server;
        let count = self.held.count(&key);
        *count += usize::from(counts);
        let before = self.records.insert(key, (version, counts));
        *count -= usize::from(before.is_some_and(|(_, counted)| counted));
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if self.records.remove(key).is_some_and(|(_, counted)| counted) {
            *self.held.count(key) -= 1;
        }
    }
}

impl Held {
    fn count(&mut self, key: &Key) -> &mut usize {
        match key {
            Key::Lock(_) => &mut self.locks,
            Key::Session(_) => &mut self.sessions,
        }
    }
}

impl Core {
    /// Returns what this server holds for its clients: of shared records those that it wrote last.
    pub(crate) fn held(&self) -> Held {
        if !self.is_alone {
            return self.versions.held();
        }
        Held { locks: self.machine.held_count(), sessions: self.machine.session_count() }
    }

    /// Records the version in which a record was committed or read.
    pub(super) fn note_version(&mut self, key: Key, version: Version) {
        let is_live = match &key {
            Key::Lock(lock) => {
                self.machine.record(lock).is_some_and(|record| !record.holders.is_empty())
            }
            Key::Session(id) => self.machine.session(*id).is_some_and(Session::is_live),
        };
        self.versions.set(key, version, is_live);
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::LockName;

    use super::*;

    #[test]
    fn only_live_records_that_this_server_wrote_last_count() {
        let key = |name: &str| Key::Lock(LockName::new(name).unwrap());
        let by = |server, writes| Version::of_write(ServerId(server), writes);
        let mut versions = Versions::new(ServerId(7));
        let mut set = |name: &str, version, is_live| {
            versions.set(key(name), version, is_live);
            versions.held().locks
        };
        assert_eq!(set("a", by(7, 1), true), 1);
        assert_eq!(set("a", by(7, 2), true), 1);
        assert_eq!(set("b", by(7, 3), true), 2);
        assert_eq!(set("c", by(8, 1), true), 2, "another server wrote it");
        assert_eq!(set("a", by(8, 2), true), 1, "another server wrote it since");
        assert_eq!(set("b", by(7, 4), false), 0, "it was released");
        assert_eq!(set("c", by(7, 5), true), 1, "renewed here");
        assert_eq!(set("c", Version::ABSENT, false), 0);
        versions.set(key("d"), by(7, 6), true);
        versions.remove(&key("d"));
        assert_eq!(versions.held(), Held::default());
    }
}
