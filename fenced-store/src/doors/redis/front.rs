//! The Redis port in one of its two forms: before one Redis, or before a cluster.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use service_kit::listener::{self, BindError};
use tokio::net::TcpListener;

use super::cluster::Cluster;
use super::cluster::session::ClusterPort;
use super::{Port, PortSettings};
use crate::doors::tcp::front::{BoundDoor, FrontSettings, bind};
use crate::guard::Guard;
use crate::stores::open::Behind;

/// A port before it listens.
#[derive(Clone, Debug)]
pub(crate) enum Front {
    /// Before one Redis: preempt and abort.
    One(Arc<Port>),
    /// Before a cluster: one step a command.
    Cluster(Arc<ClusterPort>),
}

/// A port whose socket is bound.
#[derive(Debug)]
pub(crate) enum Listening {
    /// Before one Redis.
    One(BoundDoor<Port>),
    /// Before a cluster.
    Cluster(TcpListener, Arc<ClusterPort>),
}

/// Reply to a client that speaks no TLS where the port does.
pub(crate) fn plain_text_reply() -> Vec<u8> {
    b"-ERR this port speaks TLS; connect with TLS (rediss:// in a URL)\r\n".to_vec()
}

impl Front {
    /// Opens the port before a Redis or a cluster.
    ///
    /// # Errors
    /// A sentence with the cause and what to do.
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
                Ok(Self::Cluster(ClusterPort::new(cluster, guard, settings)))
            }
        }
    }

    /// Binds the socket.
    ///
    /// # Errors
    /// With the address and what to do.
    pub(crate) async fn listen(&self) -> Result<Listening, BindError> {
        Ok(match self {
            Self::One(port) => Listening::One(bind(Arc::clone(port)).await?),
            Self::Cluster(port) => {
                let FrontSettings { listen, exposure, .. } = &port.context.settings.front;
                let (listener, _) = listener::bind(*listen, exposure).await?.into_parts();
                Listening::Cluster(listener, Arc::clone(port))
            }
        })
    }
}

impl Listening {
    /// URL of the port, by its address.
    pub(crate) fn url(&self) -> Option<String> {
        let settings = match self {
            Self::One(bound) => &bound.door.context.settings,
            Self::Cluster(_, port) => &port.context.settings,
        };
        let scheme = if settings.front.tls.is_some() { "rediss" } else { "redis" };
        Some(format!("{scheme}://{}", self.addr()?))
    }

    /// Local address of the socket.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::One(bound) => bound.addr(),
            Self::Cluster(listener, _) => listener.local_addr().ok(),
        }
    }

    /// Serves clients until shutdown begins, and busy ones for `drain` more.
    pub(crate) async fn serve(self, drain: Duration) {
        match self {
            Self::One(bound) => bound.serve(drain).await,
            // Its clients are tracked tasks, which shutdown awaits.
            Self::Cluster(listener, port) => port.serve(listener).await,
        }
    }
}
