//! Registry of clients with a connection of their own, so that CLIENT UNBLOCK finds it by the id
//! that the guard gave to the client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tokens::HeldTokens;

/// Own connections of all threads, by their clients' ids.
#[derive(Debug, Default)]
pub(super) struct OwnClients(Mutex<HashMap<u64, OwnClient>>);

/// A client's own connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnClient {
    /// Tokens that it is registered under.
    pub(super) tokens: HeldTokens,
    /// Client id in Redis.
    pub(super) redis_id: u64,
    /// Run id of the process of this client id.
    pub(super) run_id: Option<String>,
}

/// An entry, removed on drop.
#[derive(Debug)]
pub(super) struct OwnClientEntry {
    clients: Arc<OwnClients>,
    id: u64,
    redis_id: u64,
}

impl OwnClients {
    /// Adds the connection of client `id`, in place of an earlier one.
    pub(super) fn add(self: &Arc<Self>, id: u64, client: OwnClient) -> OwnClientEntry {
        let redis_id = client.redis_id;
        self.all().insert(id, client);
        OwnClientEntry { clients: Arc::clone(self), id, redis_id }
    }

    /// Returns the connection of client `id`.
    pub(super) fn find(&self, id: u64) -> Option<OwnClient> {
        self.all().get(&id).cloned()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, OwnClient>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OwnClientEntry {
    fn drop(&mut self) {
        let mut all = self.clients.all();
        if all.get(&self.id).is_some_and(|client| client.redis_id == self.redis_id) {
            all.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_ends_with_its_connection() {
        let clients = Arc::new(OwnClients::default());
        let client = |redis_id| OwnClient { tokens: HeldTokens::default(), redis_id, run_id: None };
        let first = clients.add(7, client(1));
        let second = clients.add(7, client(2));
        drop(first);
        assert_eq!(clients.find(7), Some(client(2)), "a later connection stays");
        drop(second);
        assert_eq!(clients.find(7), None);
    }
}
