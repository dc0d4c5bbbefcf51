//! stampede: a hundred workers count one number down, each once.

use std::collections::HashMap;
use std::time::Duration;

use fence_client::protocol::LockName;
use serde_json::json;

use super::account::{DIRECTOR, DOCUMENT, LOCK_SERVER};
use super::narrator::{EventFigures, Narrator};
use super::orders::{Line, Order, Report, Turn};
use super::record::{Kind, SpanKind};
use super::stage::{Guarding, Stage};
use super::verdict::Stampede;
use super::worker::Objects;
use crate::backing::Backing;
use crate::process::{PATIENCE, Process, awaited};
use fence_terminal::exit::Failure;

pub(super) const TITLE: &str = "A hundred workers want one number";
pub(super) const EXPLANATION: &str = "\
100 workers (25 concurrent tasks in each of 4 processes) read a number, subtract one and write it \
back, each once. Without a lock they overwrite each other. Under one lock all queue first, and are \
then served in the order in which they came.";

const WORKERS: usize = 100;
const PROCESSES: [&str; 4] = ["process 1", "process 2", "process 3", "process 4"];
const LANES_ALONE: [&str; 6] =
    [PROCESSES[0], PROCESSES[1], PROCESSES[2], PROCESSES[3], DOCUMENT, DIRECTOR];
const LANES: [&str; 7] =
    [LOCK_SERVER, PROCESSES[0], PROCESSES[1], PROCESSES[2], PROCESSES[3], DOCUMENT, DIRECTOR];

/// Runs it without a lock and with one.
pub(super) async fn run(narrator: &mut Narrator, backing: &Backing) -> Result<(), Failure> {
    let stage = Stage::set(backing, &Guarding::Objects).await?;
    narrator.remark(&format!("{}\n", stage.described()))?;
    narrator.begin("unguarded", "no lock, no token", &LANES_ALONE)?;
    without(narrator, &stage).await?;
    narrator.begin("guarded", "one lock, and its tokens", &LANES)?;
    under(narrator, &stage).await?;
    stage.strike().await;
    Ok(())
}

fn start(stage: &Stage) -> Result<Vec<Process>, Failure> {
    PROCESSES.iter().map(|name| stage.worker(name, &stage.objects())).collect()
}

fn order(key: &str, lock: Option<&str>) -> Order {
    let lock = lock.map(ToOwned::to_owned);
    Order::CountDown { tasks: WORKERS / PROCESSES.len(), key: key.to_owned(), lock }
}

/// Receives all turns of all processes.
async fn turns(
    narrator: &mut Narrator,
    processes: &mut [Process],
) -> Result<Vec<(u64, Turn)>, Failure> {
    let mut turns = Vec::with_capacity(WORKERS);
    for (process, name) in processes.iter_mut().zip(PROCESSES) {
        for _ in 0..WORKERS / PROCESSES.len() {
            let line: Line = process.receive_report().await?;
            match line.report {
                Report::Turn(turn) => {
                    narrator.dot(name, line.at_ms);
                    turns.push((line.at_ms, turn));
                }
                Report::Failed { message } => return Err(process.failed(&message)),
                other => return Err(process.failed(&format!("it reported {other:?}"))),
            }
        }
    }
    turns.sort_by_key(|(at_ms, _)| *at_ms);
    Ok(turns)
}

fn acknowledged(turns: &[(u64, Turn)]) -> usize {
    turns.iter().filter(|(_, turn)| (200..300).contains(&turn.status)).count()
}

/// The number in the document, read with `token`.
async fn number(objects: &Objects, key: &str, token: Option<&str>) -> Result<i64, Failure> {
    let answer = objects.get(key, token).await.map_err(Failure::internal)?;
    let left = answer.document.and_then(|document| document["left"].as_i64());
    let status = answer.status.unwrap_or_default();
    left.ok_or_else(|| Failure::internal(format!("the number cannot be read: {status}")))
}

async fn set(objects: &Objects, key: &str, token: Option<&str>) -> Result<i64, Failure> {
    let body = json!({ "left": WORKERS }).to_string();
    objects.put(key, token, body).await.map_err(Failure::internal)?;
    number(objects, key, token).await
}

async fn without(narrator: &mut Narrator, stage: &Stage) -> Result<(), Failure> {
    let key = "unguarded/number";
    let objects = Objects::new(stage.objects())?;
    let started_at = set(&objects, key, None).await?;
    narrator.event(DOCUMENT, Kind::Step, &format!("holds the number {started_at}"))?;
    let mut processes = start(stage)?;
    narrator.event(DIRECTOR, Kind::Step, "starts all workers at once")?;
    for process in &mut processes {
        process.send_order(&order(key, None)).await?;
    }
    let turns = turns(narrator, &mut processes).await?;
    let ended_at = number(&objects, key, None).await?;
    narrate_turns(narrator, &turns, ended_at)?;
    let facts = Stampede {
        workers: WORKERS,
        processes: PROCESSES.len(),
        acknowledged: acknowledged(&turns),
        started_at,
        ended_at,
        served_in_order: 0,
    };
    narrator.end(&facts, facts.lost())
}

