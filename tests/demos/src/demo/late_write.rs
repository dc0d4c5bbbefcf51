//! One story for gc-stall, lease-overlap and delayed-write: worker A reads and computes under a
//! lock, its write is delayed until worker B has the lock, and both want to update one account.

use super::account::{
    Account, DATASTORE, DEPOSIT_A, DEPOSIT_B, DIRECTOR, TTL_B_MS, TTL_MS, WAIT_MS, WORKER_A,
    WORKER_B,
};
use super::actor::{Actor, shown};
use super::datastore::Datastore;
use super::narrator::{EventFigures, Narrator};
use super::orders::{Answer, Order, Report};
use super::record::{Kind, SpanKind};
use super::stage::{Guarding, Stage};
use crate::backing::Backing;
use crate::process::awaited;
use fence_terminal::exit::Failure;

pub(super) const OVERLAP_TITLE: &str = "A slow write is in flight when the lease passes on";
pub(super) const OVERLAP_EXPLANATION: &str = "\
Worker A is never stopped and begins its write in time, but its connection is slow: half of the \
body is sent when the lease ends and passes to B. No check before the write could have helped, \
and what has been sent cannot be recalled.";

/// Cause of the delay of A's write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Delay<'a> {
    /// A is stopped (SIGSTOP) between its read and its write.
    Stopped,
    /// Half of the body is sent, and the rest waits.
    HalfSent,
    /// The datastore holds the write before it applies it.
    Held(&'a Datastore),
    /// The datastore holds the write; the guard's lane holds B back meanwhile.
    HeldInLane(&'a Datastore),
}

/// Runs the story with objects of the guard, unguarded and guarded.
pub(super) async fn on_objects(
    narrator: &mut Narrator,
    backing: &Backing,
    delay: Delay<'_>,
) -> Result<(), Failure> {
    let stage = Stage::set(backing, &Guarding::Objects).await?;
    narrator.remark(&format!("{}\n", stage.described()))?;
    narrator.begin("unguarded", "plain writes: the lock alone", &Account::LANES)?;
    story(narrator, &stage, &Account::new(false), &stage.objects(), delay).await?;
    narrator.begin("guarded", "the same writes, with their fencing tokens", &Account::LANES)?;
    story(narrator, &stage, &Account::new(true), &stage.objects(), delay).await?;
    stage.strike().await;
    Ok(())
}

/// Runs the story once; documents are at `base`.
pub(super) async fn story(
    narrator: &mut Narrator,
    stage: &Stage,
    account: &Account,
    base: &str,
    delay: Delay<'_>,
) -> Result<(), Failure> {
    account.open(stage, narrator, base).await?;
    let (mut a, mut b) = account.workers(stage, base)?;
    let renewed = matches!(delay, Delay::Stopped);
    a.take(narrator, TTL_MS, renewed).await?;
    a.read(narrator).await?;
    a.add(narrator, DEPOSIT_A, "A").await?;
    let from_ms = delay.begin(narrator, &mut a).await?;

    b.begin(&b.acquire(TTL_B_MS, WAIT_MS, true)).await?;
    let granted = b.next_report().await?;
    account.expired(stage, narrator, &a).await?;
    b.granted(narrator, &granted)?;
    if let Delay::HeldInLane(datastore) = delay {
        let waiting_ms = in_lane(narrator, stage, account, &mut b).await?;
        let held_back = saw_nothing(narrator, datastore)?;
        let late = delay.end(narrator, &mut a, from_ms).await?;
        b.has_read(narrator).await?;
        narrator.span(WORKER_B, SpanKind::Wait, (waiting_ms, narrator.now()), "in the lane");
        b.add(narrator, DEPOSIT_B, "B").await?;
        let new = b.write(narrator).await?;
        let facts = account.read_back(narrator, (&a, &mut b), (&late, &new)).await?;
        b.release(narrator).await?;
        return narrator.end(&facts, facts.in_order(held_back));
    }
    b.read(narrator).await?;
    b.add(narrator, DEPOSIT_B, "B").await?;
    let new = b.write(narrator).await?;
    let late = delay.end(narrator, &mut a, from_ms).await?;
    let facts = account.read_back(narrator, (&a, &mut b), (&late, &new)).await?;
    b.release(narrator).await?;
    if !account.fenced || matches!(delay, Delay::Held(_)) {
        return narrator.end(&facts, facts.lost());
    }
    account.refusals(stage, narrator).await?;
    if renewed && let Some(lost) = a.check().await? {
        let text = format!("fence-client in worker A would not have sent it now: {lost}");
        narrator.remark(&text)?;
    }
    narrator.end(&facts, facts.refused())
}

impl Delay<'_> {
    /// Makes A begin its write and delays it; the time at which the delay began.
    async fn begin(self, narrator: &mut Narrator, a: &mut Actor) -> Result<u64, Failure> {
        match self {
            // Stopped before the order is sent: the order waits in its pipe, so that the stop falls
            // between read and write each time.
            Self::Stopped => {
                a.process().stop().await?;
                let stopped_ms = narrator.now();
                a.begin(&a.write_order()).await?;
                let pid = a.pid();
                let text =
                    format!("stops worker A (SIGSTOP to process {pid}) right before its write");
                narrator.event(DIRECTOR, Kind::Delay, &text)?;
                Ok(stopped_ms)
            }
            Self::HalfSent => {
                a.begin(&a.half_order()).await?;
                let half = a.next_report().await?;
                let Report::Half { sent_bytes, body_bytes } = half.report else {
                    return Err(a.process().failed("it did not send half of its write"));
                };
                let text = format!(
                    "begins to write; {sent_bytes} of {body_bytes} bytes are sent, the line is slow"
                );
                narrator.event_at(
                    half.at_ms,
                    WORKER_A,
                    Kind::Delay,
                    &text,
                    EventFigures::default(),
                )?;
                Ok(half.from_ms)
            }
            Self::Held(datastore) | Self::HeldInLane(datastore) => {
                datastore.hold_next();
                a.begin(&a.write_order()).await?;
                let (at_ms, document) =
                    awaited("A's write at the datastore", async || Ok(datastore.held())).await?;
                let text = format!("has A's write ({}), and holds it", shown(Some(&document)));
                narrator.event_at(at_ms, DATASTORE, Kind::Delay, &text, EventFigures::default())?;
                Ok(at_ms)
            }
        }
    }

    /// Ends the delay; the reply to A's write.
    async fn end(
        self,
        narrator: &mut Narrator,
        a: &mut Actor,
        from_ms: u64,
    ) -> Result<Answer, Failure> {
        match self {
            Self::Stopped => {
                a.process().resume().await?;
                narrator.span(WORKER_A, SpanKind::Stall, (from_ms, narrator.now()), "stopped");
                let text = "resumes worker A (SIGCONT); it believes that it holds the lock";
                narrator.event(DIRECTOR, Kind::Step, text)?;
                a.has_written(narrator, "wakes up and writes").await.map(|(late, _)| late)
            }
            Self::HalfSent => {
                narrator.event(DIRECTOR, Kind::Step, "lets the rest of A's write through")?;
                a.begin(&Order::WriteRest).await?;
                let (late, line) = a.has_written(narrator, "has sent its whole write,").await?;
                narrator.span(WORKER_A, SpanKind::Flight, (from_ms, line.at_ms), "write in flight");
                Ok(late)
            }
            Self::Held(datastore) | Self::HeldInLane(datastore) => {
                narrator.event(DIRECTOR, Kind::Step, "lets the datastore apply A's write")?;
                datastore.apply_held();
                let (late, line) =
                    a.has_written(narrator, "receives the reply to its write").await?;
                narrator.span(DATASTORE, SpanKind::Flight, (from_ms, line.at_ms), "A's write");
                Ok(late)
            }
        }
    }
}

