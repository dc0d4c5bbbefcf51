//! One session at a server that accepts writes.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use service_kit::tasks::Tasks;
use tokio::sync::mpsc;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::ToSql;
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Notification, Row, SimpleQueryMessage,
    Statement,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::target::PostgresTarget;
use crate::tls::PostgresSocket;
use crate::url::address_text;

/// Most notifications that wait to be received.
pub const NOTIFICATIONS_MAX: usize = 1_024;
/// Longest time for which a peer may read nothing of what the server sends it. Then the server ends
/// the session: a client that is stopped holds the locks of its transaction no longer.
pub const UNREAD_LIMIT: Duration = Duration::from_secs(10);
/// Oldest server that is supported, as `server_version_num`.
const VERSION_MIN: u32 = 130_000;

/// Options of a session.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Longest wait for a session that can be used, of each address.
    pub connect_timeout: Duration,
    /// Name of the session in `pg_stat_activity`, unless the URL has one.
    pub application_name: String,
    /// The server ends a statement after this time; `None` leaves the role's own limit.
    pub statement_timeout: Option<Duration>,
    /// The server ends a wait for a lock after this time; `None` leaves the role's own limit.
    pub lock_timeout: Option<Duration>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            application_name: "fencepost".to_owned(),
            statement_timeout: None,
            lock_timeout: None,
        }
    }
}

/// A session. The connection is closed at once when this is dropped, or by
/// [`close`](Self::close): what was sent may or may not be done then.
pub struct PostgresConnection {
    client: Client,
    address: String,
    statements: OnceLock<Vec<Statement>>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
    notifications: Mutex<Option<mpsc::Receiver<Notification>>>,
}

impl PostgresConnection {
    /// The driver's handle. A caller that awaits a reply sets its own limit.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Address of the server, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Prepares statements for [`PostgresLink::query`](crate::PostgresLink::query), which names
    /// them by their place; once a session.
    ///
    /// # Errors
    /// The server's refusal of one of them.
    pub async fn prepare(&self, texts: &[&str]) -> Result<(), tokio_postgres::Error> {
        let mut statements = Vec::with_capacity(texts.len());
        for text in texts {
            statements.push(self.client.prepare(text).await?);
        }
        // A second call is a mistake of the caller, whose statements have other places.
        let _ = self.statements.set(statements);
        Ok(())
    }

    /// Runs the statement at a place. A caller sets its own limit.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If fewer statements were prepared.
    pub async fn query(
        &self,
        place: usize,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statements = self.statements.get().map(Vec::as_slice).unwrap_or_default();
        self.client.query(&statements[place], parameters).await
    }

    /// Notifications of the channels that the session listens to; they end with the session. Where
    /// [`NOTIFICATIONS_MAX`] wait to be received, more are dropped: any role may send some. `None`
    /// from the second call on.
    pub fn take_notifications(&self) -> Option<mpsc::Receiver<Notification>> {
        self.notifications.lock().ok()?.take()
    }

    /// Closes the connection at once.
    pub fn close(&self) {
        self.stop.cancel();
    }

    /// True once the connection is closed or broken.
    pub fn is_closed(&self) -> bool {
        self.stop.is_cancelled() || self.client.is_closed()
    }
}

impl fmt::Debug for PostgresConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConnection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl PostgresTarget {
    /// A new session at the server that accepts writes, on the current runtime.
    ///
    /// # Errors
    /// A sentence with the cause for each address.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(
        &self,
        options: &ConnectOptions,
        tasks: &Tasks,
    ) -> Result<PostgresConnection, String> {
        let mut reasons = Vec::new();
        for at in 0..self.addresses().len() {
            let (host, port) = &self.addresses()[at];
            let address = address_text(host, *port);
            let made = self.connect_to(at, &address, options, tasks);
            match tokio::time::timeout(options.connect_timeout, made).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(reason)) => reasons.push(reason),
                Err(_) => reasons.push(format!(
                    "PostgreSQL at {address} gave no session in {} ms",
                    options.connect_timeout.as_millis()
                )),
            }
        }
        Err(reasons.join("; "))
    }

    async fn connect_to(
        &self,
        at: usize,
        address: &str,
        options: &ConnectOptions,
        tasks: &Tasks,
    ) -> Result<PostgresConnection, String> {
        let failed = |error: tokio_postgres::Error| {
            format!("PostgreSQL at {address} refused the session: {}", error_text(&error))
        };
        let socket = self.open(at, options.connect_timeout).await?;
        let config = self.session_config(options);
        let (client, connection) = config.connect_raw(socket, NoTls).await.map_err(failed)?;
        let stop = CancellationToken::new();
        let (sender, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
        let relay = relay(connection, sender, address.to_owned());
        let stopped = stop.clone();
        tasks.spawn_here(async move {
            stopped.run_until_cancelled(relay).await;
        });
        let stop_on_drop = stop.clone().drop_guard();
        let facts = format!(
            "SET tcp_user_timeout = {}; \
             SELECT pg_is_in_recovery(), current_setting('server_version_num'), \
             current_setting('transaction_read_only')",
            UNREAD_LIMIT.as_millis()
        );
        let facts = client.simple_query(&facts).await.map_err(failed)?;
        let row = facts.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let fact = |at: usize| row.and_then(|row| row.get(at)).unwrap_or_default();
        let version = fact(1).parse().unwrap_or(0);
        if fact(0) != "f" || fact(2) != "off" {
            return Err(format!(
                "PostgreSQL at {address} accepts no writes: it is a replica, or read-only"
            ));
        }
        if version < VERSION_MIN {
            return Err(format!(
                "PostgreSQL at {address} has version {version}, and {VERSION_MIN} is the oldest \
                 that is supported"
            ));
        }
        Ok(PostgresConnection {
            client,
            address: address.to_owned(),
            statements: OnceLock::new(),
            stop,
            _stop_on_drop: stop_on_drop,
            notifications: Mutex::new(Some(notifications)),
        })
    }

    fn session_config(&self, options: &ConnectOptions) -> Config {
        let mut config = Config::new();
        // TLS is spoken below it already.
        config.ssl_mode(SslMode::Disable).user(self.user()).dbname(self.database());
        config.application_name(self.application_name().unwrap_or(&options.application_name));
        if let Some(password) = self.password() {
            config.password(password.expose());
        }
        let limits = [
            ("statement_timeout", options.statement_timeout),
            ("lock_timeout", options.lock_timeout),
        ];
        let limits = limits.iter().filter_map(|(name, limit)| {
            limit.map(|limit| format!("-c {name}={}", limit.as_millis()))
        });
        let limits = limits.collect::<Vec<_>>().join(" ");
        if !limits.is_empty() {
            config.options(limits);
        }
        config
    }
}

/// Drives a connection until it ends.
async fn relay(
    mut connection: Connection<PostgresSocket, tokio_postgres::tls::NoTlsStream>,
    notifications: mpsc::Sender<Notification>,
    address: String,
) {
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(notification))) => {
                // A session that listens to nothing has no reader.
                let _ = notifications.try_send(notification);
            }
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::debug!(address, notice = notice.message(), "PostgreSQL gave a notice");
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let error = error_text(&error);
                tracing::debug!(address, error, "a session at PostgreSQL ended");
                return;
            }
            None => return,
        }
    }
}

/// The server's own words where it has sent some, else the driver's with their cause.
pub fn error_text(error: &tokio_postgres::Error) -> String {
    if let Some(server) = error.as_db_error() {
        let code = server.code().code();
        return match server.hint() {
            Some(hint) => format!("{} ({code}; {hint})", server.message()),
            None => format!("{} ({code})", server.message()),
        };
    }
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
