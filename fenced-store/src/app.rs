//! Puts a guard together and serves it; the binary and `fence serve` both call this.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use fence_protocol::wire::fence::{Guarantee, Mode};
use service_kit::health::Status;
use service_kit::http::{ApiRouter, HttpOptions};
use service_kit::listener::{
    self, BoundListener, DrainReport, Exposure, HttpThreads, ListenOptions,
};
use service_kit::process::StartError;
use service_kit::{Kit, http, operational_routes, otlp};

use crate::counters::Counters;
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http_proxy::{self, Proxy};
use crate::doors::objects::access::need;
use crate::doors::objects::router::routes;
use crate::doors::postgres;
use crate::doors::redis::{Front, Listening, PortSettings};
use crate::doors::tcp::front::{self, BoundDoor};
use crate::fencing::FencingPolicy;
use crate::guard::Guard;
use crate::observe::Observer;
use crate::refusals::Refusals;
use crate::report::Reporter;
use crate::settings::{Backend, Settings};
use crate::stores;
use crate::stores::carry::carry_marks;
use crate::stores::contract::{FenceStore, Fences};
use crate::stores::open::Behind;

/// A guard that is ready to be served.
#[derive(Debug)]
pub struct App {
    /// The API with its operational routes, complete: it can be driven in process.
    pub router: ApiRouter,
    /// The reverse proxy, where there is one.
    pub proxy: Option<(SocketAddr, ApiRouter)>,
    /// Guarantee of the guard.
    pub guarantee: Guarantee,
    redis_port: Option<Front>,
    postgres_port: Option<Arc<postgres::Port>>,
    guard: Arc<Guard>,
    listen: SocketAddr,
    exposure: Exposure,
    options: ListenOptions,
    kit: Kit,
}

/// A guard whose addresses are bound.
#[derive(Debug)]
pub struct Bound {
    app: App,
    listener: BoundListener,
    /// The proxy, and its threads: a change of threads would cost it more than most bodies. The
    /// objects API hashes and stores its bodies.
    proxy: Option<(BoundListener, HttpThreads)>,
    redis_port: Option<Listening>,
    postgres_port: Option<BoundDoor<postgres::Port>>,
}

/// Opens the store (or the proxy's state), probes it and makes the routes.
///
/// # Errors
/// [`StartError`].
pub async fn build(settings: Settings, kit: &Kit) -> Result<App, StartError> {
    if let Some(collector) = &settings.collector {
        otlp::export(collector, kit);
    }
    let counters = Counters::new(&kit.metrics);
    let Opened { fences, objects, lanes, redis } = open(&settings, &counters, kit).await?;
    let fencing = FencingPolicy {
        namespace: settings.namespace.clone(),
        keys: settings.keys,
        rules: settings.rules,
        allow_unfenced_reads: settings.allow_unfenced_reads,
        clock: Arc::clone(&kit.clock),
    };
    let observer = Observer::new(settings.mode, counters.clone(), Arc::clone(&kit.clock));
    let guard = Arc::new(Guard {
        fencing,
        fences,
        objects,
        refusals: Refusals::default(),
        reporter: settings.report.map(|options| Reporter::start(options, kit)),
        counters,
        observer,
        fronts: Mutex::default(),
        kit: kit.clone(),
    });
    let guarantee = guard.guarantee();
    announce(&guard);
    let redis_port = open_port(settings.redis_port, redis, &guard).await?;
    let postgres_port = settings.postgres_port;
    let postgres_port =
        postgres_port.map(|port| postgres::Port::new(Arc::clone(&guard), port, kit));
    let max_body_bytes = settings.max_object_bytes;
    let shared =
        HandlerState::new(Arc::clone(&guard), max_body_bytes, settings.max_body_bytes_in_all);
    let http = HttpOptions { max_body_bytes, ..HttpOptions::default() };
    let names = &settings.host_names;
    let options = settings.listener;
    let proxy = lanes.map(|lanes| {
        let listen = lanes.upstream.listen;
        let proxy = Proxy::new(shared.clone(), lanes, options.max_connections);
        (listen, http_proxy::router(proxy, http, names))
    });
    let FencingPolicy { namespace, keys, .. } = &guard.fencing;
    let api = routes(shared).merge(operational_routes(kit, namespace, keys.as_ref()));
    let guarded = Arc::clone(&guard);
    let api = access_control::protect(api, settings.access.start(kit), move |asked| {
        need(&guarded.fencing.rules, asked)
    });
    let router = http::finish(api, kit, http, names);
    let listen = settings.listen;
    let exposure = settings.exposure;
    exposure.start(kit);
    settings.key_flags.warn_of_readers(kit);
    let kit = kit.clone();
    Ok(App {
        router,
        proxy,
        guarantee,
        redis_port,
        postgres_port,
        guard,
        listen,
        exposure,
        options,
        kit,
    })
}

