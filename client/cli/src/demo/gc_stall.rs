//! gc-stall: a worker is stopped between its read and its write, for longer than its lease lasts.

use super::account::{
    Account, DEPOSIT_A, DIRECTOR, DOCUMENT, LOCK_SERVER, TTL_B_MS, TTL_MS, WAIT_MS, WORKER_A,
    WORKER_B, stalled,
};
use super::backing::Backing;
use super::record::Kind;
use super::stage::{Guarding, Stage};
use super::teller::Teller;
use crate::exit::Failure;

pub(super) const TITLE: &str = "A worker stalls past its lease";
pub(super) const EXPLANATION: &str = "\
Two workers update one account under a lock: read, compute, write. Worker A is stopped (SIGSTOP) \
after its read, as by a long garbage collection, and wakes up after its lease has passed to B; it is \
naive and writes without a look at the clock, which would only make the gap smaller.";

const LANES: [&str; 5] = [LOCK_SERVER, WORKER_A, WORKER_B, DOCUMENT, DIRECTOR];

/// Tells it unguarded and guarded.
pub(super) async fn tell(teller: &mut Teller, backing: &Backing) -> Result<(), Failure> {
    let stage = Stage::set(backing, &Guarding::Objects).await?;
    teller.note(&format!("{}\n", stage.described()))?;
    teller.begin("unguarded", "plain writes: the lock alone", &LANES)?;
    story(teller, &stage, &Account::new(false)).await?;
    teller.begin("guarded", "the same writes, with their fencing tokens", &LANES)?;
    story(teller, &stage, &Account::new(true)).await?;
    stage.strike().await;
    Ok(())
}

async fn story(teller: &mut Teller, stage: &Stage, account: &Account) -> Result<(), Failure> {
    account.open(stage, teller, stage.objects()).await?;
    let (mut a, mut b) = account.workers(stage, &stage.objects())?;
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
