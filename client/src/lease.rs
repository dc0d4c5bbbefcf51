//! A lease that is held: renewed in the background, watched here, given back in the end.

mod renewal;
mod state;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use fence_protocol::{LeaseId, LockName, Token, Ttl};
use tokio::runtime::Handle;
use tokio_util::sync::DropGuard;

use self::state::State;
use crate::clock::{self, Moment};
use crate::timing::Window;
use crate::{Client, Error, ErrorKind, FencedStore, LostReason, tasks};

/// A lock that is held.
///
/// It is renewed in the background until it is released or dropped. It can be lost at any time;
/// [`lost`](Self::lost) tells, and fenced calls with a lost lease are refused without being sent.
/// Dropping it never blocks: the release goes out in the background.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    client: Client,
    grant: LeaseReply,
    state: Arc<State>,
    runtime: Handle,
    /// Dropping it stops the renewal.
    renewal: Option<DropGuard>,
    released: bool,
}

impl Lease {
    /// A lease that was granted with `ttl` for each renewal; must be called on a runtime.
    pub(crate) fn begin(client: Client, grant: LeaseReply, window: Window, ttl: Ttl) -> Self {
        let state = Arc::new(State::new(grant.lock.clone(), window));
        let renewal = renewal::Renewal {
            locks: client.locks().clone(),
            state: Arc::clone(&state),
            lock: grant.lock.clone(),
            lease_id: grant.lease_id,
            ttl,
        };
        let renewal = Some(tasks::spawn_until_dropped(renewal.keep()));
        Self { client, grant, state, runtime: Handle::current(), renewal, released: false }
    }

    /// The fencing token: higher than that of every grant of this lock before.
    pub fn token(&self) -> Token {
        self.grant.token
    }

    /// The lock.
    pub fn lock(&self) -> &LockName {
        &self.grant.lock
    }

    /// The id of this grant.
    pub fn lease_id(&self) -> LeaseId {
        self.grant.lease_id
    }

    /// The value of the `Fencing-Token` header, for calls to the guard by other means.
    pub fn fencing_token(&self) -> &str {
        &self.grant.fencing_token
    }

    /// The grant as the server sent it.
    pub fn grant(&self) -> &LeaseReply {
        &self.grant
    }

    /// For how long this lease may be trusted from now on if no renewal succeeds; zero once it is
    /// lost.
    pub fn remaining(&self) -> Duration {
        if self.is_live() { self.state.window().remaining(clock::now()) } else { Duration::ZERO }
    }

    /// Until when this lease may be trusted if no renewal succeeds: 0.8 of its time to live.
    pub fn deadline(&self) -> Moment {
        self.state.window().deadline()
    }

    /// What the last renewal allows, with the moments at which things are due.
    pub fn window(&self) -> Window {
        self.state.window()
    }

    /// Whether this lease can be trusted now. Reads the clock, so that a process that has just
    /// been resumed gets the truth.
    pub fn is_live(&self) -> bool {
        self.state.lost(clock::now()).is_none()
    }

    /// Nothing, where this lease can be trusted now.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] where it cannot.
    pub fn check(&self) -> Result<(), Error> {
        match self.state.lost(clock::now()) {
            None => Ok(()),
            Some(reason) => Err(Error::lease_lost(self.lock(), reason)),
        }
    }

