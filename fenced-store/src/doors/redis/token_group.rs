//! Clients of one thread that hold the same tokens, such as the connections of a pool.
//!
//! A pool hands out any of its connections. Once one of them was answered `FENCED`, the others can
//! only be answered the same, one failed command each, so those that rest are closed with it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use tokio::sync::Notify;

use super::tokens::HeldTokens;

/// The groups of one thread.
#[derive(Debug, Default)]
pub(super) struct TokenGroups(RefCell<HashMap<HeldTokens, Weak<TokenGroup>>>);

/// Clients that hold the same tokens.
#[derive(Debug, Default)]
pub(super) struct TokenGroup {
    is_refused: Cell<bool>,
    refused: Notify,
}

impl TokenGroups {
    /// The group of `tokens`, which were just admitted; `None` for a client that holds none.
    pub(super) fn join(&self, tokens: &HeldTokens) -> Option<Rc<TokenGroup>> {
        if tokens.is_empty() {
            return None;
        }
        let mut groups = self.0.borrow_mut();
        let known = groups.get(tokens).and_then(Weak::upgrade);
        // After a loss of marks tokens can be admitted that were refused before.
        if let Some(group) = known.filter(|group| !group.is_refused()) {
            return Some(group);
        }
        let group = Rc::new(TokenGroup::default());
        groups.insert(tokens.clone(), Rc::downgrade(&group));
        Some(group)
    }

    /// Removes groups without clients; to be called now and then.
    pub(super) fn sweep(&self) {
        self.0.borrow_mut().retain(|_, group| group.strong_count() > 0);
    }
}

impl TokenGroup {
    /// A client of the group was answered that its tokens are refused.
    pub(super) fn refuse(&self) {
        self.is_refused.set(true);
        self.refused.notify_waiters();
    }

    /// Whether a client of the group was answered that its tokens are refused.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.get()
    }

    /// Waits until a client of the group is answered that its tokens are refused.
    pub(super) async fn refused(&self) {
        self.refused.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Fence;
    use crate::verdict::tests::mark;

    #[test]
    fn a_group_lives_as_long_as_its_clients() {
        let lock = fence_protocol::LockName::new("a").unwrap();
        let fence = |token| vec![Fence { lock: lock.clone(), presented: mark(token, token) }];
        let one = HeldTokens::default().with(fence(1)).unwrap();
        let two = HeldTokens::default().with(fence(2)).unwrap();
        let groups = TokenGroups::default();
        assert!(groups.join(&HeldTokens::default()).is_none());
        let first = groups.join(&one).unwrap();
        assert!(Rc::ptr_eq(&first, &groups.join(&one).unwrap()));
        assert!(!Rc::ptr_eq(&first, &groups.join(&two).unwrap()));
        first.refuse();
        let again = groups.join(&one).unwrap();
        assert!(first.is_refused() && !again.is_refused());
        drop(again);
        groups.sweep();
        assert!(groups.0.borrow().is_empty());
    }
}
