//! Re-entry: one holder has one lease and one token, however often it enters.

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::Token;
use tokio::sync::Mutex;

use crate::{Error, ErrorKind, Lease, LockRequest, ids, timing};

/// Longest wait of an entry for a background release by the same holder.
const RELEASE_WAIT: Duration = Duration::from_secs(5);
/// Most retries of an entry that is refused because the server has not seen that release yet.
const OWN_ATTEMPTS_MAX: u32 = 5;

/// Lock that its holder may enter again while inside: for a function that needs the lock and calls
/// another one that needs it too.
///
/// The holder is this value with its clones: it is not tied to a thread or a task, since a task has
/// no identity that would survive a move. Code that must *not* share the lock gets no clone and
/// makes its own request. The first entry acquires the lock; further entries share its lease and
/// token without a request; when the last one has left, the lock is released.
///
/// ```no_run
/// # async fn example(client: fence_client::Client) -> Result<(), fence_client::Error> {
/// use fence_client::Reentrant;
///
/// async fn add_line(order: &Reentrant) -> Result<(), fence_client::Error> {
///     let entry = order.enter().await?;
///     entry.objects().put(&*entry, "orders/42/line", "1 book").await?;
///     entry.leave().await
/// }
///
/// let order = client.lock("orders/42").reentrant();
/// let entry = order.enter().await?;
/// add_line(&order).await?; // the same lease, the same token
/// entry.leave().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Reentrant {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    request: LockRequest,
    /// Locked during an acquire or a release, so that there is one grant at a time.
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    lease: Weak<Lease>,
    /// Token of the last grant, to recognise it in a refusal.
    token: Option<Token>,
}

impl Held {
    /// Returns `true` if the lock is held by this holder's last lease, whose release is in flight.
    fn is_own(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Contended { holder: Some(holder), .. } => Some(holder.token) == self.token,
            _ => false,
        }
    }
}

impl LockRequest {
    /// Turns the request into a lock that its holder may enter several times; see [`Reentrant`].
    pub fn reentrant(self) -> Reentrant {
        Reentrant { shared: Arc::new(Shared { request: self, held: Mutex::default() }) }
    }
}

impl Reentrant {
    /// Enters: acquires the lock, or shares the lease of the live entries. Cancel-safe.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]. [`ErrorKind::LeaseLost`] while there are entries whose lease is
    /// lost: a new grant would hide from them that they must stop. After all of them have left, the
    /// next entry acquires the lock again.
    pub async fn enter(&self) -> Result<Entry, Error> {
        let mut held = self.shared.held.lock().await;
        if let Some(lease) = held.lease.upgrade() {
            lease.check()?;
            return Ok(Entry { lease, shared: Arc::clone(&self.shared) });
        }
        let lease = Arc::new(self.acquire(&held).await?);
        *held = Held { lease: Arc::downgrade(&lease), token: Some(lease.token()) };
        Ok(Entry { lease, shared: Arc::clone(&self.shared) })
    }

    /// Acquires the lock. A dropped entry releases the lock in the background, and its own holder
    /// must not be refused because of that.
    async fn acquire(&self, held: &Held) -> Result<Lease, Error> {
        for attempt in 1..=OWN_ATTEMPTS_MAX {
            self.shared.request.client().drained(RELEASE_WAIT).await;
            match self.shared.request.clone().acquire().await {
                Err(error) if held.is_own(&error) => {
                    tokio::time::sleep(timing::pause(attempt, ids::random())).await;
                }
                result => return result,
            }
        }
        self.shared.request.clone().acquire().await
    }

    /// Enters, runs `work` and leaves. The work is dropped as soon as the lease can no longer be
    /// trusted, as by [`Lease::run`].
    ///
    /// # Errors
    /// As [`enter`](Self::enter) and [`Lease::run`].
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, Error> {
        let entry = self.enter().await?;
        let value = entry.lease.guard(work(&entry.lease)).await?;
        match entry.leave().await {
            Ok(()) => Ok(value),
            Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the lock was not released; it expires by itself");
                Ok(value)
            }
        }
    }
}

/// One entry into a [`Reentrant`] lock; dereferences to the lease. Dropping it leaves the lock, and
/// the last one releases it in the background.
#[derive(Debug)]
#[must_use = "an entry that is dropped is left"]
pub struct Entry {
    lease: Arc<Lease>,
    shared: Arc<Shared>,
}

impl Entry {
    /// Number of entries that share the lease, this one included.
    pub fn depth(&self) -> usize {
        Arc::strong_count(&self.lease)
    }

    /// Leaves. The last entry releases the lock; the others send nothing.
    ///
    /// # Errors
    /// For the last entry as [`Lease::release`]; for the others [`ErrorKind::LeaseLost`] if the
    /// lease is lost.
    pub async fn leave(self) -> Result<(), Error> {
        let Self { lease, shared } = self;
        let _held = shared.held.lock().await;
        let checked = lease.check();
        match Arc::into_inner(lease) {
            Some(lease) => lease.release().await,
            None => checked,
        }
    }
}

impl Deref for Entry {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
