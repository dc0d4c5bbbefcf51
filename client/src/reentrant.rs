//! Re-entry: one holder, one lease, one token, however often it enters.

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::Token;
use tokio::sync::Mutex;

use crate::{Error, ErrorKind, Lease, LockRequest, ids, timing};

/// How long an entry waits for a release of the same holder that is on its way.
const GIVE_BACK: Duration = Duration::from_secs(5);
/// How often it looks again where the server has not seen that release yet.
const OWN_ATTEMPTS_MAX: u32 = 5;

/// A lock that its holder may enter again while it is inside, where a function that needs the lock
/// calls another that needs it too.
///
/// The holder is this value and its clones: nothing ties it to a thread or a task, since a task has
/// no identity that would survive being moved. Whoever should *not* get in gets no clone, and makes
/// a request of their own. The first entry acquires the lock; the others share its lease and its
/// token, and cost no request; when the last has left, the lock is released.
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
    /// Locked while somebody acquires or releases, so that there is one grant at a time.
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    lease: Weak<Lease>,
    /// Of the last grant, to know it again.
    token: Option<Token>,
}

impl Held {
    /// Whether it is our own lease, being given back, that is in the way.
    fn is_own(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Contended { holder: Some(holder), .. } => Some(holder.token) == self.token,
            _ => false,
        }
    }
}

impl LockRequest {
    /// A lock that its holder may enter again and again; see [`Reentrant`].
    pub fn reentrant(self) -> Reentrant {
        Reentrant::new(self)
    }
}

impl Reentrant {
    pub(crate) fn new(request: LockRequest) -> Self {
        Self { shared: Arc::new(Shared { request, held: Mutex::default() }) }
    }

    /// Enters: acquires the lock, or shares the lease of those who are inside.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]. [`ErrorKind::LeaseLost`] where somebody is still inside with a
    /// lease that is lost: a fresh grant would hide from them that they have to stop. Once all of
    /// them have left, the lock is acquired anew.
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

    /// Acquires the lock. An entry that was dropped gives the lock back in the background, and nobody
    /// is to be refused because of themselves.
    async fn acquire(&self, held: &Held) -> Result<Lease, Error> {
        for attempt in 1..=OWN_ATTEMPTS_MAX {
            self.shared.request.client().drained(GIVE_BACK).await;
            match self.shared.request.clone().acquire().await {
                Err(error) if held.is_own(&error) => {
                    tokio::time::sleep(timing::pause(attempt, ids::random())).await;
                }
                result => return result,
            }
        }
        self.shared.request.clone().acquire().await
    }

    /// Enters, does `work` and leaves. The work is dropped the moment the lease can no longer be
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

/// One time inside; dereferences to the lease. Dropping it leaves too, and the last one to be dropped
/// releases the lock in the background.
#[derive(Debug)]
#[must_use = "an entry that is dropped is left"]
pub struct Entry {
    lease: Arc<Lease>,
    shared: Arc<Shared>,
}

impl Entry {
    /// How many are inside, this one among them.
    pub fn depth(&self) -> usize {
        Arc::strong_count(&self.lease)
    }

    /// Leaves. The last one releases the lock; the others send nothing.
    ///
    /// # Errors
    /// As [`Lease::release`], for the last one. For the others [`ErrorKind::LeaseLost`], where the
    /// lease did not last until now.
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
