//! Reports of refusals to a lock server, so that the holder of a lost lock finds its refused
//! operations with the lock.
//!
//! For operators: no operation waits for a report or fails because of it. Refusals beyond the queue
//! are counted, and the next report states their number.

mod batch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fence_protocol::wire::event::{ReportedRefusal, TEXT_BYTES_MAX, cut};
use fence_protocol::{Code, LockName};
use http::HeaderValue;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::health::Status;
use service_kit::tls::ServerUrl;
use service_kit::{Kit, trace};
use tokio::sync::mpsc;

use self::batch::Batches;
use crate::lock_servers::{Caller, Failed, LockServers, TIMEOUT, judge};
use crate::refusals::Refused;

/// Maximum number of refusals to be reported; more are counted and dropped.
const QUEUE: usize = 1_024;
/// Minimum pause between two reports, so that a holder that does not stop cannot fill a lock
/// server's memory of events by itself.
const BETWEEN: Duration = Duration::from_millis(200);
/// Interval of empty reports, which check that the lock server accepts reports.
const IDLE: Duration = Duration::from_secs(15);
/// First and longest pause between retries.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// Time limit of the last reports when the guard ends.
const LAST: Duration = Duration::from_secs(1);
/// Name in `/readyz?verbose`.
const CHECK: &str = "refusal-reports";

/// Queue of refusals to be reported. Never blocks.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Lock servers to which it reports.
    pub servers: LockServers,
    queue: mpsc::Sender<Waiting>,
    figures: Figures,
}

/// Refusal that was not reported yet.
#[derive(Debug)]
struct Waiting {
    refusal: ReportedRefusal,
    /// Monotonic time, in milliseconds.
    at_ms: u64,
    /// Trace of the refused request.
    trace: Option<HeaderValue>,
}

#[derive(Clone, Debug)]
struct Figures {
    /// Dropped and not yet reported.
    dropped: Arc<AtomicU64>,
    reported: Counter,
    unreported: Counter,
    failed: Counter,
    waiting: Gauge,
}

impl Figures {
    fn new(kit: &Kit) -> Self {
        let metrics = &kit.metrics;
        Self {
            dropped: Arc::default(),
            reported: metrics
                .counter("fence_refusals_reported", "Refusals that a lock server has taken"),
            unreported: metrics.counter(
                "fence_refusals_unreported",
                "Refusals that were not reported to a lock server; a gap has their number",
            ),
            failed: metrics.counter(
                "fence_refusal_reports_failed",
                "Reports that no lock server took; retried, unless it refused them",
            ),
            waiting: metrics.gauge("fence_refusals_waiting", "Refusals to be reported"),
        }
    }

    fn drop(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
        self.unreported.inc_by(count);
    }
}

impl Reporter {
    /// Starts reporting; ends at shutdown.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(servers: LockServers, kit: &Kit) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let figures = Figures::new(kit);
        kit.health.set(CHECK, Status::Info("no lock server has accepted a report yet".to_owned()));
        let worker = Worker {
            servers: Caller::new(servers.clone()),
            batches: Batches::default(),
            reports_dropped: true,
            figures: figures.clone(),
            kit: kit.clone(),
        };
        kit.tasks.spawn(worker.run(waiting));
        Self { servers, queue, figures }
    }

    /// Queues a refusal.
    pub fn refused(&self, lock: &LockName, refused: &Refused) {
        let refusal = ReportedRefusal {
            lock: lock.clone(),
            token: refused.token,
            lease_id: refused.lease,
            mark: refused.mark,
            operation: operation(&refused.operation, refused.code),
            owner: refused.owner.clone(),
            ms_ago: 0,
        };
        self.figures.waiting.inc();
        let waiting = Waiting { refusal, at_ms: refused.at_ms, trace: trace::header() };
        if self.queue.try_send(waiting).is_err() {
            self.figures.waiting.dec();
            self.figures.drop(1);
        }
    }
}

/// Returns the operation and the code within the length of an event; what is cut is the key's name.
fn operation(text: &str, code: Code) -> String {
    let code = format!(": {code}");
    let mut operation: String = text.chars().take(TEXT_BYTES_MAX).collect();
    cut(&mut operation, TEXT_BYTES_MAX.saturating_sub(code.len()));
    operation + &code
}

struct Worker {
    servers: Caller,
    batches: Batches,
    /// `true` if the guard may report the number of dropped refusals, which concerns every lock.
    reports_dropped: bool,
    figures: Figures,
    kit: Kit,
}

