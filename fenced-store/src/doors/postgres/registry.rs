//! Registry of sessions and marks in the database, over the guard's own connections.
//!
//! A client's back end is registered by its process id, from outside: the client's role has no
//! right on the registry, so that it cannot present a token by itself.

use std::sync::{Mutex, PoisonError};

use fence_protocol::{LockName, Namespace, Token};

use super::refusal::{Refusal, sqlstate};
use super::server::{Row, ServerError, ServerSession};
use super::target::UpstreamUrl;
use crate::fail_points::{FailPoint, FailPoints};
use crate::store::postgres::pack::VERSION;
use crate::verdict::{Fence, Mark};

/// Idle connections that are kept.
const IDLE_MAX: usize = 4;
/// Rounds in which a lock may be found with lower sessions.
const ROUNDS: usize = 8;
/// Time that a back end may take to end, in milliseconds, each round.
const END_WITHIN_MS: u64 = 2_000;

/// The registry at one server.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) upstream: UpstreamUrl,
    pub(super) namespace: Namespace,
    pub(super) fail_points: FailPoints,
    idle: Mutex<Vec<ServerSession>>,
}

/// Result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    Admitted,
    Stale(Mark),
    Collision(Mark),
    /// Lower sessions have to end first.
    Sealing,
}

/// Failure of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    Stale(Mark),
    Collision(Mark),
    /// The server failed. The mark may have been raised.
    Failed(ServerError),
}

impl Registry {
    pub(super) fn new(
        upstream: UpstreamUrl,
        namespace: Namespace,
        fail_points: FailPoints,
    ) -> Self {
        Self { upstream, namespace, fail_points, idle: Mutex::default() }
    }

    /// Runs one statement; once more on a new connection if an idle one was broken. All statements
    /// of the registry can be repeated.
    pub(super) async fn query(&self, sql: &str) -> Result<Vec<Row>, ServerError> {
        let idle = self.lock().pop();
        if let Some(mut session) = idle {
            match session.query(sql).await {
                Err(ServerError::Broken(_)) => {}
                Err(ServerError::Refused(frame)) if frame.is_fatal() => {}
                result => {
                    self.keep(session);
                    return result;
                }
            }
        }
        let mut session = self.connect().await?;
        let result = session.query(sql).await;
        let is_usable = match &result {
            Ok(_) => true,
            Err(ServerError::Refused(frame)) => !frame.is_fatal(),
            Err(ServerError::Broken(_)) => false,
        };
        if is_usable {
            self.keep(session);
        }
        result
    }

