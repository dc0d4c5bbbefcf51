//! A shared connection that is replaced when it breaks.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use service_kit::tasks::Tasks;
use tokio::sync::{Notify, watch};
use tokio_postgres::Row;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;

use crate::connection::{ConnectOptions, PostgresConnection, error_text};
use crate::target::PostgresTarget;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Checks the database behind a new connection, before it carries anything else.
#[async_trait]
pub trait Verifier: fmt::Debug + Send + Sync + 'static {
    /// Returns once the connection may be used.
    ///
    /// # Errors
    /// A sentence that says why it cannot be used. The link stays down and tries again.
    async fn verify(&self, connection: &PostgresConnection) -> Result<(), String>;
}

/// Time limits of a link.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Options of each session.
    pub connect: ConnectOptions,
    /// Longest wait for a reply. After that the outcome is unknown and the connection is closed.
    pub reply_timeout: Duration,
    /// Longest time for the verification of a connection.
    pub verify_timeout: Duration,
    /// Time between two probes of the connection.
    pub ping_interval: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            connect: ConnectOptions::default(),
            reply_timeout: Duration::from_secs(2),
            verify_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(1),
        }
    }
}

/// Why a statement has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// It was not sent: there is no verified connection.
    #[error("{0}")]
    Down(String),
    /// It was sent, and no certain reply came: it may or may not have been committed.
    #[error("{0}")]
    Unknown(String),
    /// The server refused it, and its transaction was rolled back.
    #[error("PostgreSQL answered {code}: {message}")]
    Server {
        /// The SQLSTATE, five characters.
        code: String,
        /// Text of the server, in its language.
        message: String,
        /// The detail, where the server sent one.
        detail: Option<String>,
    },
}

/// Readiness of a link for statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// A verified connection exists; the number grows with every connection.
    Up(u64),
    /// There is none, and why.
    Down(String),
}

/// A shared, self-healing connection to one PostgreSQL. Cheap to clone.
#[derive(Clone)]
pub struct PostgresLink {
    inner: Arc<LinkParts>,
}

struct LinkParts {
    target: PostgresTarget,
    options: LinkOptions,
    verifier: Arc<dyn Verifier>,
    tasks: Tasks,
    live: RwLock<Option<(u64, Arc<PostgresConnection>)>>,
    state: watch::Sender<LinkState>,
    broken: Notify,
}

impl fmt::Debug for PostgresLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLink").field("target", &self.inner.target).finish_non_exhaustive()
    }
}

impl PostgresLink {
    /// Connects, verifies, and keeps doing so in the background until `tasks` shut down.
    ///
    /// # Errors
    /// A sentence where the first connection cannot be made or verified; nothing keeps running.
    pub async fn start(
        target: PostgresTarget,
        options: LinkOptions,
        verifier: Arc<dyn Verifier>,
        tasks: &Tasks,
    ) -> Result<Self, String> {
        let link = Self::new(target, options, verifier, tasks);
        link.connect_once(1).await?;
        tasks.spawn(link.clone().supervise(1, tasks.shutdown_token()));
        Ok(link)
    }

    /// As [`start`](Self::start), and returns at once: the first connection is made in the
    /// background, for a server that may be down for now.
    pub fn start_lazily(
        target: PostgresTarget,
        options: LinkOptions,
        verifier: Arc<dyn Verifier>,
        tasks: &Tasks,
    ) -> Self {
        let link = Self::new(target, options, verifier, tasks);
        link.inner.broken.notify_one();
        tasks.spawn(link.clone().supervise(0, tasks.shutdown_token()));
        link
    }

    fn new(
        target: PostgresTarget,
        options: LinkOptions,
        verifier: Arc<dyn Verifier>,
        tasks: &Tasks,
    ) -> Self {
        let (state, _) = watch::channel(LinkState::Down("not connected yet".to_owned()));
        let tasks = tasks.clone();
        let live = RwLock::new(None);
        let broken = Notify::new();
        Self {
            inner: Arc::new(LinkParts { target, options, verifier, tasks, live, state, broken }),
        }
    }

    /// Awaits what `work` does with the connection in use, for as long as a reply may take.
    ///
    /// # Errors
    /// [`LinkError`]; only [`LinkError::Unknown`] leaves open whether it was committed. `work` must
    /// be one transaction for that to be so.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the statement back.
    pub async fn run<T>(
        &self,
        work: impl AsyncFnOnce(&PostgresConnection) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, LinkError> {
        let (number, connection) = self.live()?;
        let limit = self.inner.options.reply_timeout;
        let why = match tokio::time::timeout(limit, work(&connection)).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => match refusal(&error) {
                Some(refusal) => return Err(refusal),
                None => error_text(&error),
            },
            Err(_) => format!("no reply within {} ms", limit.as_millis()),
        };
        let reason =
            format!("the connection to PostgreSQL at {} broke: {why}", connection.address());
        connection.close();
        self.replace(number, &reason);
        Err(LinkError::Unknown(reason))
    }