impl Worker {
    async fn run(mut self, mut queue: mpsc::Receiver<Waiting>) {
        let stop = self.kit.tasks.shutdown_token();
        let mut pause = Duration::ZERO;
        let mut is_well = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
            if self.batches.is_empty() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    waiting = queue.recv() => match waiting {
                        Some(waiting) => self.batches.push(waiting),
                        None => return,
                    },
                    // An empty report checks that the lock server accepts reports before one
                    // is needed, and shows as soon as it does again.
                    () = tokio::time::sleep(if is_well { IDLE } else { Duration::ZERO }) => {}
                }
            }
            self.take(&mut queue);
            // At the end, wait for the report under way, so that it is not sent twice.
            let last = async {
                stop.cancelled().await;
                tokio::time::sleep(LAST).await;
            };
            is_well = tokio::select! {
                biased;
                is_well = self.report() => is_well,
                () = last => break,
            };
            pause = if is_well { BETWEEN } else { longer(pause) };
        }
        self.take(&mut queue);
        let all = async { while !self.batches.is_empty() && self.report().await {} };
        let _ = tokio::time::timeout(LAST, all).await;
    }

    fn take(&mut self, queue: &mut mpsc::Receiver<Waiting>) {
        while self.batches.has_room()
            && let Ok(waiting) = queue.try_recv()
        {
            self.batches.push(waiting);
        }
    }

    /// Sends the next batch, or an empty one; `true` if a lock server replied.
    async fn report(&mut self) -> bool {
        let dropped = match self.reports_dropped {
            true => self.figures.dropped.load(Ordering::Relaxed),
            false => 0,
        };
        let report = self.batches.next(dropped, self.kit.clock.monotonic_ms());
        let taken = report.refusals.len();
        let body = Bytes::from(serde_json::to_vec(&report).unwrap_or_default());
        let judge = |url: &ServerUrl, status, body: &[u8]| judge(url, status, body).map(drop);
        let trace = self.batches.trace();
        let result = self.servers.post("/v1/refusals", body, trace, TIMEOUT, judge).await;
        let count = taken as u64;
        match result {
            Ok(()) => {
                self.figures.dropped.fetch_sub(dropped, Ordering::Relaxed);
                self.figures.reported.inc_by(count);
                self.batches.taken(taken);
                self.kit.health.set(CHECK, Status::Ok);
            }
            Err(Failed::Refused(why)) if dropped > 0 => {
                tracing::debug!(why, "the number of dropped refusals is no longer reported");
                self.reports_dropped = false;
                return true;
            }
            Err(Failed::Refused(why)) if taken > 1 => {
                tracing::debug!(why, "a report was refused; its refusals are reported one by one");
                self.batches.one_by_one(taken);
                return true;
            }
            Err(Failed::Refused(why)) => {
                self.figures.failed.inc();
                self.figures.drop(count);
                self.batches.taken(taken);
                // The number of dropped refusals was not the reason.
                self.reports_dropped = true;
                self.warn(&why);
                // An empty report cannot be at fault: wait before the next.
                if taken == 0 {
                    return false;
                }
            }
            Err(Failed::Unreachable(why)) => {
                self.figures.failed.inc();
                self.warn(&why);
                return false;
            }
        }
        self.figures.waiting.dec_by(i64::try_from(taken).unwrap_or(0));
        true
    }

    fn warn(&self, why: &str) {
        let text = format!(
            "refusals are not reported: {why}. The guard still refuses, but the refusals are not \
             shown at the lock server"
        );
        self.kit.health.set(CHECK, Status::Warn(text));
    }
}

fn longer(pause: Duration) -> Duration {
    let (first, longest) = RETRY;
    (pause * 2).clamp(first, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_survives_any_key() {
        let code = Code::StaleToken;
        assert_eq!(operation("PUT a", code), "PUT a: stale-token");
        for key in ["ä".repeat(9_999), "\\x00".repeat(9_999), format!("x{}", "😀".repeat(99))] {
            let text = operation(&format!("PUT {key}"), code);
            assert!(text.len() <= TEXT_BYTES_MAX && text.len() > TEXT_BYTES_MAX - 4, "{text}");
            assert!(text.ends_with(": stale-token"), "{text}");
        }
    }

    #[test]
    fn pauses_grow_to_a_limit() {
        let pauses: Vec<u64> = std::iter::successors(Some(BETWEEN), |pause| Some(longer(*pause)))
            .map(|pause| pause.as_millis() as u64)
            .take(7)
            .collect();
        assert_eq!(pauses, [200, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    }
}
