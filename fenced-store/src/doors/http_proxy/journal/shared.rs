//! Journal in Redis, for the leader of a term.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Changes, LanesInRedis, Leader, Term};
use crate::stores::contract::StoreError;
use crate::stores::redis::lanes::LeadError;

/// Pause before a commit that failed is retried.
const RETRY: Duration = Duration::from_millis(50);

/// Lanes in Redis, changed in the name of a leader. All clones share it.
#[derive(Clone, Debug)]
pub(super) struct SharedJournal {
    lanes: LanesInRedis,
    leader: Leader,
    term: Term,
    /// Number of the last batch.
    batch: Arc<AtomicU64>,
}

impl SharedJournal {
    pub(super) fn new(lanes: LanesInRedis, leader: Leader, term: Term) -> Self {
        Self { lanes, leader, term, batch: Arc::default() }
    }

    pub(super) fn lanes(&self) -> &LanesInRedis {
        &self.lanes
    }

    /// Makes changes durable; retries until the term ends. One commit at a time.
    pub(super) async fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        let batch = self.batch.fetch_add(1, Ordering::Relaxed) + 1;
        let over = || StoreError::Unavailable("the guard's term has ended".to_owned());
        loop {
            let lanes = changes.iter().map(|(lock, change)| (lock, (*change).into()));
            let committed = self.term.run(self.lanes.commit(&self.leader, batch, lanes)).await;
            match committed.ok_or_else(over)? {
                Ok(()) => return Ok(()),
                Err(error @ (LeadError::Deposed { .. } | LeadError::Refused(_))) => {
                    let token = self.leader.token;
                    tracing::error!(%token, %error, "a change of lanes was refused; the term ends");
                    self.term.end_because(error.to_string());
                    return Err(over());
                }
                Err(LeadError::Failed(why)) => {
                    tracing::warn!("lanes wait for a commit, which is retried: {why}");
                    self.term.run(tokio::time::sleep(RETRY)).await.ok_or_else(over)?;
                }
            }
        }
    }
}
