//! Front of a door over TCP: its address, its threads, and the limit of its clients.
//!
//! A thread owns all state of its clients: no locks, and no wake-ups between threads.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use service_kit::listener::{self, BindError, Exposure};
use service_kit::tasks::Tasks;
use service_kit::tls::ServerTls;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio_util::sync::CancellationToken;

use super::client_socket;

/// Time that a client may take to read its last reply, and to close its connection. Closing a
/// socket with unread bytes resets it, and the client could lose that reply.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// Label in observe mode's counts where a whole connection is meant, and no rule.
pub(crate) const CONNECTION: &str = "connection";

/// Settings of a front.
#[derive(Clone, Debug)]
pub struct FrontSettings {
    /// Address; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Permission to listen there.
    pub exposure: Exposure,
    /// TLS towards clients; `None` if the door is plain itself.
    pub tls: Option<ServerTls>,
    /// Number of threads, at least 1.
    pub threads: usize,
    /// Maximum number of clients.
    pub max_connections: usize,
}

impl FrontSettings {
    fn clients_of_a_thread(&self) -> usize {
        (self.max_connections / self.threads).clamp(1, 1 << 20)
    }
}

/// A door whose threads each serve clients of their own.
pub(crate) trait ThreadedDoor: fmt::Debug + Send + Sync + 'static {
    /// Name in logs.
    const NAME: &'static str;
    /// Name of its threads, before their number.
    const THREAD: &'static str;
    /// State of one thread.
    type Thread: 'static;

    fn front(&self) -> &FrontSettings;

    fn tasks(&self) -> &Tasks;

    /// Creates the state of a thread, on that thread.
    fn thread(self: Arc<Self>) -> Rc<Self::Thread>;

    /// Serves a client until it ends, or until it has nothing under way after `stop`.
    fn serve(
        thread: Rc<Self::Thread>,
        stream: TcpStream,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + 'static;

    /// Does what a thread has to do beside its clients, until it is dropped.
    fn look_after(_: &Self::Thread) -> impl Future<Output = ()> {
        pending()
    }

    /// Closes what no client uses, once no further one is accepted.
    fn close(_: &Self::Thread) {}
}

/// A door whose address is bound.
#[derive(Debug)]
pub(crate) struct BoundDoor<D> {
    pub(crate) door: Arc<D>,
    listener: std::net::TcpListener,
}

/// Binds the address.
///
/// # Errors
/// An error with the address and the remedy.
pub(crate) async fn bind<D: ThreadedDoor>(door: Arc<D>) -> Result<BoundDoor<D>, BindError> {
    let FrontSettings { listen, exposure, .. } = door.front();
    let (listener, _) = listener::bind(*listen, exposure).await?.into_parts();
    let listener = listener.into_std().map_err(|error| BindError::Other(*listen, error))?;
    Ok(BoundDoor { door, listener })
}

impl<D: ThreadedDoor> BoundDoor<D> {
    /// Returns the address.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves clients until shutdown begins, and those with work under way for `drain` more.
    pub(crate) async fn serve(self, drain: Duration) {
        let stop = self.door.tasks().shutdown_token();
        let mut ends = Vec::new();
        for number in 0..self.door.front().threads {
            let (end, ended) = oneshot::channel();
            let door = Arc::clone(&self.door);
            let stop = stop.clone();
            let listener = self.listener.try_clone();
            let body = move || {
                if let Err(error) = listener.and_then(|listener| run(door, listener, stop, drain)) {
                    tracing::error!(%error, "a thread of the {} ended", D::NAME);
                }
                // The receiver is gone if the server ended.
                let _ = end.send(());
            };
            let thread = std::thread::Builder::new().name(format!("{}-{number}", D::THREAD));
            match thread.spawn(body) {
                Ok(_) => ends.push(ended),
                Err(error) => tracing::error!(%error, "cannot start a thread of the {}", D::NAME),
            }
        }
        for ended in ends {
            // A thread that panicked has ended too.
            let _ = ended.await;
        }
    }
}

fn run<D: ThreadedDoor>(
    door: Arc<D>,
    listener: std::net::TcpListener,
    stop: CancellationToken,
    drain: Duration,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let listener = TcpListener::from_std(listener)?;
        let limit = door.front().clients_of_a_thread();
        let thread = door.thread();
        let clients = Arc::new(Semaphore::new(limit));
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept_all::<D>(&thread, &listener, &clients, &stop) => {}
            () = D::look_after(&thread) => {}
        }
        drop(listener);
        D::close(&thread);
        let all = u32::try_from(limit).unwrap_or(u32::MAX);
        // Remaining clients are disconnected.
        let _ = tokio::time::timeout(drain, clients.acquire_many(all)).await;
        Ok(())
    })
}

/// Accepts clients until shutdown; at the limit it waits for one to leave.
async fn accept_all<D: ThreadedDoor>(
    thread: &Rc<D::Thread>,
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
        // The future is made inside: one that is moved in would be held twice by each client.
        spawn_local(async move {
            D::serve(thread, stream, stop).await;
            drop(slot);
        });
    }
}
