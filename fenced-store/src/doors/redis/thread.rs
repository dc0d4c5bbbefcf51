//! The threads of the port: each accepts clients and has them to itself.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redis_link::LinkState;
use service_kit::listener::{self, BindError};
use service_kit::socket;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio_util::sync::CancellationToken;

use super::Port;
use super::client::Client;
use super::hub::Hub;

/// How often connections that nobody uses are looked for.
const LOOK: Duration = Duration::from_secs(20);
/// How long accepting rests when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A port whose address is taken.
#[derive(Debug)]
pub(crate) struct Listening {
    port: Arc<Port>,
    listener: std::net::TcpListener,
}

/// Takes the address.
///
/// # Errors
/// With the address and what to do.
pub(crate) async fn listen(port: Arc<Port>) -> Result<Listening, BindError> {
    let address = port.settings.listen;
    let listener = listener::bind(address).await?;
    let listener = listener.into_std().map_err(|error| BindError::Other(address, error))?;
    Ok(Listening { port, listener })
}

impl Listening {
    /// Where it listens.
    pub(crate) fn addr(&self) -> Option<std::net::SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves clients until shutdown begins, and those that are in the midst of something for
    /// `drain` more.
    pub(crate) async fn serve(self, drain: Duration) {
        let stop = self.port.guard.kit.tasks.shutdown_token();
        let mut ends = Vec::new();
        for number in 0..self.port.settings.threads {
            let (end, ended) = oneshot::channel();
            let (port, stop) = (Arc::clone(&self.port), stop.clone());
            let listener = self.listener.try_clone();
            let body = move || {
                if let Err(error) = listener.and_then(|listener| run(port, listener, stop, drain)) {
                    tracing::error!(%error, "a thread of the Redis port ended");
                }
                // Nobody listens any more where the server is gone.
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
        // What is left then is cut.
        let _ = tokio::time::timeout(drain, clients.acquire_many(all)).await;
        Ok(())
    })
}

fn connections(hub: &Hub) -> usize {
    let settings = &hub.port.settings;
    (settings.max_connections / settings.threads).clamp(1, 1 << 20)
}

/// Accepts for ever; at the limit of clients it waits for one to leave.
async fn accept_all(
    hub: &Rc<Hub>,
    listener: &TcpListener,
    clients: &Arc<Semaphore>,
    stop: &CancellationToken,
) {
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(clients).acquire_owned().await else { return };
        let stream = accept(listener).await;
        let (hub, stop) = (Rc::clone(hub), stop.clone());
        spawn_local(async move {
            hub.port.counters.clients.inc();
            Client::new(Rc::clone(&hub), stream).serve(stop).await;
            hub.port.counters.clients.dec();
            drop(slot);
        });
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                socket::tune_accepted(&stream);
                return stream;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept; check the limit of open files (ulimit -n)");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn look_after(hub: &Hub) {
    loop {
        tokio::time::sleep(LOOK).await;
        hub.close_idle();
    }
}

/// Probes the connections whenever the guard's own connection to Redis was replaced: what it
/// ran into may have happened to them too, and shows on a connection only when something is expected.
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
