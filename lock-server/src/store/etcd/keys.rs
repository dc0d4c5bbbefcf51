//! The names of the keys. Everything here is without I/O.
//!
//! Names of locks hold slashes, so what comes after one in a key is set off by `!`, which no name
//! has: the waiters of `a` are in another range than those of `a/b`.

use fence_protocol::{LeaseId, LockName, Namespace, SessionId};

use super::txn::Range;

/// The keys of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    prefix: String,
}

/// What a key is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The live lease of a lock.
    Holder(LockName),
    /// Somebody in the queue of a lock.
    Waiter(LockName, LeaseId),
    /// A session serves.
    Session(SessionId),
    /// Something else.
    Other,
}

impl Keys {
    pub(super) fn new(namespace: &Namespace) -> Self {
        Self { prefix: format!("fencepost/{namespace}/") }
    }

    /// All of them.
    pub(super) fn all(&self) -> Range {
        range(self.prefix.clone())
    }

    /// Where the tokens are counted from.
    pub(super) fn meta(&self) -> String {
        format!("{}meta", self.prefix)
    }

    /// Written for the sake of its revision.
    pub(super) fn mint(&self) -> String {
        format!("{}m", self.prefix)
    }

    /// The live lease of a lock.
    pub(super) fn holder(&self, lock: &LockName) -> String {
        format!("{}h/{lock}", self.prefix)
    }

    /// What is remembered of a lock's ids.
    pub(super) fn record(&self, lock: &LockName) -> String {
        format!("{}r/{lock}", self.prefix)
    }

    /// A place in the queue of a lock.
    pub(super) fn waiter(&self, lock: &LockName, lease_id: LeaseId) -> String {
        format!("{}q/{lock}!{lease_id}", self.prefix)
    }

    /// The queue of a lock.
    pub(super) fn queue(&self, lock: &LockName) -> Range {
        range(format!("{}q/{lock}!", self.prefix))
    }

    /// The places in all queues after this one.
    pub(super) fn places_after(&self, key: Option<&str>) -> Range {
        let all = range(format!("{}q/", self.prefix));
        match key {
            Some(key) => Range { begin: format!("{key}\0"), ..all },
            None => all,
        }
    }

    /// A session serves: it takes heartbeats and leases.
    pub(super) fn session(&self, id: SessionId) -> String {
        format!("{}s/{id}", self.prefix)
    }

    /// A session lives.
    pub(super) fn session_lives(&self, id: SessionId) -> String {
        format!("{}l/{id}", self.prefix)
    }

    /// What is known of a session, also when it has ended.
    pub(super) fn session_record(&self, id: SessionId) -> String {
        format!("{}S/{id}", self.prefix)
    }

    /// The records of all sessions.
    pub(super) fn session_records(&self) -> Range {
        range(format!("{}S/", self.prefix))
    }

    /// The live sessions after this one.
    pub(super) fn sessions_after(&self, after: Option<SessionId>) -> Range {
        let all = range(format!("{}l/", self.prefix));
        match after {
            Some(id) => Range { begin: format!("{}\0", self.session_lives(id)), ..all },
            None => all,
        }
    }

    /// Which session lives, by its key.
    pub(super) fn living(&self, key: &str) -> Option<SessionId> {
        key.strip_prefix(&self.prefix)?.strip_prefix("l/")?.parse().ok()
    }

    /// What binds a lease, or a waiting request, to its session.
    pub(super) fn bond(&self, id: SessionId, lock: &LockName, lease_id: LeaseId) -> String {
        format!("{}b/{id}/{lock}!{lease_id}", self.prefix)
    }

    /// Everything that is bound to a session.
    pub(super) fn bonds(&self, id: SessionId) -> Range {
        range(format!("{}b/{id}/", self.prefix))
    }

    /// What a bond of a session binds.
    pub(super) fn bond_of(&self, id: SessionId, key: &str) -> Option<(LockName, LeaseId)> {
        let bond = key.strip_prefix(&self.bonds(id).begin)?;
        let (lock, lease_id) = bond.split_once('!')?;
        Some((LockName::new(lock).ok()?, lease_id.parse().ok()?))
    }

    /// The held locks of a prefix after a name.
    pub(super) fn holders_after(&self, prefix: &str, after: Option<&LockName>) -> Range {
        let all = range(format!("{}h/{prefix}", self.prefix));
        match after.map(|after| format!("{}\0", self.holder(after))) {
            Some(begin) if begin > all.begin => Range { begin, ..all },
            _ => all,
        }
    }

    /// What a key is about.
    pub(super) fn subject(&self, key: &str) -> Subject {
        let Some((kind, name)) = key.strip_prefix(&self.prefix).and_then(|key| key.split_once('/'))
        else {
            return Subject::Other;
        };
        let subject = match kind {
            "h" => LockName::new(name).ok().map(Subject::Holder),
            "q" => name.split_once('!').and_then(|(lock, id)| {
                Some(Subject::Waiter(LockName::new(lock).ok()?, id.parse().ok()?))
            }),
            "s" => name.parse().ok().map(Subject::Session),
            _ => None,
        };
        subject.unwrap_or(Subject::Other)
    }
}

/// Every key that begins so. The last byte is one of ours and never the highest.
fn range(begin: String) -> Range {
    let mut end = begin.clone();
    if let Some(last) = end.pop() {
        end.extend(char::from_u32(u32::from(last) + 1));
    }
    Range { begin, end }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> Keys {
        Keys::new(&Namespace::default())
    }

    fn is_in(range: &Range, key: &str) -> bool {
        range.begin.as_str() <= key && key < range.end.as_str()
    }

    fn name() -> impl Strategy<Value = LockName> {
        "[A-Za-z0-9._:/-]{1,12}".prop_filter_map("a name", |text| LockName::new(&text).ok())
    }

    fn lease() -> LeaseId {
        "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap()
    }

    #[test]
    fn a_queue_is_of_one_lock() {
        let (short, long) = (LockName::new("a").unwrap(), LockName::new("a/b").unwrap());
        assert!(is_in(&keys().queue(&short), &keys().waiter(&short, lease())));
        assert!(!is_in(&keys().queue(&short), &keys().waiter(&long, lease())));
    }

    #[test]
    fn pages_begin_after_the_last_name() {
        let (a, b) = (LockName::new("p/a").unwrap(), LockName::new("p/b").unwrap());
        let page = keys().holders_after("p/", Some(&a));
        assert!(!is_in(&page, &keys().holder(&a)) && is_in(&page, &keys().holder(&b)));
        let earlier = keys().holders_after("p/b", Some(&a));
        assert!(is_in(&earlier, &keys().holder(&b)));
    }

    proptest! {
        #[test]
        fn queues_never_overlap(one in name(), other in name()) {
            let waiter = keys().waiter(&other, lease());
            prop_assert_eq!(is_in(&keys().queue(&one), &waiter), one == other);
            prop_assert_eq!(keys().subject(&waiter), Subject::Waiter(other.clone(), lease()));
            prop_assert_eq!(keys().subject(&keys().holder(&one)), Subject::Holder(one));
            prop_assert!(is_in(&keys().all(), &waiter));
        }
    }
}
