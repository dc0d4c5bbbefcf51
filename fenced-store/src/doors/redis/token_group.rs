//! Clients of one thread that hold the same tokens, such as the connections of a pool.
//!
//! A pool may use any of its connections. Once one of them got `FENCED`, the others would get it
//! too, one failed command each, so the idle ones are closed with it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use tokio::sync::Notify;

use super::tokens::HeldTokens;

/// Groups of one thread.
#[derive(Debug, Default)]
pub(super) struct TokenGroups(RefCell<HashMap<HeldTokens, Weak<TokenGroup>>>);

/// Clients that hold the same tokens.
#[derive(Debug, Default)]
pub(super) struct TokenGroup {
    is_refused: Cell<bool>,
    refused: Notify,
}

impl TokenGroups {
    /// Joins the group of `tokens`, which were just admitted; `None` for a client without tokens.
    pub(super) fn join(&self, tokens: &HeldTokens) -> Option<Rc<TokenGroup>> {
        if tokens.is_empty() {
            return None;
        }
        let mut groups = self.0.borrow_mut();
        let known = groups.get(tokens).and_then(Weak::upgrade);
        // After a loss of marks, refused tokens can be admitted again.
        if let Some(group) = known.filter(|group| !group.is_refused()) {
            return Some(group);
        }
        let group = Rc::new(TokenGroup::default());
        groups.insert(tokens.clone(), Rc::downgrade(&group));
        Some(group)
    }

    /// Removes groups without clients; called periodically.
    pub(super) fn sweep(&self) {
        self.0.borrow_mut().retain(|_, group| group.strong_count() > 0);
    }
}

impl TokenGroup {
    /// Records that a client of the group got a refusal of its tokens.
    pub(super) fn refuse(&self) {
        self.is_refused.set(true);
        self.refused.notify_waiters();
    }

    /// Returns `true` if a client of the group got a refusal of its tokens.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.get()
    }

    /// Waits until a client of the group gets a refusal of its tokens.
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
