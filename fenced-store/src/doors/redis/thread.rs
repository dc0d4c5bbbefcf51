//! A thread of the port: its hub of connections, and its clients.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redis_link::LinkState;
use service_kit::tasks::Tasks;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::Port;
use super::client::Client;
use super::hub::Hub;
use super::session::PortContext;
use crate::doors::tcp::client_socket::ClientSocket;
use crate::doors::tcp::front::{FrontSettings, ThreadedDoor};

/// Interval of the search for unused connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(20);

impl ThreadedDoor for Port {
    const NAME: &'static str = "Redis port";
    const THREAD: &'static str = "redis-port";
    type Thread = Hub;

    fn front(&self) -> &FrontSettings {
        &self.context.settings.front
    }

    fn tasks(&self) -> &Tasks {
        &self.context.guard.kit.tasks
    }

    fn thread(self: Arc<Self>) -> Rc<Hub> {
        Hub::new(self)
    }

    async fn serve(hub: Rc<Hub>, stream: TcpStream, stop: CancellationToken) {
        let PortContext { guard, settings, .. } = &*hub.port.context;
        let tls = settings.front.tls.clone();
        match ClientSocket::prepared(stream, tls, &guard.kit.tasks, &stop).await {
            Ok(socket) => {
                hub.port.counters.clients.inc();
                Client::new(Rc::clone(&hub), socket).serve(stop).await;
                hub.port.counters.clients.dec();
            }
            Err(error) => tracing::debug!(%error, "no TLS with a client of the Redis port"),
        }
    }

    async fn look_after(hub: &Hub) {
        tokio::select! {
            () = close_unused(hub) => {}
            () = follow(hub) => {}
        }
    }

    fn close(hub: &Hub) {
        hub.close_spares();
    }
}

async fn close_unused(hub: &Hub) {
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
