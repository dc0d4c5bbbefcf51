//! The keys of a namespace. Records of 0.1 stood under other names, so neither is read as the
//! other.

use fence_protocol::{LockName, Namespace, SessionId};

use super::key_prefix::KeyPrefix;
use crate::engines::contract::{Key, LOCK, SESSION, ServerId};

/// Names of keys: their prefix, and the names that do not depend on a record. All share a hash
/// slot.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
    /// The id of the lineage.
    pub(super) lineage: String,
    /// The counter.
    pub(super) token: String,
    /// Evidence that the lineage was verified by, and the format.
    pub(super) meta: String,
    /// Exists while no lease may begin: how long that was to last when it began, ms.
    pub(super) paused_for: String,
    /// By how much the clock of Redis has jumped ahead of the time that records are kept in, ms.
    pub(super) clock_ahead: String,
    /// The highest token that is known to be with enough replicas.
    pub(super) replicas: String,
    /// No lease lives after it, ms of that time.
    pub(super) lives_until: String,
    /// Live servers, each until when.
    pub(super) servers: String,
    /// Never written. Every script names it, so that a cluster does not run one while the slot
    /// moves to another node: some keys could be there already, and the script would fail at them
    /// half-way.
    pub(super) absent: String,
}

impl Keys {
    pub(super) fn new(prefix: &KeyPrefix, namespace: &Namespace) -> Self {
        let prefix = prefix.for_namespace(namespace);
        let key = |name: &str| format!("{prefix}{name}");
        Self {
            lineage: key("lineage"),
            token: key("token"),
            meta: key("meta"),
            paused_for: key("paused-for"),
            clock_ahead: key("clock-ahead"),
            replicas: key("replicas"),
            lives_until: key("lives-until"),
            servers: key("servers"),
            absent: key("absent"),
            prefix,
        }
    }

    /// Prefix of every key.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Name of a record; its items have the same name with `#` behind it, which is in no name of a
    /// lock.
    pub(super) fn record(&self, key: &Key) -> String {
        match key {
            Key::Lock(lock) => [&self.prefix, LOCK, lock.as_str()].concat(),
            Key::Session(id) => format!("{}{SESSION}{id}", self.prefix),
        }
    }

    /// Name of the items of a record.
    pub(super) fn items(&self, key: &Key) -> String {
        self.record(key) + "#"
    }

    /// The channel of a server.
    pub(super) fn channel(&self, server: ServerId) -> String {
        format!("{}c:{}", self.prefix, server.0)
    }

    /// The pattern of the keys of locks whose names begin with `start`, and of sessions.
    pub(super) fn locks(&self, start: &str) -> String {
        let mut pattern = format!("{}{LOCK}", self.prefix);
        for c in start.chars() {
            if "*?[]^\\".contains(c) {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('*');
        pattern
    }

    pub(super) fn sessions(&self) -> String {
        format!("{}{SESSION}*", self.prefix)
    }

    /// The lock whose record stands at a key.
    pub(super) fn lock_at(&self, key: &str) -> Option<LockName> {
        LockName::new(key.strip_prefix(&self.prefix)?.strip_prefix(LOCK)?).ok()
    }

    pub(super) fn session_at(&self, key: &str) -> Option<SessionId> {
        key.strip_prefix(&self.prefix)?.strip_prefix(SESSION)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let keys = Keys::new(&"app:".parse().unwrap(), &Namespace::default());
        let lock = LockName::new("orders/4:2").unwrap();
        let key = keys.record(&Key::Lock(lock.clone()));
        assert_eq!(key, "app:{fence:default}:lock:orders/4:2");
        assert_eq!(keys.lock_at(&key), Some(lock.clone()));
        // Its items are no lock.
        assert_eq!(keys.lock_at(&format!("{key}#")), None);
        assert_eq!(Key::from_text(&Key::Lock(lock.clone()).text()), Some(Key::Lock(lock)));
        assert_eq!(keys.locks("a*"), "app:{fence:default}:lock:a\\**");
        assert!(
            ["", "lock:", "lock:../x", "session:7", "ping"].map(Key::from_text)
                == [None, None, None, None, None]
        );
    }
}
