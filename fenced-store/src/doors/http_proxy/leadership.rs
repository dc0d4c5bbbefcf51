//! Leadership over lanes that several guards share: who serves them, and the term of this guard.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use fence_protocol::Token;

use super::client::Client;
use super::lanes::Lanes;
use crate::stores::contract::{Fences as _, StoreError};
use crate::stores::redis::lanes::LanesInRedis;

/// Lanes and connections of one term.
#[derive(Debug)]
pub(super) struct ServedTerm {
    pub(super) lanes: Arc<Lanes>,
    pub(super) client: Client,
}

/// Lead of the lanes, held by this guard or another.
#[derive(Debug)]
pub(super) struct Leadership {
    pub(super) lanes: LanesInRedis,
    /// Time to live of this guard's leases.
    ttl: Duration,
    term: RwLock<Option<Arc<ServedTerm>>>,
    /// Leader as last seen, for refusals.
    leader: Mutex<Option<String>>,
}

impl Leadership {
    pub(super) fn new(lanes: LanesInRedis, ttl: Duration) -> Self {
        Self { lanes, ttl, term: RwLock::default(), leader: Mutex::default() }
    }

    /// Begins to serve a term.
    pub(super) fn set_term(&self, term: ServedTerm) {
        *self.term.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(term));
    }

    /// Ends the service of a term.
    pub(super) fn take_term(&self) -> Option<Arc<ServedTerm>> {
        self.term.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Records which guard leads, as far as this one knows.
    pub(super) fn set_leader(&self, leader: Option<String>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }

    /// Sets the floor, and returns once no lane that is open below it is served: those of this
    /// guard end with its term, and another leader confirms its own no more.
    pub(super) async fn set_floor(&self, floor: Token) -> Result<Option<Token>, StoreError> {
        let floor = self.lanes.store.set_floor(floor).await?;
        let lead = self.lanes.lead().await?;
        match self.term() {
            Ok(_) if floor.is_some_and(|floor| floor.get() == lead.floor) => {}
            Ok(term) => term.client.term().end_because("the floor was set".to_owned()),
            Err(_) => tokio::time::sleep(lead.ttl.max(self.ttl)).await,
        }
        Ok(floor)
    }

    /// Returns the term that this guard serves.
    ///
    /// # Errors
    /// [`StoreError::NotLeader`].
    pub(super) fn term(&self) -> Result<Arc<ServedTerm>, StoreError> {
        let term = self.term.read().unwrap_or_else(PoisonError::into_inner).clone();
        term.filter(|term| term.client.term().holds()).ok_or_else(|| {
            let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone();
            StoreError::NotLeader { leader }
        })
    }
}