    fn keep(&self, session: ServerSession) {
        let mut idle = self.lock();
        if idle.len() < IDLE_MAX {
            idle.push(session);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<ServerSession>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects, and checks what the fence needs of a server. It may be another one than before.
    async fn connect(&self) -> Result<ServerSession, ServerError> {
        let UpstreamUrl { address, login, database } = &self.upstream;
        let parameters = [
            ("database", database.as_str()),
            ("application_name", "fenced-store"),
            (
                "options",
                "-c default_transaction_isolation=read\\ committed -c statement_timeout=30s",
            ),
        ];
        let mut session = ServerSession::open(address, login, &parameters).await?;
        let rows = session.query(
            "SELECT pg_is_in_recovery(), current_setting('max_prepared_transactions'), \
             current_setting('server_version_num')::int >= 130000, to_regclass('fence.meta')",
        );
        let rows = rows.await?;
        let column = |index: usize| rows.first().and_then(|row| row.get(index)?.as_deref());
        let refuse = |text: &str| Err(ServerError::Broken(text.to_owned()));
        if column(0) != Some("f") {
            return refuse("it is in recovery (a replica); name the primary");
        }
        if column(1) != Some("0") {
            return refuse(
                "max_prepared_transactions is not 0: a prepared transaction of an older token \
                 could be committed later; set it to 0 and restart PostgreSQL",
            );
        }
        if column(2) != Some("t") {
            return refuse("it is older than PostgreSQL 13");
        }
        if column(3).is_none() {
            return refuse("its database has no schema fence; install the SQL pack");
        }
        let rows = session.query("SELECT version FROM fence.meta").await?;
        match rows.first().and_then(|row| row.first()?.as_deref()) {
            Some(version) if version == VERSION.to_string() => Ok(session),
            other => {
                let text = format!(
                    "its schema fence is of version {}, and this guard knows {VERSION}",
                    other.unwrap_or("none")
                );
                Err(ServerError::Broken(text))
            }
        }
    }

    /// Registers a back end under a token, after every session with a lower one has ended.
    /// Idempotent, whichever guard runs it: a guard may stop between any two steps.
    pub(super) async fn admit(&self, fence: &Fence, pid: i32) -> Result<(), NotAdmitted> {
        for _ in 0..ROUNDS {
            self.fail_points.reached(FailPoint::BeforeRegister);
            match self.register(fence, pid).await? {
                Registered::Admitted => {
                    self.fail_points.reached(FailPoint::AfterRegister);
                    return Ok(());
                }
                Registered::Stale(mark) => return Err(NotAdmitted::Stale(mark)),
                Registered::Collision(mark) => return Err(NotAdmitted::Collision(mark)),
                Registered::Sealing => {}
            }
            self.fail_points.reached(FailPoint::AfterRaise);
            let lock = &fence.lock;
            tracing::info!(%lock, "ending sessions with lower tokens");
            // Sessions that still run are found again by the next round.
            self.call(&format!("abort('{}', '{lock}', {END_WITHIN_MS})", self.namespace)).await?;
            self.fail_points.reached(FailPoint::AfterAbort);
            self.call(&format!("settle('{}', '{lock}')", self.namespace)).await?;
            self.fail_points.reached(FailPoint::AfterSealed);
        }
        let text = format!("sessions with lower tokens of lock {} do not end", fence.lock);
        Err(NotAdmitted::Failed(ServerError::Broken(text)))
    }

    async fn call(&self, function: &str) -> Result<(), NotAdmitted> {
        self.query(&format!("SELECT pid FROM fence.{function}")).await?;
        Ok(())
    }

    async fn register(&self, fence: &Fence, pid: i32) -> Result<Registered, NotAdmitted> {
        // Namespaces and locks have no character that ends a literal.
        let sql = format!(
            "SELECT verdict, mark, lease FROM fence.register('{}', '{}', {}, '{}', {pid})",
            self.namespace, fence.lock, fence.presented.token, fence.presented.lease,
        );
        let rows = self.query(&sql).await?;
        let row = rows.first().ok_or_else(|| foreign("no row"))?;
        match (row.first().and_then(Option::as_deref), mark_of(row.get(1..).unwrap_or_default())) {
            (Some("admitted"), _) => Ok(Registered::Admitted),
            (Some("sealing"), _) => Ok(Registered::Sealing),
            (Some("stale"), Some(mark)) => Ok(Registered::Stale(mark)),
            (Some("collision"), Some(mark)) => Ok(Registered::Collision(mark)),
            _ => Err(foreign("a verdict that this guard does not know")),
        }
    }

    /// Raises the mark, and ends what has to end first, without registering a session.
    pub(super) async fn seal(&self, fence: &Fence) -> Result<(), NotAdmitted> {
        let Fence { lock, presented: Mark { token, lease } } = fence;
        let sql = format!("SELECT fence.seal('{lock}', {token}, '{lease}', '{}')", self.namespace);
        let error = match self.query(&sql).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let sqlstate = match &error {
            ServerError::Refused(frame) => frame.sqlstate(),
            ServerError::Broken(_) => "",
        };
        match (sqlstate, self.show(lock).await) {
            (sqlstate::STALE, Ok(Some(mark))) => Err(NotAdmitted::Stale(mark)),
            (sqlstate::COLLISION, Ok(Some(mark))) => Err(NotAdmitted::Collision(mark)),
            _ => Err(NotAdmitted::Failed(error)),
        }
    }

    /// Returns the mark of a lock, an announced one if it is higher.
    pub(super) async fn show(&self, lock: &LockName) -> Result<Option<Mark>, ServerError> {
        let of_lock = format!("WHERE namespace = '{}' AND lock = '{lock}'", self.namespace);
        let sql = format!(
            "SELECT token, lease FROM fence.marks {of_lock} UNION ALL \
             SELECT token, lease FROM fence.seals {of_lock} AND token > 0 \
             ORDER BY token DESC LIMIT 1"
        );
        Ok(self.query(&sql).await?.first().and_then(|row| mark_of(row)))
    }
}

impl From<ServerError> for NotAdmitted {
    fn from(error: ServerError) -> Self {
        Self::Failed(error)
    }
}

impl NotAdmitted {
    /// The error for a client that presented `fence`.
    pub(super) fn refusal(&self, fence: &Fence) -> Refusal {
        match self {
            Self::Stale(mark) => Refusal::stale(fence, *mark),
            Self::Collision(mark) => Refusal::collision(fence, *mark),
            // The guard's own connection failed, not the client's: no error of the server's.
            Self::Failed(error) => Refusal::new(
                sqlstate::NOT_NOW,
                format!("the guard cannot register this session: {error}"),
                "nothing was executed",
                "Connect again later.",
            ),
        }
    }
}

fn foreign(what: &str) -> NotAdmitted {
    NotAdmitted::Failed(ServerError::Broken(format!("the registry replied with {what}")))
}

/// Reads a token and its lease.
pub(super) fn mark_of(columns: &[Option<String>]) -> Option<Mark> {
    let [token, lease, ..] = columns else { return None };
    let token = Token::new(token.as_deref()?.parse().ok()?).ok()?;
    Some(Mark { token, lease: lease.as_deref()?.parse().ok()? })
}
