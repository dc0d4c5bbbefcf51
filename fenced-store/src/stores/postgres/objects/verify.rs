//! Installation of the pack at start, and verification of the database behind each new connection.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use postgres_link::{
    ConnectOptions, LinkState, PostgresConnection, PostgresLink, PostgresTarget, Verifier,
};
use service_kit::Kit;
use service_kit::health::Status;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Row, SimpleQueryMessage};

use crate::stores::known_marks::KnownMarks;
use crate::stores::postgres::pack;
use crate::stores::report::Gaps;

/// Readiness check: PostgreSQL can be used.
const CHECK: &str = "postgres";
/// Longest time for an installation.
const INSTALL_WITHIN: Duration = Duration::from_secs(30);
/// Guards that start together install the pack one after the other.
const INSTALL_LOCK: &str = "SELECT pg_advisory_lock(6497, 1)";
const IS_INSTALLED: &str = "SELECT to_regclass('fence.meta') IS NOT NULL \
                            AND to_regclass('fence.objects') IS NOT NULL";
const NO_RIGHTS: &str = "the guard's role may not use the SQL pack; have its owner run: \
                         fenced-store postgres install --guard ROLE";
/// Reason to refuse a database whose marks are others than at the start.
const OTHER_DATABASE: &str = "it is another database than at the start of this guard, or its pack was installed or restored \
     anew: marks are missing; restart the guard if that is right";
/// Names are PostgreSQL's own: in a schema that others can write to could be operators that fit
/// better.
const OWN_NAMES: &str = "SET search_path = pg_catalog, pg_temp";
const FACTS: &str = "SELECT version, b.id::text || ' ' || b.tableoid::text, \
    has_function_privilege('fence.admit_all(text, text[], bigint[], uuid[])', 'EXECUTE') \
    AND has_function_privilege('fence.lock_objects(text, text[])', 'EXECUTE'), \
    current_setting('fsync'), current_setting('full_page_writes'), \
    current_setting('synchronous_standby_names') FROM fence.meta b";

/// Installs the pack in a database that has none, or one without objects. Another version is left
/// to the operator: its guards would refuse the new one.
///
/// # Errors
/// A sentence with the address, the reason and the remedy.
pub(super) async fn install(target: &PostgresTarget, kit: &Kit) -> Result<(), String> {
    let failed = |reason: String| {
        format!(
            "the SQL pack could not be installed in PostgreSQL at {target}: {reason}; have its \
             owner run: fenced-store postgres install --guard {}",
            target.user()
        )
    };
    let options =
        ConnectOptions { statement_timeout: Some(INSTALL_WITHIN), ..ConnectOptions::default() };
    let connection = target.connect(&options, &kit.tasks).await?;
    let installed = async {
        let client = connection.client();
        client.batch_execute(OWN_NAMES).await?;
        if is_true(&client.simple_query(IS_INSTALLED).await?) {
            return Ok(());
        }
        client.batch_execute(INSTALL_LOCK).await?;
        if is_true(&client.simple_query(IS_INSTALLED).await?) {
            return Ok(());
        }
        client.batch_execute(&pack::sql()).await?;
        tracing::info!(postgres = %target, version = pack::VERSION, "the SQL pack was installed");
        Ok(())
    };
    installed.await.map_err(|error: tokio_postgres::Error| failed(reason_of(&error)))
}

fn is_true(replies: &[SimpleQueryMessage]) -> bool {
    replies.iter().any(|reply| match reply {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    })
}

/// Refuses a database without the pack's objects, and another one than at start; knows the marks
/// that this guard acknowledged.
#[derive(Debug, Default)]
pub(super) struct ObjectsVerifier {
    /// Id of the pack's installation, and its table: a restored one has another.
    database_id: OnceLock<String>,
    pub(super) marks: KnownMarks,
    gaps: Mutex<Gaps>,
}

impl ObjectsVerifier {
    pub(super) fn database_id(&self) -> Option<&str> {
        self.database_id.get().map(String::as_str)
    }

