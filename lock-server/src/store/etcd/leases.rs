//! The etcd leases that keys hang on.
//!
//! A lease of ours has two: the holder's key hangs on the one, and what is remembered of its id on
//! the other, which lives longer, so that the id is refused when nobody was there to write its end.
//! Their ids are random: a second try under the same id finds the first one, and nobody else's.

use std::sync::{Mutex, PoisonError};

use service_kit::clock::Clock;

use super::gateway::{Gateway, GatewayError};
use super::{EtcdStore, secs};

/// How much longer than the lease its holder's etcd lease lives, in seconds: it begins earlier.
const SLACK_S: u64 = 1;
/// For how long one etcd lease is given to what ended, in milliseconds.
const SHARED_MS_MAX: u64 = 5_000;

/// Two etcd leases for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leases {
    pub(super) holder: u64,
    pub(super) record: u64,
    /// Until when the holder's lives at least, in milliseconds of our monotonic clock.
    pub(super) until_ms: u64,
}

impl Leases {
    /// Whether a lease that begins now and lives so long can hang on them: they may have been made
    /// long before, while others were faster at the lock.
    pub(super) fn last(&self, now_ms: u64, ttl_ms: u64) -> bool {
        self.until_ms >= now_ms.saturating_add(ttl_ms)
    }
}

/// What the holder's etcd lease lives, in seconds.
pub(super) fn holder_ttl_s(ttl_ms: u64) -> u64 {
    secs(ttl_ms) + SLACK_S
}

/// An id for an etcd lease that nobody has used: positive, as etcd wants it.
pub(super) fn random_id() -> u64 {
    let random = u64::from_str_radix(&service_kit::ids::random_hex(8), 16).unwrap_or_default();
    (random & (u64::MAX >> 1)).max(1)
}

impl EtcdStore {
    /// Makes the etcd leases of a grant, at the same time.
    pub(super) async fn make_leases(&self, ttl_ms: u64) -> Result<Leases, GatewayError> {
        let (holder, record) = (random_id(), random_id());
        let ttl_s = holder_ttl_s(ttl_ms);
        let remembered_s = ttl_s + secs(self.inner.options.limits.ended_retention_ms);
        let until_ms = self.inner.clock.monotonic_ms() + ttl_s * 1_000;
        let gateway = &self.inner.gateway;
        let made = tokio::try_join!(
            gateway.lease_grant(holder, ttl_s),
            gateway.lease_grant(record, remembered_s)
        );
        match made {
            Ok(_) => Ok(Leases { holder, record, until_ms }),
            Err(error) => {
                self.revoke_later(vec![holder, record]);
                Err(error)
            }
        }
    }

    /// Ends etcd leases that nothing hangs on any more. Where that fails, their time ends them.
    pub(super) fn revoke_later(&self, ids: Vec<u64>) {
        let store = self.clone();
        self.inner.tasks.spawn(async move {
            for id in ids {
                if let Err(error) = store.inner.gateway.lease_revoke(id).await {
                    tracing::debug!(id, %error, "an etcd lease is left to its time");
                }
            }
        });
    }

    /// An etcd lease for what is remembered of idle locks: it lives for the retention at least.
    pub(super) async fn remembering(&self) -> Result<u64, GatewayError> {
        let retention_ms = self.inner.options.limits.ended_retention_ms;
        let shared_ms = (retention_ms / 2).clamp(1_000, SHARED_MS_MAX);
        self.inner
            .remembering
            .get(&self.inner.gateway, &*self.inner.clock, retention_ms, shared_ms)
            .await
    }
}

/// One etcd lease after the other, each shared by what ended in a span of time.
#[derive(Debug, Default)]
pub(super) struct Remembering {
    current: Mutex<Option<(u64, u64)>>,
    making: tokio::sync::Mutex<()>,
}

impl Remembering {
    fn current(&self, now_ms: u64) -> Option<u64> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.filter(|(_, until_ms)| now_ms < *until_ms).map(|(id, _)| id)
    }

    /// It is gone, or may be.
    pub(super) fn forget(&self, id: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|(known, _)| *known == id);
    }

    async fn get(
        &self,
        gateway: &Gateway,
        clock: &dyn Clock,
        retention_ms: u64,
        shared_ms: u64,
    ) -> Result<u64, GatewayError> {
        if let Some(id) = self.current(clock.monotonic_ms()) {
            return Ok(id);
        }
        let _alone = self.making.lock().await;
        // Its time is counted from before it was asked for.
        let now_ms = clock.monotonic_ms();
        if let Some(id) = self.current(now_ms) {
            return Ok(id);
        }
        let id = random_id();
        gateway.lease_grant(id, secs(retention_ms + shared_ms)).await?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some((id, now_ms + shared_ms));
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_leases_that_were_made_long_before_are_not_used() {
        let made_at_ms = 5_000;
        let until_ms = made_at_ms + holder_ttl_s(1_500) * 1_000;
        let leases = Leases { holder: 1, record: 2, until_ms };
        assert!(leases.last(made_at_ms, 1_500));
        // They live longer than what hangs on them, and no longer than that.
        assert!(leases.last(made_at_ms + 1_500, 1_500));
        assert!(!leases.last(made_at_ms + 1_501, 1_500));
    }
}
