//! The nodes: all are sent a request at the same time, and no request waits for the slow ones.

use std::future::{Future as _, poll_fn};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ::redis::Value;
use fence_protocol::Ttl;
use futures_util::FutureExt as _;
use redis_link::RedisLink;
use tokio::sync::oneshot;

use super::calls::Calls;
use super::current::Current;
use super::rules::Operation;
use super::silence::Silence;

/// The bounds of the time that a node has to answer.
const BUDGET_MIN: Duration = Duration::from_millis(50);
const BUDGET_MAX: Duration = Duration::from_secs(1);

/// Returns the time-out of a node for a lease of this length: a quarter of it, so that enough of
/// the lease is left when a majority replies late.
pub(super) fn budget(ttl: Option<Ttl>) -> Duration {
    let quarter = ttl.map_or(BUDGET_MAX, |ttl| Duration::from_millis(ttl.ms() / 4));
    quarter.clamp(BUDGET_MIN, BUDGET_MAX)
}

/// One Redis of the quorum.
#[derive(Debug)]
pub(super) struct Node {
    /// Its place in the URL.
    pub(super) index: usize,
    pub(super) link: RedisLink,
    /// Through the link, what concerns locks and counters.
    pub(super) calls: Arc<Calls>,
    pub(super) notes: Arc<Notes>,
}

/// State of a node as this server has seen it, on any connection.
#[derive(Debug)]
pub(super) struct Notes {
    /// The highest token that the node said to have accepted, bucket by bucket.
    highest: Mutex<Vec<u64>>,
    process: Mutex<Process>,
}

#[derive(Clone, Debug, Default)]
struct Process {
    run_id: Option<String>,
    /// The current process, or the one before it, may have lost votes.
    lax: bool,
}

impl Notes {
    pub(super) fn new(buckets: usize) -> Self {
        Self { highest: Mutex::new(vec![0; buckets]), process: Mutex::default() }
    }

    fn process(&self) -> std::sync::MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process is a node; `keeps` says whether every vote is on disk before it is answered.
    pub(super) fn verified(&self, run_id: String, keeps: bool) {
        *self.process() = Process { run_id: Some(run_id), lax: !keeps };
    }

    /// The settings of the process changed, or were always so.
    pub(super) fn is_lax(&self) {
        self.process().lax = true;
    }

    /// Returns whether the process that was verified last may have lost votes.
    pub(super) fn was_lax(&self) -> bool {
        self.process().lax
    }

    /// The run id of the process that was verified last.
    pub(super) fn run_id(&self) -> Option<String> {
        self.process().run_id.clone()
    }

    /// The node says that it has accepted a token as high as this.
    pub(super) fn saw(&self, bucket: usize, highest: u64) {
        let mut all = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get_mut(bucket) {
            *known = (*known).max(highest);
        }
    }

    pub(super) fn highest(&self, bucket: usize) -> u64 {
        let all = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(bucket).copied().unwrap_or(0)
    }

    pub(super) fn all(&self) -> Vec<u64> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The node is known to have forgotten: what it says from now on is compared with that alone.
    pub(super) fn forget(&self) {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner).fill(0);
    }
}

/// Replies of nodes, in the order in which they come.
#[derive(Debug)]
pub(super) struct Replies<T> {
    from: Vec<(usize, oneshot::Receiver<Result<T, Silence>>)>,
    patience: std::pin::Pin<Box<tokio::time::Sleep>>,
}

impl<T> Replies<T> {
    /// The next reply; `None` where all nodes have replied, or the time is over. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<T, Silence>)> {
        poll_fn(|cx| {
            let mut at = 0;
            while let Some((node, from)) = self.from.get_mut(at) {
                match from.poll_unpin(cx) {
                    Poll::Ready(Ok(reply)) => {
                        let node = *node;
                        self.from.swap_remove(at);
                        return Poll::Ready(Some((node, reply)));
                    }
                    // Only the end of the process loses a reply.
                    Poll::Ready(Err(_)) => drop(self.from.swap_remove(at)),
                    Poll::Pending => at += 1,
                }
            }
            match self.from.is_empty() {
                true => Poll::Ready(None),
                false => self.patience.as_mut().poll(cx).map(|()| None),
            }
        })
        .await
    }
}

/// Submits an operation at every node of the view that `asked` names. A reply that comes too late
/// for the caller is read, and `read` may note what it says, all the same.
pub(super) fn submit_to_nodes<T: Send + 'static>(
    nodes: &[Arc<Node>],
    current: &Arc<Current>,
    patience: Duration,
    operation: Operation,
    wanted: impl Fn(&Node) -> bool,
    read: impl Fn(&Node, Value) -> Result<T, Silence> + Clone + Send + 'static,
) -> Replies<T> {
    let operation = Arc::new(operation);
    let mut from = Vec::with_capacity(nodes.len());
    for node in nodes.iter().filter(|node| current.has(node.index) && wanted(node)) {
        let (answer, reply) = oneshot::channel();
        let own = node.clone();
        let read = read.clone();
        let on_reply = move |value: Result<Value, Silence>| {
            let _ = answer.send(value.and_then(|value| read(&own, value)));
        };
        node.calls.submit(current, &operation, Box::new(on_reply));
        from.push((node.index, reply));
    }
    Replies { from, patience: Box::pin(tokio::time::sleep(patience)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_a_quarter_of_the_lease_within_bounds() {
        for (ttl_ms, budget_ms) in [(100, 50), (400, 100), (3_600_000, 1_000)] {
            let ttl = Ttl::from_ms(ttl_ms).unwrap();
            assert_eq!(budget(Some(ttl)), Duration::from_millis(budget_ms));
        }
        assert_eq!(budget(None), BUDGET_MAX);
    }

    #[test]
    fn notes_only_rise_until_the_node_is_known_to_have_forgotten() {
        let notes = Notes::new(4);
        notes.saw(2, 9);
        notes.saw(2, 7);
        assert_eq!((notes.highest(2), notes.highest(1)), (9, 0));
        notes.forget();
        assert_eq!(notes.highest(2), 0);
    }
}
