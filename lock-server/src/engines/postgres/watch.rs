//! Readiness of a PostgreSQL: whether it keeps what it acknowledged.

use std::time::Duration;

use postgres_link::{LinkState, PostgresLink};
use service_kit::health::{Health, Status};
use tokio_postgres::Row;

use super::{column, one, session};

/// Time between two checks of the settings.
const INTERVAL: Duration = Duration::from_secs(5);
/// The readiness check.
const CHECK: &str = "postgres";

/// Settings that decide what a crash forgets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    fsync: String,
    full_page_writes: String,
    synchronous_standby_names: String,
    replicas: i64,
}

/// Shows in `/readyz` what is found, which logs what is new.
pub(super) async fn watch(link: PostgresLink, health: Health) {
    let mut states = link.watch();
    loop {
        let state = states.borrow_and_update().clone();
        let status = match state {
            LinkState::Down(reason) => Status::Failing(reason),
            LinkState::Up(_) => probe(&link).await,
        };
        health.set(CHECK, status);
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = states.changed() => {}
        }
    }
}

async fn probe(link: &PostgresLink) -> Status {
    let read = |row: &Row| {
        Ok(Facts {
            fsync: column(row, 0)?,
            full_page_writes: column(row, 1)?,
            synchronous_standby_names: column(row, 2)?,
            replicas: column(row, 3)?,
        })
    };
    let facts = match link.query(session::SETTINGS, &[]).await {
        Ok(rows) => one(&rows, read),
        Err(error) => Err(error.to_string()),
    };
    match facts {
        Ok(facts) => judge(&facts),
        Err(reason) => Status::Failing(reason),
    }
}

/// Judges the settings.
fn judge(facts: &Facts) -> Status {
    let mut texts = Vec::new();
    if facts.fsync != "on" {
        texts.push(
            "fsync is off: a crash of the machine forgets leases, or leaves a database that cannot \
             be read (tokens still rise); set it on"
                .to_owned(),
        );
    }
    if facts.full_page_writes != "on" {
        texts.push(
            "full_page_writes is off: a crash of the machine may leave a database that cannot be \
             read; set it on"
                .to_owned(),
        );
    }
    if facts.synchronous_standby_names.is_empty() && facts.replicas > 0 {
        texts.push(
            "there are replicas and synchronous_standby_names is empty: a failover may forget \
             leases, and grants then wait for their time (tokens still rise); name a replica"
                .to_owned(),
        );
    }
    if texts.is_empty() { Status::Ok } else { Status::Warn(texts.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_or_a_failover_forgets_is_named() {
        let on = || "on".to_owned();
        let durable = Facts { fsync: on(), full_page_writes: on(), ..Facts::default() };
        assert_eq!(judge(&durable), Status::Ok);
        let named = |facts: &Facts, about: &str| match judge(facts) {
            Status::Warn(text) => text.contains(about),
            _ => false,
        };
        assert!(named(&Facts { fsync: "off".to_owned(), ..durable.clone() }, "fsync is off"));
        let torn = Facts { full_page_writes: "off".to_owned(), ..durable.clone() };
        assert!(named(&torn, "full_page_writes"));
        let behind = Facts { replicas: 1, ..durable.clone() };
        assert!(named(&behind, "synchronous_standby_names"));
        let names = "'a'".to_owned();
        assert_eq!(judge(&Facts { synchronous_standby_names: names, ..behind }), Status::Ok);
    }
}
