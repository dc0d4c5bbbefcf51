//! Registry of sessions and marks in the database, over the guard's own connections.
//!
//! A client's back end is registered by its process id, from outside: the client's role has no
//! right on the registry, so that it cannot present a token by itself.

use std::sync::{Mutex, PoisonError};

use fence_protocol::{LockName, Namespace, Token};
use postgres_link::UNREAD_LIMIT;

use super::refusal::{Refusal, sqlstate};
use super::server::{Row, ServerError, ServerSession};
use super::upstream::{ServerIdentity, Upstream};
use super::{PortSettings, roles};
use crate::fail_points::{FailPoint, FailPoints};
use crate::stores::postgres::pack::VERSION;
use crate::verdict::{Fence, Mark, Verdict};

/// Idle connections that are kept.
const IDLE_MAX: usize = 4;
/// Rounds in which a lock may be found with lower sessions.
const ROUNDS: usize = 8;
/// Time that a back end may take to end, in milliseconds, each round.
const END_WITHIN_MS: u64 = 2_000;
/// Start of the server's process, as [`ServerSession::server_start`] returns it.
const START: &str = "encode(timestamptz_send(pg_postmaster_start_time()), 'hex')";
/// Facts on a server that the fence depends on.
const FACTS: &str = "SELECT pg_is_in_recovery(), current_setting('max_prepared_transactions'), \
    current_setting('server_version_num')::int >= 130000, to_regclass('fence.meta'), \
    encode(timestamptz_send(pg_postmaster_start_time()), 'hex'), CASE WHEN NOT pg_is_in_recovery() \
    THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END, \
    (SELECT system_identifier FROM pg_control_system())";

/// The registry at one server.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) upstream: Upstream,
    pub(super) namespace: Namespace,
    pub(super) fail_points: FailPoints,
    /// Query of the clients' roles.
    roles: String,
    idle: Mutex<Vec<ServerSession>>,
}

/// Result of a registration that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    Admitted,
    /// Lower sessions have to end first.
    Sealing,
}

/// Failure of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    Stale(Mark),
    Collision(Mark),
    /// The session is not at the server of the registry.
    OtherServer,
    /// The server failed. The mark may have been raised.
    Failed(ServerError),
}