/// Backend of the guard, opened and probed.
struct Opened {
    fences: Arc<dyn Fences>,
    objects: Option<Arc<dyn FenceStore>>,
    lanes: Option<Arc<http_proxy::LaneService>>,
    redis: Option<Behind>,
}

async fn open(settings: &Settings, counters: &Counters, kit: &Kit) -> Result<Opened, StartError> {
    let mut redis = None;
    let (fences, objects, lanes) = match &settings.backend {
        Backend::Store(url) => {
            let opened = stores::open(url, &settings.namespace, settings.redis, kit).await?;
            redis = opened.redis;
            if let Some(port) = &settings.postgres_port {
                let id = opened.database_id.as_deref();
                let checked = postgres::check_store(port, &settings.namespace, id).await;
                checked.map_err(no_postgres_port)?;
            }
            if let Some(earlier) = &settings.marks_from {
                let store = opened.store.as_ref();
                let count = carry_marks(earlier, store, &settings.namespace).await?;
                tracing::info!(count, %earlier, "marks of the earlier store were carried over");
            }
            let fences = Arc::clone(&opened.store) as Arc<dyn Fences>;
            (fences, Some(opened.store as Arc<dyn FenceStore>), None)
        }
        Backend::Postgres => {
            let port = settings.postgres_port.as_ref();
            let port = port.ok_or_else(|| no_postgres_port("it has no settings"))?;
            let marks = postgres::open_marks(port, &settings.namespace).await;
            (marks.map_err(no_postgres_port)?, None, None)
        }
        Backend::Proxy(upstream) => {
            let namespace = &settings.namespace;
            let lanes = http_proxy::open(upstream, namespace, settings.redis, counters, kit);
            let lanes = lanes.await?;
            (Arc::clone(&lanes) as Arc<dyn Fences>, None, Some(lanes))
        }
    };
    Ok(Opened { fences, objects, lanes, redis })
}

async fn open_port(
    settings: Option<PortSettings>,
    redis: Option<Behind>,
    guard: &Arc<Guard>,
) -> Result<Option<Front>, StartError> {
    let Some(settings) = settings else { return Ok(None) };
    let redis = redis.ok_or("the Redis port cannot start: it needs --store redis://…")?;
    let port = Front::open(Arc::clone(guard), redis, settings).await;
    Ok(Some(port.map_err(|why| format!("the Redis port cannot start: {why}"))?))
}

fn no_postgres_port(why: impl fmt::Display) -> String {
    format!("the PostgreSQL port cannot start: {why}")
}

/// Logs what the guard protects and its guarantee.
fn announce(guard: &Guard) {
    let stores = guard.stores();
    let mode = stores.mode.as_str();
    for store in stores.stores {
        let kind = store.kind;
        let target = store.target;
        let guarantee = store.guarantee.as_str();
        tracing::info!(kind, target, guarantee, mode, probe = store.probe, "a store is guarded");
        for gap in store.gaps {
            tracing::info!(kind, target, "gap: {gap}");
        }
    }
    if stores.mode == Mode::Observe {
        let text = "observe mode: nothing is refused and nothing is protected; set --mode enforce to protect";
        guard.kit.health.set("mode", Status::Warn(text.to_owned()));
    }
}