    /// Runs the statement at a place among those that the verifier
    /// [prepared](PostgresConnection::prepare); it must be one transaction.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Dropping the future does not take the statement back.
    pub async fn query(
        &self,
        place: usize,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LinkError> {
        self.run(async |connection| connection.query(place, parameters).await).await
    }

    /// The connection in use, and its number. Whatever is awaited on it needs its own limit.
    ///
    /// # Errors
    /// [`LinkError::Down`] where there is none.
    pub fn live(&self) -> Result<(u64, Arc<PostgresConnection>), LinkError> {
        let live = self.inner.live.read().unwrap_or_else(PoisonError::into_inner).clone();
        live.ok_or_else(|| match self.state() {
            LinkState::Down(reason) => LinkError::Down(reason),
            LinkState::Up(_) => LinkError::Down("the connection is being replaced".to_owned()),
        })
    }

    /// Closes the connection with this number, unless it was replaced already; a new one is
    /// verified before it is used.
    pub fn replace(&self, number: u64, reason: &str) {
        let mut live = self.inner.live.write().unwrap_or_else(PoisonError::into_inner);
        if live.as_ref().is_some_and(|(current, _)| *current == number) {
            *live = None;
            self.inner.state.send_replace(LinkState::Down(reason.to_owned()));
            self.inner.broken.notify_one();
        }
    }

    /// Follows the state.
    pub fn watch(&self) -> watch::Receiver<LinkState> {
        self.inner.state.subscribe()
    }

    /// The state now.
    pub fn state(&self) -> LinkState {
        self.inner.state.borrow().clone()
    }

    /// Address and login; its text hides the password.
    pub fn target(&self) -> &PostgresTarget {
        &self.inner.target
    }

    async fn connect_once(&self, number: u64) -> Result<(), String> {
        let LinkParts { target, options, verifier, tasks, live, state, .. } = &*self.inner;
        let connection = target.connect(&options.connect, tasks).await?;
        let verified = verifier.verify(&connection);
        match tokio::time::timeout(options.verify_timeout, verified).await {
            Ok(verified) => verified?,
            Err(_) => {
                let limit_ms = options.verify_timeout.as_millis();
                return Err(format!("PostgreSQL at {target} was not verified in {limit_ms} ms"));
            }
        }
        let mut live = live.write().unwrap_or_else(PoisonError::into_inner);
        *live = Some((number, Arc::new(connection)));
        state.send_replace(LinkState::Up(number));
        Ok(())
    }

    async fn supervise(self, mut number: u64, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.inner.broken.notified() => {}
                () = tokio::time::sleep(self.inner.options.ping_interval) => self.ping().await,
            }
            if matches!(self.state(), LinkState::Down(_)) {
                tokio::select! {
                    () = stop.cancelled() => break,
                    new = self.reconnect(number + 1) => number = new,
                }
            }
        }
    }

    async fn ping(&self) {
        let probe = async |connection: &PostgresConnection| {
            connection.client().simple_query("").await.map(drop)
        };
        if let Err(error) = self.run(probe).await {
            tracing::debug!(%error, "a probe of PostgreSQL failed");
        }
    }

    async fn reconnect(&self, number: u64) -> u64 {
        let target = &self.inner.target;
        if let LinkState::Down(reason) = self.state() {
            tracing::warn!(postgres = %target, reason, "PostgreSQL is not usable; trying again");
        }
        let mut pause = FIRST_PAUSE;
        loop {
            match self.connect_once(number).await {
                Ok(()) => {
                    tracing::info!(postgres = %target, "PostgreSQL is usable again");
                    return number;
                }
                Err(reason) => {
                    tracing::debug!(reason, "still not usable");
                    self.inner.state.send_replace(LinkState::Down(reason));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The server's refusal, after which its transaction is certainly rolled back. A fatal error is
/// none: the server may send one after the commit, while it waits for a replica.
pub fn refusal(error: &tokio_postgres::Error) -> Option<LinkError> {
    let server = error.as_db_error()?;
    let is_certain = server.parsed_severity() == Some(Severity::Error)
        && *server.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN;
    is_certain.then(|| LinkError::Server {
        code: server.code().code().to_owned(),
        message: server.message().to_owned(),
        detail: server.detail().map(str::to_owned),
    })
}
