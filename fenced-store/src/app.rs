//! Puts a guard together and serves it; the binary and `fence serve` both call this.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use fence_protocol::wire::fence::Guarantee;
use service_kit::http::HttpOptions;
use service_kit::listener::{self, BindError, DrainReport, ListenOptions};
use service_kit::{Kit, http, operational_routes};
use tokio::net::TcpListener;

use crate::access::Access;
use crate::api::router::{Shared, routes};
use crate::counters::Counters;
use crate::proxy::{self, ProxyError};
use crate::refusals::Refusals;
use crate::service::Guard;
use crate::settings::{Backend, Settings};
use crate::store::{self, FenceStore, Fences, OpenError};

/// Why a guard could not start: one sentence with the value and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The proxy's state folder.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// A listen address.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// A guard that is ready to be served.
#[derive(Debug)]
pub struct App {
    /// The API with its operational routes, complete: it can be driven in process.
    pub router: Router,
    /// The reverse proxy, where there is one.
    pub proxy: Option<(SocketAddr, Router)>,
    /// What the guard guarantees.
    pub guarantee: Guarantee,
    listen: SocketAddr,
    options: ListenOptions,
    kit: Kit,
}

/// A guard whose addresses are taken.
#[derive(Debug)]
pub struct Bound {
    app: App,
    listener: TcpListener,
    proxy: Option<TcpListener>,
}

/// Opens the store (or the proxy's state), has it prove itself, and makes the routes.
///
/// # Errors
/// [`StartError`].
pub async fn build(settings: Settings, kit: &Kit) -> Result<App, StartError> {
    let counters = Counters::new(&kit.metrics);
    let access = Access {
        namespace: settings.namespace.clone(),
        keys: settings.keys,
        rules: settings.rules,
        allow_unfenced_reads: settings.allow_unfenced_reads,
    };
    let (fences, objects, lanes) = match &settings.backend {
        Backend::Store(url) => {
            let store = store::open(url, &settings.namespace, kit).await?;
            (Arc::clone(&store) as Arc<dyn Fences>, Some(store as Arc<dyn FenceStore>), None)
        }
        Backend::Proxy(upstream) => {
            let lanes = proxy::open(upstream, &counters, kit).await?;
            (Arc::clone(&lanes) as Arc<dyn Fences>, None, Some((upstream.clone(), lanes)))
        }
    };
    let guarantee = fences.guarantee();
    let refusals = Refusals::default();
    let guard = Arc::new(Guard { access, fences, objects, refusals, counters, kit: kit.clone() });
    let limits = (settings.max_object_bytes, settings.max_body_bytes_in_all);
    let shared = Shared::new(guard, limits.0, limits.1);
    let http = HttpOptions { max_body_bytes: limits.0, ..HttpOptions::default() };
    let proxy = lanes.map(|(upstream, lanes)| {
        let listen = upstream.listen;
        (listen, http::finish(proxy::routes(shared.clone(), lanes, &upstream), kit, http))
    });
    let api = routes(shared).merge(operational_routes(kit));
    let router = http::finish(api, kit, http);
    let (listen, options) = (settings.listen, settings.listener);
    Ok(App { router, proxy, guarantee, listen, options, kit: kit.clone() })
}

impl App {
    /// Takes the addresses.
    ///
    /// # Errors
    /// [`StartError::Bind`] with the address and what to do.
    pub async fn bind(self) -> Result<Bound, StartError> {
        let listener = listener::bind(self.listen).await?;
        let proxy = match &self.proxy {
            Some((addr, _)) => Some(listener::bind(*addr).await?),
            None => None,
        };
        Ok(Bound { app: self, listener, proxy })
    }
}

impl Bound {
    /// Where the API is served.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Where the reverse proxy is served.
    pub fn proxy_addr(&self) -> Option<SocketAddr> {
        self.proxy.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// What the guard guarantees.
    pub fn guarantee(&self) -> Guarantee {
        self.app.guarantee
    }

    /// Serves until the kit's tasks begin to shut down, then finishes what is in flight.
    pub async fn serve(self) -> DrainReport {
        let App { router, proxy, options, kit, .. } = self.app;
        let api = listener::serve(self.listener, router, options, kit.tasks.clone());
        let Some((listener, (_, router))) = self.proxy.zip(proxy) else { return api.await };
        let proxy = listener::serve(listener, router, options, kit.tasks.clone());
        let (api, proxy) = tokio::join!(api, proxy);
        DrainReport { open: api.open + proxy.open, cut: api.cut + proxy.cut }
    }
}
