//! The wait of a transaction for further jobs.
//!
//! Without a wait, sixteen clients that each send one request after the other share commits by
//! half: those whose requests come first begin a commit, and the others wait for the next one.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use service_kit::clock;
use tokio::sync::mpsc;

/// Longest wait of a transaction, whatever commits take.
const LONGEST: Duration = Duration::from_millis(2);

/// The last commit, by which the next transaction's wait is measured.
#[derive(Debug, Default)]
pub(super) struct Linger {
    /// Jobs that the last commit answered.
    expected: usize,
    /// Time that a transaction may wait: half of the last commit's.
    patience: Duration,
    until: Option<Instant>,
}

impl Linger {
    /// Begins a transaction.
    pub(super) fn begin(&mut self) {
        self.until = None;
    }

    /// Returns the next job of a transaction that has `count`: one that is there, or else one that
    /// comes while fewer than expected have.
    pub(super) fn next<T>(&mut self, jobs: &mut mpsc::Receiver<T>, count: usize) -> Option<T> {
        match jobs.try_recv() {
            Ok(job) => Some(job),
            Err(_) if count >= self.expected => None,
            Err(_) => {
                let until = *self.until.get_or_insert_with(|| clock::now() + self.patience);
                receive_until(jobs, until)
            }
        }
    }

    /// Records a commit of so many jobs, and how long it took.
    pub(super) fn committed(&mut self, jobs: usize, took: Duration) {
        self.expected = jobs;
        self.patience = (took / 2).min(LONGEST);
    }
}

/// Wakes the writer's thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Receives a job, on a thread that may block; `None` at the time, or if the senders are gone.
fn receive_until<T>(jobs: &mut mpsc::Receiver<T>, until: Instant) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(job) = jobs.poll_recv(&mut context) {
            return job;
        }
        let left = until.saturating_duration_since(clock::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_waits_for_as_many_jobs_as_the_last_one_had() {
        let (sender, mut jobs) = mpsc::channel(4);
        let mut linger = Linger::default();
        linger.begin();
        assert_eq!(linger.next(&mut jobs, 1), None, "a first transaction waits for nothing");
        // The wait ends with the job: its time is far off.
        linger.expected = 2;
        linger.patience = Duration::from_secs(3600);
        linger.begin();
        let late = std::thread::Builder::new();
        let late = late.spawn(move || {
            sender.blocking_send(7).unwrap();
            sender
        });
        let late = late.unwrap();
        assert_eq!(linger.next(&mut jobs, 1), Some(7));
        assert_eq!(linger.next(&mut jobs, 2), None, "no more than expected");
        drop(late.join().unwrap());
        linger.expected = 3;
        assert_eq!(linger.next(&mut jobs, 2), None, "nothing can come any more");
    }

    #[test]
    fn the_wait_is_bounded_by_the_last_commit() {
        let (sender, mut jobs) = mpsc::channel::<u8>(4);
        let mut linger = Linger::default();
        linger.committed(16, Duration::from_secs(3600));
        assert_eq!(linger.patience, LONGEST);
        linger.committed(16, Duration::from_micros(10));
        assert_eq!(linger.patience, Duration::from_micros(5));
        linger.begin();
        assert_eq!(linger.next(&mut jobs, 1), None, "nothing came in time");
        drop(sender);
    }
}
