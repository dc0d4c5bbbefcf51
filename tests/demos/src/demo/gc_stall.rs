//! gc-stall: a worker is stopped between its read and its write, for longer than its lease lasts.

use super::account::{
    Account, DEPOSIT_A, DIRECTOR, DOCUMENT, LOCK_SERVER, TTL_B_MS, TTL_MS, WAIT_MS, WORKER_A,
    WORKER_B, stalled,
};
use super::record::Kind;
use super::stage::{Guarding, Stage};
use super::teller::Teller;
use crate::backing::Backing;
use fence_terminal::exit::Failure;

pub(super) const TITLE: &str = "A worker stalls past its lease";
pub(super) const EXPLANATION: &str = "\
Two workers update one account under a lock: read, compute, write. Worker A is stopped (SIGSTOP) \
after its read, as by a long garbage collection, and wakes up after its lease has passed to B; it is \
naive and writes without a look at the clock, which would only make the gap smaller.";

const LANES: [&str; 5] = [LOCK_SERVER, WORKER_A, WORKER_B, DOCUMENT, DIRECTOR];

/// Tells it unguarded and guarded: over HTTP, or on a Redis with an ordinary Redis driver.
pub(super) async fn tell(teller: &mut Teller, backing: &Backing) -> Result<(), Failure> {
    match backing {
        Backing::Embedded => on_objects(teller, backing).await,
        Backing::Redis { url, namespace, .. } => on_redis(teller, backing, &url.0, namespace).await,
    }
}

async fn on_objects(teller: &mut Teller, backing: &Backing) -> Result<(), Failure> {
    let stage = Stage::set(backing, &Guarding::Objects).await?;
    teller.note(&format!("{}\n", stage.described()))?;
    teller.begin("unguarded", "plain writes: the lock alone", &LANES)?;
    story(teller, &stage, &Account::new(false), &stage.objects()).await?;
    teller.begin("guarded", "the same writes, with their fencing tokens", &LANES)?;
    story(teller, &stage, &Account::new(true), &stage.objects()).await?;
    stage.strike().await;
    Ok(())
}

/// The workers speak to Redis itself first, and through the guard's port then: GET and SET, one
/// key, the same driver. All that differs is the URL.
async fn on_redis(
    teller: &mut Teller,
    backing: &Backing,
    redis: &str,
    folder: &str,
) -> Result<(), Failure> {
    let stage = Stage::set(backing, &Guarding::RedisPort).await?;
    teller.note(&format!("{}\n", stage.described()))?;
    teller.begin("unguarded", "GET and SET straight to Redis: the lock alone", &LANES)?;
    story(teller, &stage, &Account::below(folder, false), redis).await?;
    let title = "the same GET and SET through the guard's Redis port";
    teller.begin("guarded", title, &LANES)?;
    let port = stage.redis_port();
    teller.note(&format!(
        "the driver is the same, its URL is redis://fence:FENCING_CREDENTIAL@{}",
        port.trim_start_matches("redis://")
    ))?;
    let guarded = format!("{port}{}", backing.database());
    story(teller, &stage, &Account::below(folder, true), &guarded).await?;
    stage.strike().await;
    Ok(())
}

async fn story(
    teller: &mut Teller,
    stage: &Stage,
    account: &Account,
    base: &str,
) -> Result<(), Failure> {
    account.open(stage, teller, base).await?;
    let (mut a, mut b) = account.workers(stage, base)?;
    a.take(teller, TTL_MS, true).await?;
    a.read(teller).await?;
    a.add(teller, DEPOSIT_A, "A").await?;

    // Stopped first and told to write then: the order waits in its pipe until it goes on, so that
    // the stop falls between read and write each time.
    a.process().stop().await?;
    let stopped_ms = teller.now();
    a.begin(&a.write_order()).await?;
    let text = format!("stops worker A (SIGSTOP to process {}) right before its write", a.pid());
    teller.event(DIRECTOR, Kind::Delay, &text)?;

    b.begin(&b.acquire(TTL_B_MS, WAIT_MS, true)).await?;
    let granted = b.hear().await?;
    account.expired(stage, teller, &a).await?;
    b.granted(teller, &granted)?;
    let new = account.b_updates(teller, &mut b).await?;

    a.process().resume().await?;
    stalled(teller, stopped_ms, teller.now());
    teller.event(
        DIRECTOR,
        Kind::Step,
        "lets worker A go on (SIGCONT); it believes that it holds the lock",
    )?;
    let (late, _) = a.has_written(teller, "wakes up and writes").await?;
    let facts = account.read_back(teller, (&a, &mut b), (&late, &new)).await?;
    b.release(teller).await?;
    if account.fenced {
        account.refusals(stage, teller).await?;
        if let Some(lost) = a.check().await? {
            teller.note(&format!(
                "fence-client in worker A, asked now, would not have sent it: {lost}"
            ))?;
        }
    }
    let verdict = if account.fenced { facts.refused() } else { facts.lost() };
    teller.end(&facts, verdict)
}
