//! The two servers in this process: their routers, without sockets, threads and signals.
//!
//! Their clock is tokio's, so a test with `start_paused` runs on simulated time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use clap::Parser;
use fence_simulation::clock::SimClock;
use lock_server::store::LockStore;
use service_kit::clock::{Clock as _, SystemClock};
use service_kit::http::ApiRouter;
use service_kit::{Kit, config};
use tokio::time::Instant;

use crate::api::{Api, Endpoint, Guard, Locks};
use crate::servers::Setup;

/// A server of this process. It ends with this value: requests that wait are refused.
#[derive(Debug)]
pub struct InProcess {
    kit: Kit,
    router: ApiRouter,
}

impl Setup {
    /// Makes the server in this process, with these settings; it listens nowhere.
    ///
    /// # Panics
    /// If it would refuse to start.
    pub async fn in_process(&self) -> InProcess {
        self.in_process_over(|store| store).await
    }

    /// The same; `wrap` makes of a lock server's store the one that it uses.
    ///
    /// # Panics
    /// If it would refuse to start.
    pub async fn in_process_over(
        &self,
        wrap: impl FnOnce(Arc<dyn LockStore>) -> Arc<dyn LockStore>,
    ) -> InProcess {
        // Tokens in memory begin at the wall clock, so a later server begins above an earlier one.
        let wall_ms = SystemClock::new().wall_ms();
        let clock = Arc::new(SimClock::new(Instant::now(), 0).with_wall(wall_ms));
        let kit = Kit::new(self.binary()).with_clock(clock);
        let router = match self.binary() {
            "lock-server" => self.lock_router(&kit, wrap).await,
            _ => self.guard_router(&kit).await,
        };
        InProcess { kit, router }
    }

    fn parse<C: Parser>(&self, prefix: &str) -> C {
        let arguments = std::iter::once(self.binary()).chain(self.arguments());
        let variables: BTreeMap<String, String> = self.variables().collect();
        let parsed = config::parse(prefix, arguments.map(OsString::from), &variables);
        parsed.unwrap_or_else(|error| panic!("{error:?}"))
    }

    async fn lock_router(
        &self,
        kit: &Kit,
        wrap: impl FnOnce(Arc<dyn LockStore>) -> Arc<dyn LockStore>,
    ) -> ApiRouter {
        let config: lock_server::config::Config = self.parse(lock_server::config::PREFIX);
        let settings = config.settings().expect("good settings");
        let store = lock_server::engines::open(&settings.store, &settings.store_options, kit);
        let store = wrap(store.await.expect("a store"));
        lock_server::app::router(store, settings, kit).await.expect("a router")
    }

    async fn guard_router(&self, kit: &Kit) -> ApiRouter {
        let config: fenced_store::config::Config = self.parse(fenced_store::config::PREFIX);
        let settings = config.settings().expect("good settings");
        fenced_store::app::build(settings, kit).await.expect("a guard").router
    }
}

impl InProcess {
    /// A client of its HTTP API.
    pub fn api(&self) -> Api {
        Api::in_process(self.router.clone())
    }

    /// A client of its lock contract.
    pub fn locks(&self) -> Locks {
        Locks(self.api())
    }

    /// A client of its guard contract.
    pub fn guard(&self) -> Guard {
        Guard(self.api())
    }

    /// Current value of a metric.
    ///
    /// # Panics
    /// If the server has no such metric.
    pub async fn metric(&self, name: &str) -> u64 {
        self.api().metric(name).await
    }
}

impl Endpoint for InProcess {
    fn api(&self) -> Api {
        self.api()
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.kit.tasks.begin_shutdown();
    }
}
