//! Puts a lock server together and serves it; the binary and `fence serve` both call this.

use std::net::SocketAddr;
use std::sync::Arc;

use service_kit::health::Status;
use service_kit::http::{ApiRouter, Fold, HttpOptions, LockRoute};
use service_kit::listener::{
    self, BoundListener, DrainReport, Exposure, HttpThreads, ListenOptions,
};
use service_kit::process::{self, StartError};
use service_kit::{Kit, http, operational_routes, otlp};
use tokio::sync::Semaphore;

use crate::api::{self, Service};
use crate::config::Settings;
use crate::counters::Counters;
use crate::engines::guarantee::guarantee;
use crate::events::Events;
use crate::grants::Grants;
use crate::grants::after_grant::Seals;
use crate::guards::sealer::Sealer;
use crate::signer::Signer;
use crate::store::{Limits, LockStore};
use crate::{engines, ui};

/// Lock names may be written with plain slashes.
const FOLDS: &[Fold] = &[
    Fold { prefix: "/v1/locks/", verbs: &["acquire", "renew", "release", "revoke"] },
    Fold { prefix: "/v1/terraform/", verbs: &[] },
];

/// A lock server that is ready to be served.
#[derive(Debug)]
pub struct App {
    /// The API with its operational routes, complete: it can be driven in process.
    pub router: ApiRouter,
    listen: SocketAddr,
    exposure: Exposure,
    options: ListenOptions,
    threads: HttpThreads,
    kit: Kit,
}

/// A lock server whose address is taken.
#[derive(Debug)]
pub struct Bound {
    app: App,
    listener: BoundListener,
}

/// Opens the store and makes the routes.
///
/// # Errors
/// [`StartError`].
pub async fn build(mut settings: Settings, kit: &Kit) -> Result<App, StartError> {
    let service = &mut settings.flags.service;
    let connections = process::raise_open_files(service.listener.max_connections);
    service.listener.max_connections = connections;
    settings.store_options.limits.waiting = Limits::waiting_of(connections);
    if let Some(collector) = &settings.flags.service.otlp_endpoint {
        otlp::export(collector, kit);
    }
    let threads = HttpThreads::start(settings.http_threads, &kit.tasks).await.map_err(|error| {
        format!(
            "the HTTP threads cannot start: {error}; check the limits of threads and open files \
             (ulimit)"
        )
    })?;
    let store = engines::open(&settings.store, &settings.store_options, kit).await?;
    kit.health.set("guarantee", Status::Info(guarantee(&settings.store).to_string()));
    let listen = settings.flags.listen;
    let exposure = settings.exposure.clone();
    exposure.start(kit);
    let options = settings.flags.service.listener;
    let router = router(store, settings, kit).await?;
    Ok(App { router, listen, exposure, options, threads, kit: kit.clone() })
}

/// The routes of a lock server over a store that is open: what [`build`] serves, without its
/// threads.
///
/// # Errors
/// [`StartError`].
pub async fn router(
    store: Arc<dyn LockStore>,
    settings: Settings,
    kit: &Kit,
) -> Result<ApiRouter, StartError> {
    let flags = &settings.flags;
    let url = &settings.store;
    let options = &settings.store_options;
    let (events, store) = Events::observe(store, url, flags.events, options, kit).await?;
    let signer = Signer::new(options.namespace.clone(), settings.keys);
    let sealer = Sealer::new(&options.guards, signer.clone(), kit)?;
    let operational = operational_routes(kit, signer.namespace(), signer.keys());
    flags.keys.warn_of_readers(kit);
    let service = Service {
        grants: Arc::new(Grants {
            store: store.clone(),
            seals: Seals::start(settings.seal, sealer.clone(), store.clone(), kit),
            kit: kit.clone(),
        }),
        store,
        events,
        signer,
        sealer,
        revoke_unsealed: flags.revoke_unsealed,
        guard_reads: Semaphore::new(api::GUARD_READS_MAX),
        lock_delays: settings.lock_delays,
        ttl_range: settings.ttl_range,
        counters: Counters::new(&kit.metrics),
        kit: kit.clone(),
    };
    let service = Arc::new(service);
    let gate = settings.access.start(kit);
    let found = api::found(&service).into_iter();
    let found = found.map(|route| access_control::protect_found(route, &gate, api::need));
    let found: Vec<LockRoute> = found.collect();
    let routes = api::router(service).merge(operational);
    let routes = if flags.no_ui { routes } else { routes.merge(ui::router()) };
    let routes = access_control::protect(routes, gate, api::need);
    let options = HttpOptions { folds: FOLDS, pages: &ui::PAGES, ..HttpOptions::default() };
    Ok(http::finish_with(routes, &found, kit, options, &flags.service.host_names()))
}

impl App {
    /// Binds the address.
    ///
    /// # Errors
    /// [`StartError`] with the address.
    pub async fn bind(self) -> Result<Bound, StartError> {
        let listener = listener::bind(self.listen, &self.exposure).await?;
        Ok(Bound { app: self, listener })
    }

    /// Uses a listener that was bound before: for a process in which other parts need the address
    /// before this server can start.
    pub fn on(self, listener: BoundListener) -> Bound {
        Bound { app: self, listener }
    }
}

impl Bound {
    /// URL of the API, by its address.
    pub fn url(&self) -> Option<String> {
        self.listener.url()
    }

    /// Serves until the kit's tasks begin to shut down, then finishes what is in flight. Waiting
    /// acquires receive 503 at once then.
    pub async fn serve(self) -> DrainReport {
        let App { router, options, threads, kit, .. } = self.app;
        listener::serve_on(&threads, self.listener, router, options, kit.tasks).await
    }
}
