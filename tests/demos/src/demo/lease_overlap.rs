//! lease-overlap: a write is on its way, slowly, when the lease passes on. Nobody is stopped.

use super::account::{
    Account, DEPOSIT_A, DIRECTOR, DOCUMENT, LOCK_SERVER, TTL_B_MS, TTL_MS, WAIT_MS, WORKER_A,
    WORKER_B,
};
use super::orders::{Order, Report};
use super::record::{Kind, SpanKind};
use super::stage::{Guarding, Stage};
use super::teller::{Known, Teller};
use crate::backing::Backing;
use fence_terminal::exit::Failure;

pub(super) const TITLE: &str = "A slow write is in flight when the lease passes on";
pub(super) const EXPLANATION: &str = "\
Worker A is never stopped and begins its write in time, but its connection is slow: half of the body \
is on its way when the lease ends and passes to B. No check before the write could have helped, and \
what has been sent cannot be called back.";

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
    account.open(stage, teller, &stage.objects()).await?;
    let (mut a, mut b) = account.workers(stage, &stage.objects())?;
    a.take(teller, TTL_MS, false).await?;
    a.read(teller).await?;
    a.add(teller, DEPOSIT_A, "A").await?;

    a.begin(&a.half_order()).await?;
    let half = a.hear().await?;
    let Report::Half { sent_bytes, body_bytes } = half.report else {
        return Err(a.process().failed("it did not send half of its write"));
    };
    let text =
        format!("begins to write; {sent_bytes} of {body_bytes} bytes are sent, the line is slow");
    teller.event_at(half.at_ms, WORKER_A, Kind::Delay, &text, Known::default())?;

    b.begin(&b.acquire(TTL_B_MS, WAIT_MS, true)).await?;
    let granted = b.hear().await?;
    account.expired(stage, teller, &a).await?;
    b.granted(teller, &granted)?;
    let new = account.b_updates(teller, &mut b).await?;

    teller.event(DIRECTOR, Kind::Step, "lets the rest of A's write through")?;
    a.begin(&Order::WriteRest).await?;
    let (late, line) = a.has_written(teller, "has sent its write whole,").await?;
    teller.span(WORKER_A, SpanKind::Flight, (half.from_ms, line.at_ms), "write in flight");
    let facts = account.read_back(teller, (&a, &mut b), (&late, &new)).await?;
    b.release(teller).await?;
    if account.fenced {
        account.refusals(stage, teller).await?;
    }
    let verdict = if account.fenced { facts.refused() } else { facts.lost() };
    teller.end(&facts, verdict)
}