    pub(super) fn gaps(&self) -> Gaps {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check(&self, row: &Row) -> Result<(), Refused> {
        let version: i32 = row.try_get(0)?;
        if version != pack::VERSION {
            let known = pack::VERSION;
            return Err(Refused(format!(
                "its SQL pack has version {version}, and this guard knows {known}; run \
                 fenced-store postgres install with the newer program, and restart the guards"
            )));
        }
        if !row.try_get::<_, bool>(2)? {
            return Err(Refused(NO_RIGHTS.to_owned()));
        }
        let id: String = row.try_get(1)?;
        if *self.database_id.get_or_init(|| id.clone()) != id {
            return Err(Refused(OTHER_DATABASE.to_owned()));
        }
        let gaps = gaps(row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
        *self.gaps.lock().unwrap_or_else(PoisonError::into_inner) = gaps;
        Ok(())
    }
}

/// Reason why a database cannot be used.
struct Refused(String);

impl From<tokio_postgres::Error> for Refused {
    fn from(error: tokio_postgres::Error) -> Self {
        Self(match error.code() {
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => NO_RIGHTS.to_owned(),
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_FUNCTION) => {
                "its database has no SQL pack, or one without objects; run fenced-store postgres \
                 install"
                    .to_owned()
            }
            _ => reason_of(&error),
        })
    }
}

/// The server's own words where it has sent some.
fn reason_of(error: &tokio_postgres::Error) -> String {
    postgres_link::refusal(error).map_or_else(|| error.to_string(), |refusal| refusal.to_string())
}

fn gaps(fsync: &str, full_page_writes: &str, standbys: &str) -> Gaps {
    let mut gaps = Gaps::inherent([
        "An older backup restores older marks with the older objects: a client that was refused \
         before may write again; state a floor after a restore.",
    ]);
    if standbys.is_empty() {
        gaps.inherent.push(
            "synchronous_standby_names is empty: a failover to a replica can lose the last marks \
             with their objects."
                .to_owned(),
        );
    }
    for (name, value) in [("fsync", fsync), ("full_page_writes", full_page_writes)] {
        if value != "on" {
            gaps.avoidable.push(format!(
                "{name} is {value}: a crash of the machine can lose or damage marks and objects."
            ));
        }
    }
    gaps
}

#[async_trait]
impl Verifier for ObjectsVerifier {
    async fn verify(&self, connection: &PostgresConnection) -> Result<(), String> {
        let checked = async {
            connection.client().batch_execute(OWN_NAMES).await?;
            let row = connection.client().query_typed_one(FACTS, &[]).await?;
            self.check(&row)
        };
        let address = connection.address();
        checked.await.map_err(|Refused(reason)| format!("PostgreSQL at {address}: {reason}"))
    }
}

/// Takes down a link to a database whose marks are others than at the start, and returns the
/// reason. Verified again, it stays down.
pub(super) fn leave(link: &PostgresLink) -> String {
    if let Ok((number, _)) = link.live() {
        link.replace(number, OTHER_DATABASE);
    }
    OTHER_DATABASE.to_owned()
}

/// Updates readiness with the link.
pub(super) fn follow(link: &PostgresLink, kit: &Kit) {
    let mut states = link.watch();
    let health = kit.health.clone();
    let stop = kit.tasks.shutdown_token();
    kit.tasks.spawn(async move {
        loop {
            let status = match &*states.borrow_and_update() {
                LinkState::Up(_) => Status::Ok,
                LinkState::Down(reason) => Status::Failing(reason.clone()),
            };
            health.set(CHECK, status);
            tokio::select! {
                () = stop.cancelled() => return,
                changed = states.changed() => if changed.is_err() { return },
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{Gaps, gaps};

    #[test]
    fn settings_that_lose_commits_are_gaps() {
        let safe = gaps("on", "on", "one");
        assert_eq!((safe.avoidable.len(), safe.inherent.len()), (0, 1));
        let Gaps { avoidable, inherent } = gaps("off", "off", "");
        assert_eq!(avoidable.len(), 2, "{avoidable:?}");
        let all = [avoidable, inherent].concat().join(" ");
        for word in ["synchronous_standby_names", "fsync is off", "full_page_writes is off"] {
            assert!(all.contains(word), "{all}");
        }
    }
}
