//! gc-stall: a worker is stopped between its read and its write, for longer than its lease lasts.

use super::account::{Account, DATASTORE};
use super::datastore::Datastore;
use super::late_write::{Delay, on_objects, story};
use super::narrator::Narrator;
use super::stage::{Guarding, Stage};
use crate::backing::Backing;
use crate::postgres_database::PostgresDatabase;
use fence_terminal::exit::Failure;

pub(super) const TITLE: &str = "A worker stalls past its lease";
pub(super) const EXPLANATION: &str = "\
Two workers update one account under a lock: read, compute, write. Worker A is stopped (SIGSTOP) \
after its read, as by a long garbage collection, and wakes up after its lease has passed to B; \
it is naive and writes without checking the clock, which would only make the gap smaller.";

/// Runs it unguarded and guarded: with objects of the guard, on a plain HTTP datastore, or on a
/// Redis or a PostgreSQL with an ordinary driver.
pub(super) async fn run(narrator: &mut Narrator, backing: &Backing) -> Result<(), Failure> {
    match backing {
        Backing::Embedded => on_objects(narrator, backing, Delay::Stopped).await,
        Backing::Http => on_datastore(narrator, backing).await,
        Backing::Redis { url, namespace, .. } => {
            on_redis(narrator, backing, &url.0, namespace).await
        }
        Backing::Postgres(database) => on_postgres(narrator, backing, database).await,
    }
}

/// The workers speak to the datastore itself first, and then through the guard's reverse proxy: GET
/// and PUT of one path. Only the address and the token differ.
async fn on_datastore(narrator: &mut Narrator, backing: &Backing) -> Result<(), Failure> {
    let datastore = Datastore::start().await?;
    let upstream = datastore.url().to_owned();
    let stage = Stage::set(backing, &Guarding::Proxy { upstream }).await?;
    narrator.remark(&stage.described())?;
    narrator.remark(&format!("the datastore is {}\n", datastore.url()))?;
    let account = |fenced| Account { lane: DATASTORE, ..Account::new(fenced) };
    let title = "GET and PUT straight to the datastore: the lock alone";
    narrator.begin("unguarded", title, &Account::LANES_DATASTORE)?;
    let direct = format!("{}/", datastore.url());
    story(narrator, &stage, &account(false), &direct, Delay::Stopped).await?;
    let title = "the same GET and PUT through the guard's reverse proxy";
    narrator.begin("guarded", title, &Account::LANES_DATASTORE)?;
    story(narrator, &stage, &account(true), &stage.proxied(), Delay::Stopped).await?;
    stage.strike().await;
    Ok(())
}

/// The workers speak to Redis itself first, and then through the guard's port: GET and SET, one
/// key, the same driver. Only the URL differs.
async fn on_redis(
    narrator: &mut Narrator,
    backing: &Backing,
    redis: &str,
    folder: &str,
) -> Result<(), Failure> {
    let stage = Stage::set(backing, &Guarding::RedisPort).await?;
    narrator.remark(&format!("{}\n", stage.described()))?;
    narrator.begin(
        "unguarded",
        "GET and SET straight to Redis: the lock alone",
        &Account::LANES,
    )?;
    story(narrator, &stage, &Account::below(folder, false), redis, Delay::Stopped).await?;
    let title = "the same GET and SET through the guard's Redis port";
    narrator.begin("guarded", title, &Account::LANES)?;
    let port = stage.second_port();
    narrator.remark(&format!(
        "the driver is the same, its URL is redis://fence:FENCING_CREDENTIAL@{}",
        port.trim_start_matches("redis://")
    ))?;
    let guarded = format!("{port}{}", backing.database());
    story(narrator, &stage, &Account::below(folder, true), &guarded, Delay::Stopped).await?;
    stage.strike().await;
    Ok(())
}

/// The workers log in to PostgreSQL itself first, and then at the guard's port: one transaction
/// with SELECT and UPDATE, the same driver. Only the URL differs.
async fn on_postgres(
    narrator: &mut Narrator,
    backing: &Backing,
    database: &PostgresDatabase,
) -> Result<(), Failure> {
    let stage = Stage::set(backing, &Guarding::PostgresPort).await?;
    narrator.remark(&format!("{}\n", stage.described()))?;
    let title = "a transaction at PostgreSQL itself: the lock alone";
    narrator.begin("unguarded", title, &Account::LANES)?;
    narrator
        .remark("worker A is stopped with an open transaction: BEGIN, SELECT, and no COMMIT yet")?;
    let direct = database.writer_url();
    story(narrator, &stage, &Account::new(false), &direct, Delay::Stopped).await?;
    let title = "the same transaction through the guard's PostgreSQL port";
    narrator.begin("guarded", title, &Account::LANES)?;
    let port = stage.second_port();
    narrator.remark(&format!(
        "the driver is the same, its URL is postgres://fence:FENCING_CREDENTIAL@{}",
        port.trim_start_matches("postgres://")
    ))?;
    story(narrator, &stage, &Account::new(true), port, Delay::Stopped).await?;
    stage.strike().await;
    Ok(())
}
