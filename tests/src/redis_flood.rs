//! One connection that writes as fast as it can, far ahead of the replies that it reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::journal::{Answer, WriteReport};
use crate::redis_writes::{Grant, refusal};
use crate::resp_client::{Resp, RespClient, RespReader, RespWriter, request};
use crate::wait::{patience, soon, until_true};

/// The writes that are sent in one piece.
const PIECE: u64 = 500;
/// Distance of the writer from the replies: enough to have every buffer on the way filled.
const AHEAD: u64 = 20_000;
/// Pause of the reader between two checks that all was sent.
const GLANCE: Duration = Duration::from_millis(50);

/// RPUSHes to the journal of a lock, pipelined, until the connection ends or one is refused.
#[derive(Debug)]
pub struct Flood {
    writing: JoinHandle<RespWriter>,
    reading: JoinHandle<Vec<WriteReport>>,
    seen: Arc<Seen>,
    token: u64,
}

#[derive(Debug, Default)]
struct Seen {
    sent: AtomicU64,
    applied: AtomicU64,
    is_sent: AtomicBool,
    is_over: AtomicBool,
}

impl Flood {
    /// Begins to write, at most `count` times, on a connection that has presented its token.
    pub fn start(client: RespClient, grant: &Grant, count: u64) -> Self {
        let (writer, reader) = client.split();
        let seen = Arc::<Seen>::default();
        let writing = tokio::spawn(send(writer, grant.clone(), count, Arc::clone(&seen)));
        let reading = tokio::spawn(receive(reader, Arc::clone(&seen)));
        Self { writing, reading, seen, token: grant.token }
    }

    /// Waits until so many writes were answered.
    pub async fn answered(&self, count: u64) {
        let applied = || self.seen.applied.load(Ordering::SeqCst);
        until_true("the flood to run", || async { applied() >= count }).await;
    }

    /// Waits for its end: every write with its reply.
    ///
    /// # Panics
    /// If it does not end, or a write was applied after another was not.
    pub async fn ended(self) -> Vec<Answer> {
        let reports = soon("all replies of the flood", self.reading).await.expect("no panic");
        let writer = soon("the flood to end", self.writing).await.expect("no panic");
        drop(writer);
        let late = reports.iter().skip_while(|report| **report == WriteReport::Applied);
        let late = late.filter(|report| **report == WriteReport::Applied).count();
        assert_eq!(late, 0, "writes were applied after one of the pipeline was not");
        let rest = std::iter::repeat(WriteReport::Unknown);
        let all = (0..self.seen.sent.load(Ordering::SeqCst)).zip(reports.into_iter().chain(rest));
        let answer = |(number, report)| Answer { token: self.token, op: op(number), report };
        all.map(answer).collect()
    }
}

fn op(number: u64) -> String {
    format!("flood-{number}")
}

/// Returns the half that wrote: dropping it would end the connection before all replies arrived.
async fn send(mut writer: RespWriter, grant: Grant, count: u64, seen: Arc<Seen>) -> RespWriter {
    let mut sent = 0;
    while sent < count && !seen.is_over.load(Ordering::SeqCst) {
        if sent > seen.applied.load(Ordering::SeqCst) + AHEAD {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let piece = PIECE.min(count - sent);
        let entry = |number| format!("{} {}", grant.token, op(number));
        let command = |number| request(&["RPUSH", &grant.journal(), &entry(number)]);
        let bytes: Vec<u8> = (sent..sent + piece).flat_map(command).collect();
        sent += piece;
        seen.sent.store(sent, Ordering::SeqCst);
        if writer.write_all(&bytes).await.is_err() {
            break;
        }
    }
    seen.is_sent.store(true, Ordering::SeqCst);
    writer
}

/// Reads until all that was sent is answered, or the connection ends, or nothing comes for long.
async fn receive(mut reader: RespReader, seen: Arc<Seen>) -> Vec<WriteReport> {
    let mut reports = Vec::new();
    let mut silence = Duration::ZERO;
    loop {
        let is_all = seen.is_sent.load(Ordering::SeqCst);
        if is_all && reports.len() as u64 >= seen.sent.load(Ordering::SeqCst) {
            return reports;
        }
        let reply = match tokio::time::timeout(GLANCE, reader.next()).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => break,
            Err(_) if silence > patience() / 4 => break,
            Err(_) => {
                silence += GLANCE;
                continue;
            }
        };
        silence = Duration::ZERO;
        match reply {
            Resp::Integer(_) => {
                reports.push(WriteReport::Applied);
                seen.applied.fetch_add(1, Ordering::SeqCst);
            }
            other => {
                reports.push(refusal(&other));
                seen.is_over.store(true, Ordering::SeqCst);
            }
        }
    }
    seen.is_over.store(true, Ordering::SeqCst);
    reports
}