impl App {
    /// Binds the addresses.
    ///
    /// # Errors
    /// [`StartError`] with the address.
    pub async fn bind(self) -> Result<Bound, StartError> {
        let listener = listener::bind(self.listen, &self.exposure).await?;
        let proxy = match &self.proxy {
            Some((addr, _)) => {
                let bound = listener::bind(*addr, &self.exposure).await?;
                let count = HttpThreads::default_count(NonZeroUsize::MIN);
                let threads = HttpThreads::start(count, &self.kit.tasks).await;
                let threads = threads.map_err(|error| {
                    format!(
                        "the proxy's threads cannot start: {error}; check the limits of threads \
                         and open files"
                    )
                })?;
                Some((bound, threads))
            }
            None => None,
        };
        let redis_port = match &self.redis_port {
            Some(port) => Some(port.listen().await?),
            None => None,
        };
        let postgres_port = match &self.postgres_port {
            Some(port) => Some(front::bind(Arc::clone(port)).await?),
            None => None,
        };
        let opened = [
            ("redis-port", redis_port.as_ref().and_then(Listening::addr)),
            ("postgres-port", postgres_port.as_ref().and_then(BoundDoor::addr)),
            ("objects", listener.local_addr().ok()),
            ("reverse-proxy", proxy.as_ref().and_then(|(proxy, _)| proxy.local_addr().ok())),
        ];
        for (kind, addr) in opened {
            if let Some(addr) = addr {
                self.guard.opened(kind, addr);
            }
        }
        Ok(Bound { app: self, listener, proxy, redis_port, postgres_port })
    }
}

impl Bound {
    /// Address of the API.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Address of the Redis port.
    pub fn redis_addr(&self) -> Option<SocketAddr> {
        self.redis_port.as_ref().and_then(Listening::addr)
    }

    /// Each open door: its name behind the program's (empty for the API), its title, and its URL
    /// by its address.
    pub fn doors(&self) -> impl Iterator<Item = (&'static str, &'static str, String)> {
        let proxy = self.proxy.as_ref().and_then(|(proxy, _)| proxy.url());
        let redis = self.redis_port.as_ref().and_then(Listening::url);
        let postgres = self.postgres_port.as_ref().and_then(BoundDoor::url);
        let doors = [
            ("", "the API", self.listener.url()),
            (" proxy", "the reverse proxy", proxy),
            (" redis port", "the Redis port", redis),
            (" postgres port", "the PostgreSQL port", postgres),
        ];
        doors.into_iter().filter_map(|(name, title, url)| Some((name, title, url?)))
    }

    /// Guarantee of the guard.
    pub fn guarantee(&self) -> Guarantee {
        self.app.guarantee
    }

    /// Serves until the kit's tasks begin to shut down, then finishes what is in flight.
    pub async fn serve(self) -> DrainReport {
        let App { router, proxy, options, kit, .. } = self.app;
        if let Some(port) = self.redis_port {
            kit.tasks.spawn(port.serve(options.drain_deadline));
        }
        if let Some(port) = self.postgres_port {
            kit.tasks.spawn(port.serve(options.drain_deadline));
        }
        let api = listener::serve(self.listener, router, options, kit.tasks.clone());
        let Some(((listener, threads), (_, router))) = self.proxy.zip(proxy) else {
            return api.await;
        };
        let options = ListenOptions { http2: true, ..options };
        let proxy = listener::serve_on(&threads, listener, router, options, kit.tasks.clone());
        let (api, proxy) = tokio::join!(api, proxy);
        DrainReport { open: api.open + proxy.open, cut: api.cut + proxy.cut }
    }
}
