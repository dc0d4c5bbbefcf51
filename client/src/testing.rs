//! A lock server and a guard in the process of a unit test, in memory.
//!
//! Both are the real services, and know each other: they have waiters, sessions, events and seals,
//! at free ports of this machine. Tokens are not signed, callers have all rights. Needs the feature
//! `testing`, which builds both services:
//!
//! ```toml
//! [dev-dependencies]
//! fence-client = { path = "../fencepost/client", features = ["testing"] }
//! ```
//!
//! A lease ends when the test moves the services' clock, and not by a sleep:
//!
//! ```
//! use std::time::Duration;
//!
//! use fence_client::ErrorKind;
//! use fence_client::testing::TestServers;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), fence_client::Error> {
//! let servers = TestServers::start().await?;
//! let alice = servers.builder().owner("alice").build()?;
//! let bob = servers.builder().owner("bob").build()?;
//!
//! let old = alice.lock("orders/42").acquire().await?;
//! servers.advance(Duration::from_secs(15)).await?;
//! let next = bob.lock("orders/42").acquire().await?;
//! bob.objects().put(&next, "orders/42", "new").await?;
//!
//! let late = alice.objects().put(&old, "orders/42", "late").await;
//! assert!(matches!(late.unwrap_err().kind(), ErrorKind::Stale { .. }));
//! # Ok(())
//! # }
//! ```

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fence_protocol::LockName;
use service_kit::clock::{Clock, SystemClock};
use service_kit::config::parse_flags;
use service_kit::{Kit, listener};

use crate::clock::whole_ms;
use crate::{Client, ClientBuilder, Error, ErrorKind, ids};

/// Lock server and guard of a test; dropping them ends both.
///
/// They run on the tokio runtime that started them, which must not have its time paused: move
/// their clock with [`advance`](Self::advance).
#[derive(Debug)]
#[must_use = "the services end when this is dropped"]
pub struct TestServers {
    lock_server: String,
    fenced_store: String,
    clock: Arc<MovedClock>,
    kits: [Kit; 2],
}

impl TestServers {
    /// Starts both services, each with no leases, objects and marks.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the system has no free port or no thread left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start() -> Result<Self, Error> {
        let clock = Arc::<MovedClock>::default();
        let kits = ["lock-server", "fenced-store"]
            .map(|service| Kit::new(service).with_clock(Arc::clone(&clock) as Arc<dyn Clock>));
        let [lock_kit, guard_kit] = &kits;

        let config: lock_server::config::Config =
            parse_flags(flags("lock-server", "--http-threads=1")).map_err(failed)?;
        let mut settings = config.settings().map_err(failed)?;
        let listener =
            listener::bind(settings.flags.listen, &settings.exposure).await.map_err(failed)?;
        let lock_server = http(listener.local_addr().map_err(failed)?);

        let report_to = format!("--report-to={lock_server}");
        let config: fenced_store::config::Config =
            parse_flags(flags("fenced-store", &report_to)).map_err(failed)?;
        let guard = fenced_store::app::build(config.settings().map_err(failed)?, guard_kit).await;
        let guard = guard.map_err(failed)?.bind().await.map_err(failed)?;
        let fenced_store = http(guard.addr().ok_or_else(|| failed("the guard has no address"))?);
        // The lock server reads the guard's marks before it is complete.
        guard_kit.tasks.spawn(guard.serve());

        settings.store_options.guards.urls.push(fenced_store.parse().map_err(failed)?);
        let app = lock_server::app::build(settings, lock_kit).await.map_err(failed)?;
        lock_kit.tasks.spawn(app.on(listener).serve());
        Ok(Self { lock_server, fenced_store, clock, kits })
    }

    /// Returns the builder of a client of these services.
    pub fn builder(&self) -> ClientBuilder {
        Client::builder().lock_server(&self.lock_server).fenced_store(&self.fenced_store)
    }

    /// Returns a client of these services, with the default owner.
    ///
    /// # Errors
    /// As [`ClientBuilder::build`].
    pub fn client(&self) -> Result<Client, Error> {
        self.builder().build()
    }

    /// Moves the clock of both services on, and not that of their clients: when this returns, the
    /// leases, sessions and waits whose time has passed have ended. Their holders notice as in
    /// production, by the next renewal or a refused write.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the lock server does not reply.
    pub async fn advance(&self, time: Duration) -> Result<(), Error> {
        self.clock.ahead_ms.fetch_add(whole_ms(time), Ordering::SeqCst);
        // The lock server sleeps until the next expiry by its old time. A renewal, which this lease
        // has never had, makes it decide everything that is due.
        let lock = LockName::new("fencepost-testing/advance")?;
        match self.client()?.locks().renew(&lock, ids::lease_id(), None).await {
            Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => Ok(()),
            renewed => renewed.map(drop),
        }
    }
}

impl Drop for TestServers {
    fn drop(&mut self) {
        for kit in &self.kits {
            kit.tasks.begin_shutdown();
        }
    }
}

fn flags(service: &str, last: &str) -> Vec<std::ffi::OsString> {
    [service, "--listen=127.0.0.1:0", "--store=memory:", "--unsigned", last].map(Into::into).into()
}

fn http(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn failed(why: impl Display) -> Error {
    Error::new(ErrorKind::Internal, format!("start the services of a test: {why}"))
}

/// The system's clock, moved on by a test.
#[derive(Debug, Default)]
struct MovedClock {
    system: SystemClock,
    ahead_ms: AtomicU64,
}

impl Clock for MovedClock {
    fn monotonic_ms(&self) -> u64 {
        self.system.monotonic_ms() + self.ahead_ms.load(Ordering::SeqCst)
    }

    fn wall_ms(&self) -> u64 {
        self.system.wall_ms() + self.ahead_ms.load(Ordering::SeqCst)
    }
}