/// Sends B's read, and returns when it waits in the guard's lane.
async fn in_lane(
    narrator: &mut Narrator,
    stage: &Stage,
    account: &Account,
    b: &mut Actor,
) -> Result<u64, Failure> {
    b.begin(&b.read_order()).await?;
    let token = b.grant.token;
    let client = stage.client()?;
    let lock = account.lock()?;
    // The mark is durable before B's request waits: from here on it is in the lane.
    awaited("B's request in the lane", async || {
        let fence = client.objects().fence(&lock).await?;
        Ok(fence.mark.filter(|mark| mark.get() == token))
    })
    .await?;
    let waiting_ms = narrator.now();
    let figures = EventFigures { token: Some(token), status: None };
    let text = format!("sends a read; the guard's mark is {token}, and the read waits in the lane");
    narrator.event_at(waiting_ms, WORKER_B, Kind::Delay, &text, figures)?;
    Ok(waiting_ms)
}

/// Checks that the datastore has received nothing since A's write.
fn saw_nothing(narrator: &mut Narrator, datastore: &Datastore) -> Result<bool, Failure> {
    let since = datastore.requests_since_held();
    let kind = if since == 0 { Kind::Step } else { Kind::Lost };
    narrator.event(DATASTORE, kind, &format!("has received {since} requests since A's write"))?;
    Ok(since == 0)
}