/// The first and the last turn, and the end; the other turns are dots in the picture.
fn narrate_turns(
    narrator: &mut Narrator,
    turns: &[(u64, Turn)],
    ended_at: i64,
) -> Result<(), Failure> {
    for (what, turn) in [("first", turns.first()), ("last", turns.last())] {
        let Some((at_ms, turn)) = turn else { continue };
        let text =
            format!("{} is written, the {what} of {}: {}", turn.read - 1, turns.len(), turn.status);
        let figures = EventFigures { token: turn.token, status: Some(turn.status) };
        narrator.event_at(*at_ms, DOCUMENT, Kind::Applied, &text, figures)?;
    }
    let kind = if ended_at == 0 { Kind::Kept } else { Kind::Lost };
    narrator.event(DOCUMENT, kind, &format!("holds the number {ended_at}"))
}

async fn under(narrator: &mut Narrator, stage: &Stage) -> Result<(), Failure> {
    let key = "guarded/number";
    let objects = Objects::new(stage.objects())?;
    let client = stage.client()?;
    let lock = LockName::new(key)?;
    let held = client.lock(key).ttl(Duration::from_secs(60)).acquire_detached().await?;
    let held_ms = narrator.now();
    let started_at = set(&objects, key, Some(&held.fencing_token)).await?;
    let figures = EventFigures { token: Some(held.token.get()), status: None };
    let text = format!("holds the lock (token {}) until all workers queue", held.token);
    narrator.event_at(held_ms, DIRECTOR, Kind::Granted, &text, figures)?;
    narrator.event(DOCUMENT, Kind::Step, &format!("holds the number {started_at}"))?;
    let mut processes = start(stage)?;
    for process in &mut processes {
        process.send_order(&order(key, Some(key))).await?;
    }
    let queue = awaited("a queue of all workers", async || {
        let reply = client.locks().show(&lock).await?;
        Ok((reply.queue.len() == WORKERS).then_some(reply.queue))
    })
    .await?;
    let queue: Vec<String> = queue.iter().map(|waiter| waiter.lease_id.to_string()).collect();
    narrator.event(
        LOCK_SERVER,
        Kind::Step,
        &format!("has {} workers in its queue", queue.len()),
    )?;
    client.locks().release(&lock, held.lease_id).await?;
    let label = format!("token {}", held.token);
    narrator.span(DIRECTOR, SpanKind::Lease, (held_ms, narrator.now()), &label);
    narrator.event(DIRECTOR, Kind::Step, "releases the lock")?;
    let turns = turns(narrator, &mut processes).await?;

    // The last worker has reported its turn, and may be about to release the lock.
    let last = client.lock(key).ttl(Duration::from_secs(15)).wait(PATIENCE);
    let last = last.acquire_detached().await?;
    let ended_at = number(&objects, key, Some(&last.fencing_token)).await?;
    client.locks().release(&lock, last.lease_id).await?;
    narrate_turns(narrator, &turns, ended_at)?;
    let facts = Stampede {
        workers: WORKERS,
        processes: PROCESSES.len(),
        acknowledged: acknowledged(&turns),
        started_at,
        ended_at,
        served_in_order: served_in_order(&queue, &turns),
    };
    narrator.end(&facts, facts.exact())
}

/// Number of workers that were granted in queue order: tokens rise with each grant, so
/// that their order is the order of the grants.
fn served_in_order(queue: &[String], turns: &[(u64, Turn)]) -> usize {
    let by_lease: HashMap<&str, u64> = turns
        .iter()
        .filter_map(|(_, turn)| Some((turn.lease_id.as_deref()?, turn.token?)))
        .collect();
    let mut granted: Vec<_> = by_lease.iter().map(|(lease, token)| (*token, *lease)).collect();
    granted.sort_unstable();
    queue.iter().zip(granted).filter(|(queued, (_, served))| queued == served).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_tokens_is_the_order_of_service() {
        let turn = |token, lease: &str| {
            let lease_id = Some(lease.to_owned());
            (0, Turn { token: Some(token), lease_id, read: 1, status: 204 })
        };
        let queue = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(served_in_order(&queue, &[turn(9, "c"), turn(7, "a"), turn(8, "b")]), 3);
        assert_eq!(served_in_order(&queue, &[turn(9, "b"), turn(7, "a"), turn(8, "c")]), 1);
        assert_eq!(served_in_order(&queue, &[]), 0);
    }
}
