//! Threads of the port: each accepts clients and serves them alone.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redis_link::LinkState;
use service_kit::listener::{self, BindError};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::hub::Hub;
use super::{Port, PortSettings};
use crate::doors::tcp::client_socket;
use crate::doors::tcp::client_socket::ClientSocket;

/// Interval of the search for unused connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(20);

/// A port whose address is bound.
#[derive(Debug)]
pub(crate) struct Listening {
    port: Arc<Port>,
    listener: std::net::TcpListener,
}

/// Binds the address.
///
/// # Errors
/// An error with the address and the remedy.
pub(crate) async fn listen(port: Arc<Port>) -> Result<Listening, BindError> {
    let address = port.settings.listen;
    let (listener, _) = listener::bind(address, &port.settings.exposure).await?.into_parts();
    let listener = listener.into_std().map_err(|error| BindError::Other(address, error))?;
    Ok(Listening { port, listener })
}

impl Listening {
    pub(crate) fn settings(&self) -> &PortSettings {
        &self.port.settings
    }

    /// Returns the address.
    pub(crate) fn addr(&self) -> Option<std::net::SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves clients until shutdown begins, and those with a command under way for `drain` more.
    pub(crate) async fn serve(self, drain: Duration) {
        let stop = self.port.guard.kit.tasks.shutdown_token();
        let mut ends = Vec::new();
        for number in 0..self.port.settings.threads {
            let (end, ended) = oneshot::channel();
            let port = Arc::clone(&self.port);
            let stop = stop.clone();
            let listener = self.listener.try_clone();
            let body = move || {
                if let Err(error) = listener.and_then(|listener| run(port, listener, stop, drain)) {
                    tracing::error!(%error, "a thread of the Redis port ended");
                }
                // The receiver is gone if the server ended.
                let _ = end.send(());
            };
            let spawned =
                std::thread::Builder::new().name(format!("redis-port-{number}")).spawn(body);
            match spawned {
                Ok(_) => ends.push(ended),
                Err(error) => tracing::error!(%error, "cannot start a thread of the Redis port"),
            }
        }
        for ended in ends {
            // A thread that panicked has ended too.
            let _ = ended.await;
        }
    }
}

fn run(
    port: Arc<Port>,
    listener: std::net::TcpListener,
    stop: CancellationToken,
    drain: Duration,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let listener = TcpListener::from_std(listener)?;
        let hub = Hub::new(port);
        let clients = Arc::new(Semaphore::new(connections(&hub)));
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept_all(&hub, &listener, &clients, &stop) => {}
            () = look_after(&hub) => {}
            () = follow(&hub) => {}
        }
        drop(listener);
        hub.close_spares();
        let all = u32::try_from(connections(&hub)).unwrap_or(u32::MAX);
        // Remaining clients are disconnected.
        let _ = tokio::time::timeout(drain, clients.acquire_many(all)).await;
        Ok(())
    })
}

fn connections(hub: &Hub) -> usize {
    let settings = &hub.port.settings;
    (settings.max_connections / settings.threads).clamp(1, 1 << 20)
}

/// Accepts clients until shutdown; at the limit it waits for one to leave.
async fn accept_all(
    hub: &Rc<Hub>,
    listener: &TcpListener,
    clients: &Arc<Semaphore>,
    stop: &CancellationToken,
) {
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(clients).acquire_owned().await else { return };
        let stream = client_socket::accept(listener).await;
        let hub = Rc::clone(hub);
        let stop = stop.clone();
        spawn_local(async move {
            let tls = hub.port.settings.tls.clone();
            match ClientSocket::prepared(stream, tls, &hub.port.guard.kit.tasks, &stop).await {
                Ok(socket) => {
                    hub.port.counters.clients.inc();
                    Client::new(Rc::clone(&hub), socket).serve(stop).await;
                    hub.port.counters.clients.dec();
                }
                Err(error) => tracing::debug!(%error, "no TLS with a client of the Redis port"),
            }
            drop(slot);
        });
    }
}

async fn look_after(hub: &Hub) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        hub.close_idle();
    }
}

/// Probes the connections whenever the guard's own connection to Redis was replaced: the same fault
/// may have hit them, and a broken connection shows it only when a reply is due.
async fn follow(hub: &Hub) {
    let mut states = hub.port.redis.link.watch();
    states.mark_unchanged();
    while states.changed().await.is_ok() {
        if matches!(&*states.borrow_and_update(), LinkState::Up(_)) {
            hub.probe();
        }
    }
    // The link lives as long as the port.
    std::future::pending().await
}
