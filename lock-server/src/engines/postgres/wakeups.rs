//! Messages of other servers, by LISTEN on a connection of its own.

use async_trait::async_trait;
use fence_protocol::Namespace;
use postgres_link::{PostgresConnection, PostgresLink, Verifier, error_text};
use service_kit::tasks::Tasks;
use tokio::sync::mpsc;

use super::PostgresRecords;
use crate::engines::contract::{Key, ServerId, WAKEUPS_MAX, Wakeup};

/// The channel of a server.
pub(super) fn channel(server: ServerId) -> String {
    format!("fence_locks_{:08x}", server.0)
}

/// A message to a server: the record that changed.
pub(super) fn message(namespace: &Namespace, key: &Key) -> String {
    format!("{namespace} {}", key.text())
}

/// Listens on each new connection.
#[derive(Debug)]
struct Listener {
    namespace: Namespace,
    channel: String,
    wakeups: mpsc::Sender<Wakeup>,
    tasks: Tasks,
}

impl PostgresRecords {
    /// Listens until shutdown; anew when the connection is lost or silent.
    pub(super) fn listen(&self, server: ServerId) -> mpsc::Receiver<Wakeup> {
        let (wakeups, receiver) = mpsc::channel(WAKEUPS_MAX);
        let inner = &*self.inner;
        let listener = Listener {
            namespace: inner.namespace.clone(),
            channel: channel(server),
            wakeups,
            tasks: inner.tasks.clone(),
        };
        // The supervision keeps the connection.
        PostgresLink::start_lazily(
            inner.link.target().clone(),
            inner.link_options.clone(),
            std::sync::Arc::new(listener),
            &inner.tasks,
        );
        receiver
    }
}

#[async_trait]
impl Verifier for Listener {
    async fn verify(&self, connection: &PostgresConnection) -> Result<(), String> {
        let listen = format!("LISTEN {}", self.channel);
        let listening = connection.client().batch_execute(&listen).await;
        listening.map_err(|error| error_text(&error))?;
        // Messages before this moment were lost. A receiver that has gone needs none.
        let _ = self.wakeups.try_send(Wakeup::All);
        let Some(mut messages) = connection.take_notifications() else { return Ok(()) };
        let wakeups = self.wakeups.clone();
        let prefix = format!("{} ", self.namespace);
        self.tasks.spawn_here(async move {
            while let Some(message) = messages.recv().await {
                let key = message.payload().strip_prefix(&prefix).and_then(Key::from_text);
                if let Some(key) = key {
                    let _ = wakeups.try_send(Wakeup::Record(key));
                }
            }
            let _ = wakeups.try_send(Wakeup::All);
        });
        Ok(())
    }
}
