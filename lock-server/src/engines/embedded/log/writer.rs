//! The queue of batches and the thread that makes them durable: one write and one sync for all that
//! wait.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::histogram::Histogram;
use service_kit::clock;
use tokio::sync::oneshot;

use super::format::{self, CHANGE_BYTES, FRAME_BYTES, HEADER_BYTES};
use super::keeper::{ClosedSegment, Exchange};
use super::reader::as_u64;
use super::segment::{AppendFault, Segment};
use super::{AppendError, Change};

/// Memory of a batch that waits, beside its changes.
const TICKET_BYTES: usize = 64;
/// A buffer that grew beyond this is not kept for the next frame.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

type Sender = oneshot::Sender<Result<(), AppendError>>;

/// Batches that wait for the writer.
#[derive(Debug)]
pub(super) struct Queue {
    group: Mutex<Group>,
    filled: Condvar,
    bytes_max: usize,
}

/// Batches that one write makes durable.
#[derive(Debug)]
struct Group {
    /// A frame but for its first bytes, which are filled in when it is written.
    frame: Vec<u8>,
    tickets: Vec<Sender>,
    is_closed: bool,
    /// Reason why the writer has stopped.
    poisoned: Option<Arc<str>>,
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        // The length of a payload has 32 bits.
        let bytes_max = bytes_max.min(usize::try_from(i32::MAX).unwrap_or(usize::MAX));
        let frame = vec![0; FRAME_BYTES];
        let tickets = Vec::new();
        let group = Mutex::new(Group { frame, tickets, is_closed: false, poisoned: None });
        Self { group, filled: Condvar::new(), bytes_max }
    }

    /// Puts a batch behind those that wait.
    pub(super) fn push(
        &self,
        batch: &[Change],
    ) -> Result<oneshot::Receiver<Result<(), AppendError>>, AppendError> {
        let bytes: usize = batch
            .iter()
            .map(|(key, value)| CHANGE_BYTES + key.len() + value.as_ref().map_or(0, |v| v.len()))
            .sum();
        if bytes > self.bytes_max {
            return Err(AppendError::TooLarge { bytes, bytes_max: self.bytes_max });
        }
        let mut group = self.lock();
        if let Some(reason) = &group.poisoned {
            return Err(AppendError::Poisoned(reason.clone()));
        }
        let waiting = group.frame.len() - FRAME_BYTES + group.tickets.len() * TICKET_BYTES;
        if waiting + bytes > self.bytes_max {
            return Err(AppendError::Busy);
        }
        for (key, value) in batch {
            format::encode_change(&mut group.frame, key, value.as_deref());
        }
        let (ticket, durable) = oneshot::channel();
        group.tickets.push(ticket);
        if group.tickets.len() == 1 {
            self.filled.notify_one();
        }
        Ok(durable)
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.lock().tickets.len()
    }

    /// Lets the writer stop once nothing waits.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_one();
    }

    /// Exchanges the waiting batches for the empty buffers. Returns whether there are any; if not,
    /// the queue is closed.
    fn take(&self, frame: &mut Vec<u8>, tickets: &mut Vec<Sender>) -> bool {
        let mut group = self.lock();
        while group.tickets.is_empty() && !group.is_closed {
            group = self.filled.wait(group).unwrap_or_else(PoisonError::into_inner);
        }
        mem::swap(&mut group.frame, frame);
        mem::swap(&mut group.tickets, tickets);
        !tickets.is_empty()
    }

    /// Removes the waiting batches, and with a reason refuses all later ones.
    fn drain(&self, poisoned: Option<Arc<str>>) -> Vec<Sender> {
        let mut group = self.lock();
        group.frame.truncate(FRAME_BYTES);
        group.poisoned = poisoned;
        mem::take(&mut group.tickets)
    }

    fn lock(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Writer {
    queue: Arc<Queue>,
    exchange: Arc<Exchange>,
    active: Segment,
    segment_bytes: u64,
    next_sequence: u64,
    /// Time to write a frame and make it durable.
    syncs: Histogram,
}

impl Writer {
    pub(super) fn new(
        queue: Arc<Queue>,
        exchange: Arc<Exchange>,
        active: Segment,
        segment_bytes: u64,
        next_sequence: u64,
        syncs: Histogram,
    ) -> Self {
        Self { queue, exchange, active, segment_bytes, next_sequence, syncs }
    }

    /// Writes until the queue is closed and empty, or the outcome of a write is unknown.
    pub(super) fn run(mut self) {
        let mut frame = vec![0; FRAME_BYTES];
        let mut tickets = Vec::new();
        while self.queue.take(&mut frame, &mut tickets) {
            match self.write(&mut frame) {
                Ok(()) => resolve(&mut tickets, &Ok(())),
                Err(AppendFault::NotWritten(error)) => {
                    tracing::error!(%error, "a batch could not be written to the log");
                    // What waits was appended after a batch that is not there, and may build on it.
                    tickets.append(&mut self.queue.drain(None));
                    let reason = AppendError::NotWritten(error.to_string().into());
                    resolve(&mut tickets, &Err(reason));
                }
                Err(AppendFault::Unknown(error)) => {
                    tracing::error!(%error, "the log failed; nothing is written until a restart");
                    let reason: Arc<str> = error.to_string().into();
                    let mut later = self.queue.drain(Some(reason.clone()));
                    resolve(&mut tickets, &Err(AppendError::Unknown(reason.clone())));
                    resolve(&mut later, &Err(AppendError::Poisoned(reason)));
                    return;
                }
            }
            frame.truncate(FRAME_BYTES);
            frame.shrink_to(BUFFER_BYTES_KEPT);
        }
    }

    fn write(&mut self, frame: &mut [u8]) -> Result<(), AppendFault> {
        if frame.len() == FRAME_BYTES {
            return Ok(());
        }
        let is_full = self.active.end + as_u64(frame.len()) > self.segment_bytes;
        if is_full && self.active.end > as_u64(HEADER_BYTES) {
            self.rotate();
        }
        let begun = clock::now();
        self.active.append(frame, self.next_sequence)?;
        self.syncs.observe(begun.elapsed().as_secs_f64());
        self.next_sequence += 1;
        Ok(())
    }

    /// Continues in the next segment. If that is not prepared yet, the full one grows.
    fn rotate(&mut self) {
        let full = ClosedSegment {
            index: self.active.index,
            end: self.active.end,
            next_sequence: self.next_sequence,
        };
        if let Some(spare) = self.exchange.swap(full) {
            self.active = spare;
        }
    }
}

impl Drop for Writer {
    /// Also after a panic: batches that nothing will write must not wait.
    fn drop(&mut self) {
        let mut group = self.queue.lock();
        group.poisoned.get_or_insert_with(|| "the writer stopped".into());
        group.tickets.clear();
    }
}

fn resolve(tickets: &mut Vec<Sender>, result: &Result<(), AppendError>) {
    for ticket in tickets.drain(..) {
        // A caller that dropped its ticket does not need the result.
        let _ = ticket.send(result.clone());
    }
}
