//! Limit of TLS handshakes under way.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{oneshot, watch};

/// Handshakes under way in the process, which cost computing time and memory. Further ones wait.
const UNDER_WAY_MAX: usize = 256;

/// Longest handshake while others wait: clients that do not go on keep none waiting for longer.
const CROWDED: Duration = Duration::from_secs(1);

/// Handshakes under way, and those that wait.
#[derive(Debug)]
pub(super) struct Handshakes {
    slots: Slots,
    waiting: watch::Sender<usize>,
    under_way: Gauge,
}

impl Handshakes {
    /// Shows their number under way in a metric.
    pub(super) fn new(under_way: Gauge) -> Self {
        Self { slots: Slots::new(UNDER_WAY_MAX), waiting: watch::Sender::new(0), under_way }
    }

    /// Does a handshake with the client at `peer`, which may take `limit` from the moment that it
    /// is its turn, and less while others wait.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(super) async fn run<T>(
        &self,
        peer: IpAddr,
        limit: Duration,
        handshake: impl Future<Output = T>,
    ) -> io::Result<T> {
        let _slot = self.slot(peer).await?;
        let _counted = Counted::begin(&self.under_way);
        let mut waiting = self.waiting.subscribe();
        let crowded = async {
            tokio::time::sleep(CROWDED.min(limit)).await;
            // The sender is there as long as this.
            let _ = waiting.wait_for(|waiting| *waiting > 0).await;
        };
        tokio::select! {
            biased;
            done = tokio::time::timeout(limit, handshake) => done.ok(),
            () = crowded => None,
        }
        .ok_or_else(|| late("the handshake did not end"))
    }

    async fn slot(&self, peer: IpAddr) -> io::Result<Slot> {
        match self.slots.take_or_wait(origin(peer)) {
            Turn::Now(slot) => Ok(slot),
            Turn::Later(turn) => {
                let _waiting = Waiting::begin(&self.waiting);
                turn.await.map_err(io::Error::other)
            }
        }
    }
}

/// Network that one client has to itself: an IPv4 address, or the 64 bits that an IPv6 network is
/// assigned at least.
fn origin(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

/// A limited number of slots, and a queue of those that wait for one. Cheap to clone.
///
/// Origins take turns: one with thousands that wait delays another by a single slot.
#[derive(Clone, Debug)]
struct Slots(Arc<Mutex<Queue>>);

#[derive(Debug)]
struct Queue {
    /// Slots that are not taken; none while others wait.
    free: usize,
    /// Origins that have waiters, the next in turn first.
    turns: VecDeque<IpAddr>,
    /// The waiters of each, in order of arrival.
    waiters: HashMap<IpAddr, VecDeque<oneshot::Sender<Slot>>>,
}

enum Turn {
    Now(Slot),
    Later(oneshot::Receiver<Slot>),
}

/// A slot, which passes to the next waiter when it is dropped.
#[derive(Debug)]
struct Slot(Slots);

impl Slots {
    fn new(free: usize) -> Self {
        let (turns, waiters) = Default::default();
        Self(Arc::new(Mutex::new(Queue { free, turns, waiters })))
    }

    fn take_or_wait(&self, origin: IpAddr) -> Turn {
        let mut queue = self.queue();
        if queue.free > 0 {
            queue.free -= 1;
            return Turn::Now(Slot(self.clone()));
        }
        let (sender, turn) = oneshot::channel();
        let Queue { turns, waiters, .. } = &mut *queue;
        let own = waiters.entry(origin).or_insert_with(|| {
            turns.push_back(origin);
            VecDeque::new()
        });
        own.push_back(sender);
        Turn::Later(turn)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The waiter whose turn it is; its origin goes to the end.
    fn next(&mut self) -> Option<oneshot::Sender<Slot>> {
        while let Some(origin) = self.turns.pop_front() {
            let Some(mut own) = self.waiters.remove(&origin) else { continue };
            // Those that were dropped wait no longer.
            let next = std::iter::from_fn(|| own.pop_front()).find(|waiter| !waiter.is_closed());
            if !own.is_empty() {
                self.turns.push_back(origin);
                self.waiters.insert(origin, own);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        let next = queue.next();
        queue.free += usize::from(next.is_none());
        drop(queue);
        if let Some(next) = next {
            // A waiter that was dropped just now drops the slot, which passes it on.
            let _ = next.send(Self(self.0.clone()));
        }
    }
}

/// One that waits, until it is dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|count| *count += 1);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// One that is under way, until it is dropped.
struct Counted<'a>(&'a Gauge);

impl<'a> Counted<'a> {
    fn begin(under_way: &'a Gauge) -> Self {
        under_way.inc();
        Self(under_way)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Error of a client that was too slow.
pub(super) fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} within the limit of a handshake"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_secs(3600);

    fn peer(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn those_without_end_make_way_and_delay_no_other_origin() {
        let handshakes = Handshakes::new(Gauge::default());
        let ended = AtomicUsize::new(0);
        let stuck = (0..20 * UNDER_WAY_MAX).map(|_| async {
            let _ = handshakes.run(peer("192.0.2.1"), LONG, pending::<()>()).await;
            ended.fetch_add(1, Ordering::Relaxed);
        });
        let late = async {
            let served = handshakes.run(peer("192.0.2.2"), LONG, async { 7 }).await;
            (served.unwrap(), ended.load(Ordering::Relaxed))
        };
        let (served, ended) = tokio::select! {
            biased;
            _ = futures_util::future::join_all(stuck) => panic!("without others they have no end"),
            served = tokio::time::timeout(40 * CROWDED, late) => served.unwrap(),
        };
        assert_eq!(served, 7);
        assert!((1..10 * UNDER_WAY_MAX).contains(&ended), "{ended} ended before it");
    }

    #[test]
    fn origins_take_turns_and_no_slot_is_lost() {
        let slots = Slots::new(1);
        let wait = |address: &str| match slots.take_or_wait(origin(peer(address))) {
            Turn::Later(turn) => turn,
            Turn::Now(_) => panic!("there was no slot free"),
        };
        let Turn::Now(first) = slots.take_or_wait(origin(peer("::1"))) else {
            panic!("the slot is free")
        };
        let mut flood = ["2001:db8::1", "2001:db8::2", "2001:db8::3:0:1"].map(wait);
        let mut other = wait("192.0.2.2");
        // One that leaves the queue, and one that leaves when it has its slot already.
        drop(wait("192.0.2.3"));
        drop(first);
        let slot = flood[0].try_recv().unwrap();
        assert!(other.try_recv().is_err() && flood[1].try_recv().is_err());
        drop(slot);
        drop(other.try_recv().expect("the other origin is next"));
        let [_, second, third] = flood;
        drop(second);
        drop({ third }.try_recv().expect("passed on by the one before"));
        assert!(matches!(slots.take_or_wait(peer("::1")), Turn::Now(_)), "it is free again");
        assert!(slots.queue().waiters.is_empty() && slots.queue().turns.is_empty());
    }
}
