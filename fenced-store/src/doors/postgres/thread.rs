//! Threads of the port: each accepts clients and serves them alone.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use service_kit::listener::{self, BindError};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio_util::sync::CancellationToken;

use super::{Port, PortThread, client};
use crate::doors::tcp::client_socket;

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
    /// Returns the address.
    pub(crate) fn addr(&self) -> Option<std::net::SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// URL of the port, by its address.
    pub(crate) fn url(&self) -> Option<String> {
        let database = self.port.settings.upstream.database();
        Some(format!("postgres://{}/{database}", self.addr()?))
    }

    /// Serves clients until shutdown begins, and those with a statement or a transaction under way
    /// for `drain` more.
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
                    tracing::error!(%error, "a thread of the PostgreSQL port ended");
                }
                // The receiver is gone if the server ended.
                let _ = end.send(());
            };
            let name = format!("postgres-port-{number}");
            match std::thread::Builder::new().name(name).spawn(body) {
                Ok(_) => ends.push(ended),
                Err(error) => {
                    tracing::error!(%error, "cannot start a thread of the PostgreSQL port");
                }
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
        let settings = &port.settings;
        let limit = (settings.max_connections / settings.threads).clamp(1, 1 << 20);
        let registry = port.registry();
        let thread = Rc::new(PortThread { port: Arc::clone(&port), registry });
        let clients = Arc::new(Semaphore::new(limit));
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept_all(&thread, &listener, &clients, &stop) => {}
        }
        drop(listener);
        let all = u32::try_from(limit).unwrap_or(u32::MAX);
        // Remaining clients are disconnected.
        let _ = tokio::time::timeout(drain, clients.acquire_many(all)).await;
        Ok(())
    })
}

/// Accepts clients until shutdown; at the limit it waits for one to leave.
async fn accept_all(
    thread: &Rc<PortThread>,
    listener: &TcpListener,
    clients: &Arc<Semaphore>,
    stop: &CancellationToken,
) {
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(clients).acquire_owned().await else { return };
        let stream = client_socket::accept(listener).await;
        let thread = Rc::clone(thread);
        let stop = stop.clone();
        spawn_local(async move {
            client::serve(thread, stream, stop).await;
            drop(slot);
        });
    }
}
