//! The port in the form that fits what is behind it: one Redis, or a cluster.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use service_kit::listener::{self, BindError};
use tokio::net::TcpListener;

use super::cluster::Cluster;
use super::cluster::session::ClusterPort;
use super::{Port, PortSettings, thread};
use crate::service::Guard;
use crate::store::Behind;

/// A port that does not listen yet.
#[derive(Clone, Debug)]
pub(crate) enum Front {
    /// Before one Redis: preempt and abort.
    One(Arc<Port>),
    /// Before a cluster: one step a command.
    Cluster(SocketAddr, Arc<ClusterPort>),
}

/// A port whose address is taken.
#[derive(Debug)]
pub(crate) enum Listening {
    /// Before one Redis.
    One(thread::Listening),
    /// Before a cluster.
    Cluster(TcpListener, Arc<ClusterPort>),
}

impl Front {
    /// Gets ready to serve what is `behind`.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it, and what to do.
    pub(crate) async fn open(
        guard: Arc<Guard>,
        behind: Behind,
        settings: PortSettings,
    ) -> Result<Self, String> {
        if let Some(password) = &settings.password {
            let kit = guard.kit.clone();
            guard.kit.tasks.spawn(password.clone().follow(kit));
        }
        match behind {
            Behind::One(redis) => Port::open(guard, redis, settings).await.map(Self::One),
            Behind::Cluster(target) => {
                let cluster = Cluster::open(target, &guard.fencing.namespace, &guard.kit).await?;
                let listen = settings.listen;
                Ok(Self::Cluster(listen, ClusterPort::new(cluster, guard, settings)))
            }
        }
    }

    /// Takes the address.
    ///
    /// # Errors
    /// With the address and what to do.
    pub(crate) async fn listen(&self) -> Result<Listening, BindError> {
        Ok(match self {
            Self::One(port) => Listening::One(thread::listen(Arc::clone(port)).await?),
            Self::Cluster(address, port) => {
                Listening::Cluster(listener::bind(*address).await?, Arc::clone(port))
            }
        })
    }
}

impl Listening {
    /// Where it listens.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::One(listening) => listening.addr(),
            Self::Cluster(listener, _) => listener.local_addr().ok(),
        }
    }

    /// Serves clients until shutdown begins, and those that are in the midst of something for
    /// `drain` more.
    pub(crate) async fn serve(self, drain: Duration) {
        match self {
            Self::One(listening) => listening.serve(drain).await,
            // Its clients are tasks that shutdown awaits by itself.
            Self::Cluster(listener, port) => port.serve(listener).await,
        }
    }
}
