//! Names of the keys, and what a key is about.
//!
//! | key, after `fencepost/<namespace>/` | what |
//! | --- | --- |
//! | `meta` | the offset of the tokens, and the cluster that it was made for |
//! | `l/<lock>` | the record of a lock |
//! | `l/<lock>!<name>` | an item of it |
//! | `s/<id>` | the record of a session |
//! | `b/<id>!<name>` | an item of it |
//! | `p/<writer>` | the last commit of a server |
//! | `v/<server>` | a live server, its writer and its clock; on an etcd lease |
//! | `n/<server>/<record>` | a message: the record may have changed |
//!
//! No name of a lock has a `!`, and every character that it may have is above `"`: a lock and its
//! items are one range without any other lock.

use fence_protocol::{LockName, Namespace, SessionId};

use super::txn::Range;
use crate::engines::contract::{Key, ServerId};

/// The keys of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(namespace: &Namespace) -> Self {
        Self { prefix: format!("fencepost/{namespace}/") }
    }

    /// All of them.
    pub(super) fn all(&self) -> Range {
        Range::prefixed(self.prefix.clone())
    }

    pub(super) fn meta(&self) -> String {
        format!("{}meta", self.prefix)
    }

    pub(super) fn marker(&self, writer: u32) -> String {
        format!("{}p/{writer:08x}", self.prefix)
    }

    pub(super) fn server(&self, server: ServerId) -> String {
        format!("{}v/{:08x}", self.prefix, server.0)
    }

    pub(super) fn servers(&self) -> Range {
        Range::prefixed(format!("{}v/", self.prefix))
    }

    /// The messages to a server.
    pub(super) fn inbox(&self, server: ServerId) -> Range {
        Range::prefixed(format!("{}n/{:08x}/", self.prefix, server.0))
    }

    /// The messages to every server.
    pub(super) fn inboxes(&self) -> Range {
        Range::prefixed(format!("{}n/", self.prefix))
    }

    /// A message to a server.
    pub(super) fn message(&self, server: ServerId, key: &Key) -> String {
        format!("{}n/{:08x}/{}", self.prefix, server.0, name(key))
    }

    /// The record of a lock or of a session.
    pub(super) fn record(&self, key: &Key) -> String {
        format!("{}{}", self.prefix, name(key))
    }

    /// The records of a kind with their items, from a name on.
    pub(super) fn records(&self, kind: char, from: &str) -> Range {
        let all = Range::prefixed(format!("{}{kind}/", self.prefix));
        Range { begin: format!("{}{from}", all.begin), ..all }
    }

    /// An item of a record.
    pub(super) fn item(&self, key: &Key, item: &str) -> String {
        format!("{}{item}", self.items_prefix(key))
    }

    /// The items of a record.
    pub(super) fn items(&self, key: &Key) -> Range {
        let begin = self.items_prefix(key);
        let end = format!("{}\"", begin.trim_end_matches('!'));
        Range { begin, end }
    }

    /// A lock with its items; a session without.
    pub(super) fn whole(&self, key: &Key) -> Range {
        let begin = self.record(key);
        let end = match key {
            Key::Lock(_) => format!("{begin}\""),
            Key::Session(_) => format!("{begin}\0"),
        };
        Range { begin, end }
    }

    fn items_prefix(&self, key: &Key) -> String {
        match key {
            Key::Lock(lock) => format!("{}l/{lock}!", self.prefix),
            Key::Session(id) => format!("{}b/{id}!", self.prefix),
        }
    }

    /// The record that a key is, or whose item it is; of a lock's item that is the lock.
    pub(super) fn subject(&self, key: &str) -> Option<Key> {
        of_name(key.strip_prefix(&self.prefix)?)
    }

    /// The record that a message is about.
    pub(super) fn subject_of_message(&self, key: &str) -> Option<Key> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix("n/")?;
        of_name(rest.split_once('/')?.1)
    }

    /// The server of a key under `v/` or `n/`.
    pub(super) fn server_of(&self, key: &str) -> Option<ServerId> {
        let rest = key.strip_prefix(&self.prefix)?;
        let rest = rest.strip_prefix("v/").or_else(|| rest.strip_prefix("n/"))?;
        u32::from_str_radix(rest.get(..8)?, 16).ok().map(ServerId)
    }
}

fn name(key: &Key) -> String {
    match key {
        Key::Lock(lock) => format!("l/{lock}"),
        Key::Session(id) => format!("s/{id}"),
    }
}

fn of_name(name: &str) -> Option<Key> {
    if let Some(id) = name.strip_prefix("s/") {
        return id.parse().ok().map(Key::Session);
    }
    let lock = name.strip_prefix("l/")?;
    LockName::new(lock.split('!').next()?).ok().map(Key::Lock)
}

/// The name behind the last record of a page of locks: its items are passed over.
pub(super) fn after_lock(lock: &LockName) -> String {
    format!("{lock}\"")
}

/// The name behind a session.
pub(super) fn after_session(id: SessionId) -> String {
    format!("{id}\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(name: &str) -> Key {
        Key::Lock(LockName::new(name).unwrap())
    }

    #[test]
    fn a_lock_and_its_items_are_one_range_of_their_own() {
        let keys = Keys::new(&"default".parse().unwrap());
        let whole = keys.whole(&lock("a"));
        let within = |key: &str| *key >= *whole.begin && *key < *whole.end;
        assert!(within(&keys.record(&lock("a"))) && within(&keys.item(&lock("a"), "~")));
        for other in ["a/b", "a-b", "a.b", "a0", "aa", "A", "b"] {
            assert!(!within(&keys.record(&lock(other))), "{other}");
            assert!(!within(&keys.item(&lock(other), "1")), "{other}");
        }
        let items = keys.items(&lock("a"));
        assert!(keys.record(&lock("a")) < items.begin && items.begin < items.end);
    }

    #[test]
    fn keys_say_what_they_are_about() {
        let keys = Keys::new(&"default".parse().unwrap());
        let id: SessionId = "00000000-0000-4000-8000-000000000007".parse().unwrap();
        for key in [lock("a/b"), Key::Session(id)] {
            assert_eq!(keys.subject(&keys.record(&key)).as_ref(), Some(&key));
            let message = keys.message(ServerId(9), &key);
            assert_eq!(keys.subject_of_message(&message), Some(key));
            assert_eq!(keys.server_of(&message), Some(ServerId(9)));
        }
        assert_eq!(keys.subject(&keys.item(&lock("a"), "x")), Some(lock("a")));
        assert_eq!(keys.server_of(&keys.server(ServerId(u32::MAX))), Some(ServerId(u32::MAX)));
        assert_eq!(keys.subject("elsewhere/l/a"), None);
    }
}