    /// Resolves when this lease can no longer be trusted, with the reason. Cancel-safe; resolves
    /// at once for a lease that is lost already.
    ///
    /// A lease that was released or dropped counts as lost when its time has passed.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let state = Arc::clone(&self.state);
        async move { state.when_lost().await }
    }

    /// The guard's objects.
    pub fn objects(&self) -> &FencedStore {
        self.client.objects()
    }

    /// Gives the lock back, and repeats that where the reply was lost.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] when it had ended before: what was done under it may overlap with
    /// another holder's work, unless the guard watched over it.
    /// [`Unavailable`](ErrorKind::Unavailable) or [`OutcomeUnknown`](ErrorKind::OutcomeUnknown)
    /// when the server cannot be reached; the lease then ends by itself.
    pub async fn release(mut self) -> Result<(), Error> {
        // Dropping this future before its end leaves the release to the background.
        self.renewal = None;
        let result = self.client.locks().release(self.lock(), self.lease_id()).await;
        self.released = true;
        result
    }

    /// Does `work` under this lease, then releases it.
    ///
    /// The work is dropped the moment the lease can no longer be trusted. The clock is read before
    /// each step of the work, so that a process that was stopped past its deadline does not go on
    /// for even one step.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] when the work was cancelled, and also when the work came to its end
    /// but the lease had not lasted until then: its unfenced effects may then overlap with another
    /// holder's. A release that the server could not be told of is no error: the lease ends by
    /// itself.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        let value = self.guard(work(&self)).await?;
        let lock = self.lock().clone();
        match self.release().await {
            Ok(()) => Ok(value),
            Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%lock, %error, "the lock was not released; it expires by itself");
                Ok(value)
            }
        }
    }

    /// Drives `work` for as long as this lease can be trusted.
    async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            if let Err(error) = self.check() {
                return Poll::Ready(Err(error));
            }
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(Error::lease_lost(self.lock(), reason)));
            }
            match work.as_mut().poll(context) {
                Poll::Ready(value) => Poll::Ready(self.check().map(|()| value)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal = None;
        let ended = matches!(self.state.lost(clock::now()), Some(LostReason::Ended(_)));
        if self.released || ended {
            return;
        }
        let locks = self.client.locks().clone();
        let (lock, lease_id) = (self.grant.lock.clone(), self.grant.lease_id);
        self.client.background().spawn_on(&self.runtime, async move {
            if let Err(error) = locks.release(&lock, lease_id).await {
                tracing::debug!(%lock, %lease_id, %error, "a dropped lease was not released");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::ids;

    /// An address where nobody listens.
    fn nowhere() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    /// A lease whose server cannot be reached any more.
    fn orphaned(ttl_ms: u64, store: &str) -> Lease {
        let client = Client::builder().lock_server(nowhere()).fenced_store(store).build().unwrap();
        let lock = LockName::new("a").unwrap();
        let lease_id = ids::lease_id();
        let grant = LeaseReply {
            fencing_token: format!("7;lock=\"a\";lease=\"{lease_id}\""),
            lock,
            lease_id,
            token: Token::new(7).unwrap(),
            ttl_ms,
            owner: client.owner().clone(),
            waited_ms: 0,
        };
        let window = Window::new(clock::now(), ttl_ms);
        Lease::begin(client, grant, window, Ttl::from_ms(ttl_ms).unwrap())
    }

    const LOST: ErrorKind = ErrorKind::LeaseLost { reason: LostReason::Deadline };

    #[tokio::test]
    async fn an_unreachable_server_means_lost_at_the_deadline_and_the_work_is_dropped() {
        struct Dropped<'a>(&'a AtomicBool);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let dropped = AtomicBool::new(false);
        let lease = orphaned(200, &nowhere());
        let deadline = lease.deadline();
        let outcome = lease
            .run(async |_| {
                let _work = Dropped(&dropped);
                std::future::pending::<()>().await;
            })
            .await;
        assert_eq!(*outcome.unwrap_err().kind(), LOST);
        assert!(clock::now() >= deadline);
        assert!(dropped.load(Ordering::SeqCst));
    }

    /// Pending once, and woken at once: the next step comes before any timer or other task.
    async fn next_step() {
        let mut is_first = true;
        poll_fn(|context| {
            if std::mem::take(&mut is_first) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test]
    async fn work_that_slept_through_the_deadline_takes_no_further_step() {
        let went_on = Arc::new(AtomicBool::new(false));
        let lease = orphaned(100, &nowhere());
        let seen = Arc::clone(&went_on);
        // What a process does that was stopped: no timer and no other task runs meanwhile.
        let work = lease.run(async move |lease| {
            while clock::now() < lease.deadline() {
                std::hint::spin_loop();
            }
            next_step().await;
            seen.store(true, Ordering::SeqCst);
        });
        let outcome = tasks::spawn(work).await.unwrap();
        assert_eq!(*outcome.unwrap_err().kind(), LOST);
        assert!(!went_on.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn work_that_ended_after_the_deadline_is_not_called_a_success() {
        let outcome = orphaned(100, &nowhere())
            .run(async |lease| {
                while clock::now() < lease.deadline() {
                    std::hint::spin_loop();
                }
            })
            .await;
        assert_eq!(*outcome.unwrap_err().kind(), LOST);
    }

    #[tokio::test]
    async fn a_fenced_call_with_a_lost_lease_sends_nothing() {
        let store = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let lease = orphaned(50, &format!("http://{}", store.local_addr().unwrap()));
        let was_called = Arc::new(AtomicBool::new(false));
        let called = Arc::clone(&was_called);
        let _store = tasks::spawn_until_dropped(async move {
            while store.accept().await.is_ok() {
                called.store(true, Ordering::SeqCst);
            }
        });
        assert_eq!(lease.lost().await, LostReason::Deadline);
        assert_eq!(lease.remaining(), Duration::ZERO);
        let lock = lease.lock().clone();
        let put = lease.objects().put(&lease, "a", "late").await.unwrap_err();
        let get = lease.objects().get(&lease, "a").await.unwrap_err();
        let delete = lease.objects().delete(&lease, "a").await.unwrap_err();
        let seal = lease.objects().seal(&lease, &lock).await.unwrap_err();
        for error in [put, get, delete, seal] {
            assert_eq!(*error.kind(), LOST);
        }
        assert!(!was_called.load(Ordering::SeqCst));
    }

    #[test]
    fn dropping_outside_of_the_runtime_does_not_panic_or_block() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let lease = runtime.block_on(async { orphaned(60_000, &nowhere()) });
        drop(lease);
        let late = runtime.block_on(async { orphaned(60_000, &nowhere()) });
        drop(runtime);
        drop(late);
    }
}
