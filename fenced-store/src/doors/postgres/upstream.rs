//! The PostgreSQL behind the port: addresses, the guard's login, and marks that this guard knows.
//!
//! A failover to an asynchronous replica, or an older backup, can lose marks that were acknowledged
//! here. So the guard remembers the highest of each lock. A server that it has not verified, or one
//! that was restarted or promoted since, is first asked for them. If one is missing, a floor above
//! which this guard has admitted nothing is set there: with the marks, the registrations of other
//! guards are lost too.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fence_protocol::{LockName, Namespace, Token};
use postgres_link::PostgresTarget;

use super::roles;
use super::server::{ServerError, ServerLogin, ServerSession};
use crate::lock_servers::LockServers;
use crate::stores::known_marks::KnownMarks;
use crate::verdict::{Fence, Mark, Verdict, judge};

/// Marks that one statement compares.
const MARKS_AT_ONCE: usize = 1_000;

/// Addresses of one PostgreSQL and the guard's login at one of its databases. Clones share what the
/// guard knows.
#[derive(Clone, Debug)]
pub struct Upstream {
    pub(super) target: PostgresTarget,
    /// Role of the guard itself.
    pub(super) login: ServerLogin,
    /// Servers that state a floor above every issued token.
    lock_servers: Option<LockServers>,
    shared: Arc<SharedUpstream>,
}

#[derive(Debug, Default)]
struct SharedUpstream {
    /// Number of the address that accepted writes last.
    at: AtomicUsize,
    marks: KnownMarks,
    /// Server that has the marks. Locked while another one is verified.
    verified: tokio::sync::Mutex<Option<ServerIdentity>>,
}

/// One life of one server as a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerIdentity {
    /// Start of its process.
    pub(super) start: String,
    pub(super) timeline: String,
    /// Identifiers of the cluster and of the pack's installation.
    pub(super) lineage: String,
}

impl Upstream {
    /// Makes one that knows nothing yet.
    pub fn new(target: PostgresTarget, login: ServerLogin) -> Self {
        Self { target, login, lock_servers: None, shared: Arc::default() }
    }

    /// Asks these lock servers for a floor if PostgreSQL loses marks: on a quorum, tokens rise lock
    /// by lock, and the highest that was admitted here may be below others.
    #[must_use]
    pub fn with_lock_servers(self, lock_servers: Option<LockServers>) -> Self {
        Self { lock_servers, ..self }
    }

    /// Role of the guard itself.
    pub fn login(&self) -> &ServerLogin {
        &self.login
    }

    /// The one database that the port serves.
    pub fn database(&self) -> &str {
        self.target.database()
    }

    /// Number of the address that accepted writes last.
    pub(super) fn at(&self) -> usize {
        self.shared.at.load(Ordering::Relaxed)
    }

    /// Numbers of all addresses, beginning with the one that accepted writes last.
    pub(super) fn addresses(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.target.addresses().len();
        let first = self.at();
        (0..count).map(move |number| (first + number) % count)
    }

    pub(super) fn use_address(&self, at: usize) {
        self.shared.at.store(at, Ordering::Relaxed);
    }

    /// Opens a session at the server that accepted writes last.
    ///
    /// # Errors
    /// Those of [`ServerSession::open`].
    pub(super) async fn open(
        &self,
        login: &ServerLogin,
        parameters: &[(&str, &str)],
    ) -> Result<ServerSession, ServerError> {
        ServerSession::open(&self.target, self.at(), login, parameters).await
    }

    /// Compares a token with the acknowledged mark of its lock.
    pub(super) fn judge(&self, fence: &Fence) -> Verdict {
        judge(self.shared.marks.deciding(&fence.lock, None), fence.presented)
    }

    /// Remembers an acknowledged mark.
    pub(super) fn remember(&self, fence: &Fence) {
        self.shared.marks.remember(fence);
    }

    /// Checks a server's roles, and compares its marks with those that this guard remembers, unless
    /// this very server was verified last. The query of the roles takes PostgreSQL 10 ms.
    ///
    /// # Errors
    /// Those of the server; also if it lost marks, and no floor can be set.
    pub(super) async fn verify(
        &self,
        session: &mut ServerSession,
        identity: &ServerIdentity,
        namespace: &Namespace,
        roles: &str,
    ) -> Result<(), ServerError> {
        let mut verified = self.shared.verified.lock().await;
        if verified.as_ref() == Some(identity) {
            return Ok(());
        }
        roles::judge(&session.query(roles).await?)?;
        if let Some(earlier) = verified.as_ref() {
            let was_promoted = earlier.timeline != identity.timeline;
            let was_replaced = earlier.lineage != identity.lineage;
            tracing::warn!(
                upstream = %self,
                was_promoted,
                was_replaced,
                "PostgreSQL was restarted, promoted or replaced; comparing its marks"
            );
            self.restore(session, namespace).await?;
        }
        *verified = Some(identity.clone());
        Ok(())
    }

    /// First token to admit where marks up to `highest` were admitted here.
    async fn floor(&self, highest: Token) -> Result<Token, ServerError> {
        let Some(lock_servers) = &self.lock_servers else { return Ok(highest) };
        let issued = lock_servers.floor().await.map_err(|error| {
            ServerError::Broken(format!(
                "it has lost marks of this guard, and no lock server states the first token to \
                 admit ({error}); nothing is admitted before"
            ))
        })?;
        Ok(issued.max(highest))
    }

    /// Sets a floor if a remembered mark is missing.
    async fn restore(
        &self,
        session: &mut ServerSession,
        namespace: &Namespace,
    ) -> Result<(), ServerError> {
        let marks = self.shared.marks.to_vec();
        let Some(highest) = marks.iter().map(|(_, mark)| mark.token).max() else { return Ok(()) };
        let mut lost = 0;
        for marks in marks.chunks(MARKS_AT_ONCE) {
            lost += session.query(&missing(marks, highest, namespace)).await?.len();
        }
        if lost == 0 {
            return Ok(());
        }
        let floor = self.floor(highest).await?;
        tracing::error!(
            upstream = %self,
            lost,
            %floor,
            "PostgreSQL has lost marks of this guard (a failover, or an older backup); nothing \
             below the floor is admitted any more"
        );
        session.query(&format!("SELECT fence.set_floor({floor})")).await.map_err(|error| {
            ServerError::Broken(format!(
                "it has lost marks of this guard, and the guard cannot set a floor ({error}); as \
                 the owner of schema fence: SELECT fence.set_floor({floor})"
            ))
        })?;
        Ok(())
    }
}

/// Query for the locks whose mark is lower than it was, unless a floor makes that harmless.
fn missing(marks: &[(LockName, Mark)], highest: Token, namespace: &Namespace) -> String {
    // Locks and namespaces have no character that ends a literal.
    let rows: Vec<String> =
        marks.iter().map(|(lock, mark)| format!("('{lock}', {})", mark.token)).collect();
    format!(
        "SELECT k.lock FROM (VALUES {}) k (lock, token) WHERE NOT EXISTS (SELECT FROM fence.marks m \
         WHERE m.namespace = '{namespace}' AND m.lock = k.lock AND m.token >= k.token) \
         AND (SELECT floor FROM fence.meta) < {highest}",
        rows.join(", ")
    )
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}