impl Registry {
    pub(super) fn new(
        settings: &PortSettings,
        namespace: &Namespace,
        fail_points: FailPoints,
    ) -> Self {
        let upstream = settings.upstream.clone();
        let roles = roles::query(settings);
        Self { upstream, namespace: namespace.clone(), fail_points, roles, idle: Mutex::default() }
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

    /// Looks for the address that accepts writes, on a new connection.
    pub(super) async fn find_primary(&self) {
        self.lock().clear();
        match self.connect().await {
            Ok(session) => self.keep(session),
            Err(error) => tracing::warn!(upstream = %self.upstream, "no primary: {error}"),
        }
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

    /// Connects to the first address that has what the fence needs. It may be another server than
    /// before.
    async fn connect(&self) -> Result<ServerSession, ServerError> {
        let mut reasons = Vec::new();
        for at in self.upstream.addresses() {
            match self.connect_to(at).await {
                Ok(session) => {
                    self.upstream.use_address(at);
                    return Ok(session);
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(ServerError::Broken(reasons.join("; ")))
    }

    /// Connects, and checks the server; one that was not verified yet, its roles and marks too.
    async fn connect_to(&self, at: usize) -> Result<ServerSession, ServerError> {
        let Upstream { target, login, .. } = &self.upstream;
        let options = format!(
            "-c default_transaction_isolation=read\\ committed -c statement_timeout=30s \
             -c search_path=pg_catalog,pg_temp -c tcp_user_timeout={}",
            UNREAD_LIMIT.as_millis()
        );
        let parameters = [
            ("database", target.database()),
            ("application_name", target.application_name().unwrap_or("fenced-store")),
            // Names are PostgreSQL's own: in a schema that others can write to could be operators
            // that fit better.
            ("options", options.as_str()),
        ];
        let mut session = ServerSession::open(target, at, login, &parameters).await?;
        let facts = session.query(FACTS).await?.into_iter().next().unwrap_or_default();
        check(&facts)?;
        let pack = session.query("SELECT version, id FROM fence.meta").await?;
        let pack = pack.into_iter().next().unwrap_or_default();
        if pack.first() != Some(&Some(VERSION.to_string())) {
            let version = pack.into_iter().next().flatten();
            return Err(ServerError::Broken(format!(
                "its schema fence is of version {}, and this guard knows {VERSION}",
                version.as_deref().unwrap_or("none")
            )));
        }
        let text = |row: &Row, index: usize| row.get(index).cloned().flatten().unwrap_or_default();
        let identity = ServerIdentity {
            start: text(&facts, 4),
            timeline: text(&facts, 5),
            lineage: format!("{} {}", text(&facts, 6), text(&pack, 1)),
        };
        self.upstream.verify(&mut session, &identity, &self.namespace, &self.roles).await?;
        Ok(session)
    }

    /// Registers a back end under a token, after every session with a lower one has ended.
    /// Idempotent, whichever guard runs it: a guard may stop between any two steps.
    ///
    /// The server is the one with this start: after a failover the guard's own connection may still
    /// be one to the former primary, where the process id is another session's.
    pub(super) async fn admit(
        &self,
        fence: &Fence,
        pid: i32,
        server_start: &str,
    ) -> Result<(), NotAdmitted> {
        self.judge(fence)?;
        let mut is_fresh = false;
        for _ in 0..ROUNDS {
            self.fail_points.reached(FailPoint::BeforeRegister);
            match self.register(fence, pid, server_start).await {
                Ok(Registered::Admitted) => {
                    self.upstream.remember(fence);
                    self.fail_points.reached(FailPoint::AfterRegister);
                    return Ok(());
                }
                Ok(Registered::Sealing) => {}
                // An idle connection may be one to a former primary.
                Err(NotAdmitted::OtherServer) if !is_fresh => {
                    self.lock().clear();
                    is_fresh = true;
                    continue;
                }
                Err(refused) => return Err(refused),
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

    /// Refuses what this guard knows to be stale, whatever the database has left of its marks.
    fn judge(&self, fence: &Fence) -> Result<(), NotAdmitted> {
        match self.upstream.judge(fence) {
            Verdict::Admit | Verdict::Raise => Ok(()),
            Verdict::Stale { mark } => Err(NotAdmitted::Stale(mark)),
            Verdict::Collision { mark } => Err(NotAdmitted::Collision(mark)),
        }
    }

    async fn call(&self, function: &str) -> Result<(), NotAdmitted> {
        self.query(&format!("SELECT pid FROM fence.{function}")).await?;
        Ok(())
    }

    async fn register(
        &self,
        fence: &Fence,
        pid: i32,
        server_start: &str,
    ) -> Result<Registered, NotAdmitted> {
        // Namespaces and locks have no character that ends a literal, and the start is hexadecimal.
        let sql = format!(
            "SELECT verdict, mark, lease FROM fence.register('{}', '{}', {}, '{}', {pid}) \
             WHERE {START} = '{server_start}'",
            self.namespace, fence.lock, fence.presented.token, fence.presented.lease,
        );
        let rows = self.query(&sql).await?;
        let Some(row) = rows.first() else { return Err(NotAdmitted::OtherServer) };
        match (row.first().and_then(Option::as_deref), mark_of(row.get(1..).unwrap_or_default())) {
            (Some("admitted"), _) => Ok(Registered::Admitted),
            (Some("sealing"), _) => Ok(Registered::Sealing),
            (Some("stale"), Some(mark)) => Err(NotAdmitted::Stale(mark)),
            (Some("collision"), Some(mark)) => Err(NotAdmitted::Collision(mark)),
            _ => Err(foreign("a verdict that this guard does not know")),
        }
    }

    /// Raises the mark, and ends what has to end first, without registering a session.
    pub(super) async fn seal(&self, fence: &Fence) -> Result<(), NotAdmitted> {
        self.judge(fence)?;
        // An idle connection may be one to a former primary, where a seal seals nothing.
        self.find_primary().await;
        let Fence { lock, presented: Mark { token, lease } } = fence;
        let sql = format!("SELECT fence.seal('{lock}', {token}, '{lease}', '{}')", self.namespace);
        let error = match self.query(&sql).await {
            Ok(_) => {
                self.upstream.remember(fence);
                return Ok(());
            }
            Err(error) => error,
        };
        let sqlstate = match &error {
            ServerError::Refused(frame) => frame.sqlstate(),
            ServerError::Broken(_) => "",
        };
        match (sqlstate, self.bound(lock).await) {
            (sqlstate::STALE, Ok(Some(mark))) => Err(NotAdmitted::Stale(mark)),
            (sqlstate::COLLISION, Ok(Some(mark))) => Err(NotAdmitted::Collision(mark)),
            _ => Err(NotAdmitted::Failed(error)),
        }
    }

    /// Sets the first token to admit, and returns the floor in force.
    pub(super) async fn set_floor(&self, floor: Token) -> Result<Option<Token>, ServerError> {
        let rows = self.query(&format!("SELECT fence.set_floor({floor})")).await?;
        let floor = rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
        Ok(floor.and_then(|floor| Token::new(floor).ok()))
    }

    /// Returns the mark of a lock, an announced one if it is higher.
    pub(super) async fn show(&self, lock: &LockName) -> Result<Option<Mark>, ServerError> {
        self.highest(&self.marks_of(lock)).await
    }

    /// Returns what a token of the lock must not be below: its mark, or a higher floor.
    pub(super) async fn bound(&self, lock: &LockName) -> Result<Option<Mark>, ServerError> {
        let floor = "UNION ALL SELECT floor, floor_lease FROM fence.meta WHERE floor > 0";
        self.highest(&format!("{} {floor}", self.marks_of(lock))).await
    }

    /// Waits until a raise or a floor that is under way has ended; it holds these rows.
    pub(super) async fn await_seal(&self, lock: &LockName) -> Result<(), ServerError> {
        self.query(&format!("SELECT fence.await_seal('{}', '{lock}')", self.namespace))
            .await
            .map(drop)
    }

    fn marks_of(&self, lock: &LockName) -> String {
        let of_lock = format!("WHERE namespace = '{}' AND lock = '{lock}'", self.namespace);
        format!(
            "SELECT token, lease FROM fence.marks {of_lock} UNION ALL \
             SELECT token, lease FROM fence.seals {of_lock} AND token > 0"
        )
    }

    async fn highest(&self, marks: &str) -> Result<Option<Mark>, ServerError> {
        let rows = self.query(&format!("{marks} ORDER BY token DESC LIMIT 1")).await?;
        Ok(rows.first().and_then(|row| mark_of(row)))
    }
}

/// Checks a server by its [`FACTS`].
fn check(facts: &Row) -> Result<(), ServerError> {
    let fact = |index: usize| facts.get(index).and_then(Option::as_deref);
    let refuse = |text: &str| Err(ServerError::Broken(text.to_owned()));
    if fact(0) != Some("f") {
        return refuse("it is in recovery (a replica); name the primary");
    }
    if fact(1) != Some("0") {
        return refuse(
            "max_prepared_transactions is not 0: a prepared transaction of an older token could be \
             committed later; set it to 0 and restart PostgreSQL",
        );
    }
    if fact(2) != Some("t") {
        return refuse("it is older than PostgreSQL 13");
    }
    match fact(3) {
        Some(_) => Ok(()),
        None => refuse("its database has no schema fence; install the SQL pack"),
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
            Self::OtherServer => Refusal::new(
                sqlstate::NOT_NOW,
                "another server took the place of PostgreSQL just now",
                "nothing was executed",
                "Connect again.",
            ),
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
