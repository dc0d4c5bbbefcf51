//! The thread's steps one by one.

use fence_protocol::{Owner, Ttl};
use service_kit::clock::ManualClock;

use super::super::{Engine, NoJournal};
use super::*;
use crate::store::Limits;

fn ask(wait_ms: u64) -> Acquire {
    let (lock, owner) = (LockName::new("a").unwrap(), Owner::new("me").unwrap());
    let lease_id = service_kit::ids::lease_id();
    Acquire { wait_ms, ..Acquire::new(lock, lease_id, owner, Ttl::DEFAULT) }
}

/// The caller leaves between the moment when its grant is made and the moment when it would be
/// told: the lock is free again for the next one.
#[test]
fn a_grant_that_nobody_hears_is_taken_back() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let machine = Machine::new(0, Limits::default());
    let mut worker = Worker::new(machine, NoJournal, clock, Health::new());
    let (holder, waiter) = (ask(0), ask(1_000));
    let (lock, holder_id) = (holder.lock.clone(), holder.lease_id);
    let ((first, _held), (second, heard)) = (oneshot::channel(), oneshot::channel());
    let (released, _) = oneshot::channel();
    worker.apply(0, Request::Acquire(holder, first));
    worker.apply(0, Request::Acquire(waiter.clone(), second));
    worker.apply(0, Request::Release(lock.clone(), holder_id, released));
    worker.collect_deliveries();
    let granted = worker.machine.show(0, &lock).holder.map(|holder| holder.lease_id);
    assert_eq!(granted, Some(waiter.lease_id));
    drop(heard);
    worker.answer(0);
    assert!(worker.machine.show(0, &lock).holder.is_none());
    assert!(worker.machine.has_news(), "the next turn makes it durable");
}

/// A request for the locks `b` and `a`, which waits because another lease has `a`: that lease, the
/// locks of the request, its id and its caller's ear.
fn group(
    worker: &mut Worker<NoJournal>,
) -> (LeaseId, [LockName; 2], LeaseId, oneshot::Receiver<Heard>) {
    let (holder, first) = (ask(0), ask(1_000));
    let (holder_id, lease_id) = (holder.lease_id, first.lease_id);
    let other = Acquire { lock: LockName::new("b").unwrap(), ..first.clone() };
    let locks = [other.lock.clone(), first.lock.clone()];
    let ((answer, _), (second, heard)) = (oneshot::channel(), oneshot::channel());
    worker.apply(0, Request::Acquire(holder, answer));
    worker.apply(0, Request::AcquireAll(vec![other, first], second));
    (holder_id, locks, lease_id, heard)
}

/// As above, of a request for two locks: both are free again.
#[test]
fn a_group_that_nobody_hears_is_taken_back_as_a_whole() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let machine = Machine::new(0, Limits::default());
    let mut worker = Worker::new(machine, NoJournal, clock, Health::new());
    let (holder_id, locks, lease_id, heard) = group(&mut worker);
    let (released, _) = oneshot::channel();
    worker.apply(0, Request::Release(locks[1].clone(), holder_id, released));
    worker.collect_deliveries();
    for lock in &locks {
        let holder = worker.machine.show(0, lock).holder.map(|holder| holder.lease_id);
        assert_eq!(holder, Some(lease_id));
    }
    drop(heard);
    worker.answer(0);
    assert!(locks.iter().all(|lock| worker.machine.show(0, lock).holder.is_none()));
}

/// Its caller leaves while it waits, or in the very batch in which it is granted.
#[test]
fn a_group_whose_caller_left_has_left_every_queue() {
    for is_granted in [false, true] {
        let clock = Arc::new(ManualClock::new(0, 0));
        let machine = Machine::new(0, Limits::default());
        let mut worker = Worker::new(machine, NoJournal, clock, Health::new());
        let (holder_id, [lock, other], lease_id, heard) = group(&mut worker);
        drop(heard);
        if is_granted {
            let (released, _) = oneshot::channel();
            worker.apply(0, Request::Release(other.clone(), holder_id, released));
        }
        let asked = Asked { lock: lock.clone(), others: vec![other.clone()], lease_id };
        worker.apply(0, Request::Withdraw { asked, granted: false });
        for lock in [lock, other.clone()] {
            let reply = worker.machine.show(0, &lock);
            assert_eq!(reply.queue_length, 0);
            assert_eq!(reply.holder.is_some(), !is_granted && lock == other);
        }
    }
}

/// A journal on a disk that is full.
struct FullDisk;

impl Journal for FullDisk {
    fn commit(&mut self, _: &mut Machine) -> Result<(), String> {
        Err("no space left on device".to_owned())
    }
}

/// L4: nothing is answered before it is durable, and after a failed commit nothing is served.
#[test]
fn a_commit_that_fails_answers_nobody_and_ends_the_service() {
    let health = Health::new();
    let clock = Arc::new(ManualClock::new(0, 0));
    let machine = Machine::new(0, Limits::default());
    let mut worker = Worker::new(machine, FullDisk, clock, health.clone());
    let (_inbox, requests) = std::sync::mpsc::sync_channel(1);
    for _ in 0..2 {
        let (answer, mut heard) = oneshot::channel();
        worker.turn(Some(Request::Acquire(ask(0), answer)), &requests);
        // The caller reads this as "unknown", never as a grant.
        assert!(matches!(heard.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }
    assert!(!health.is_ready());
    assert!(health.report(false).text().contains("no space left on device"));
}

/// After its journal failed the thread waits for requests alone, whatever is due in memory.
#[test]
fn a_thread_whose_journal_failed_rests() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let machine = Machine::new(0, Limits::default());
    let mut worker = Worker::new(machine, NoJournal, clock.clone(), Health::new());
    let (answer, _held) = oneshot::channel();
    worker.apply(0, Request::Acquire(ask(0), answer));
    worker.fail("the disk is full".to_owned());
    clock.advance(2 * Ttl::DEFAULT.ms());
    assert!(
        worker.machine.next_alarm_ms().is_some_and(|at_ms| at_ms <= worker.clock.monotonic_ms())
    );
    assert_eq!(worker.pause(), IDLE);
}

/// Makes the clock go on while it writes.
struct Slow(Arc<ManualClock>);

impl Journal for Slow {
    fn commit(&mut self, machine: &mut Machine) -> Result<(), String> {
        drop(machine.take_changes());
        drop(machine.take_session_changes());
        self.0.advance(300);
        Ok(())
    }
}

/// What is promised of a lease's time is what remains after the commit.
#[tokio::test]
async fn the_time_of_a_commit_is_not_promised() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let machine = Machine::new(0, Limits::default());
    let engine = Engine::start(machine, Slow(clock.clone()), clock, Health::new()).unwrap();
    let (request, most) = (ask(0), Ttl::DEFAULT.ms() - 300);
    let granted = engine.acquire(request.clone()).await.unwrap();
    assert_eq!(granted.remaining_ms, most);
    let renewed = engine.renew(request.lock.clone(), request.lease_id, None).await.unwrap();
    assert!(renewed.remaining_ms <= most, "{renewed:?}");
    let several = engine.acquire_all(vec![Acquire { lock: LockName::new("b").unwrap(), ..ask(0) }]);
    assert_eq!(several.await.unwrap()[0].remaining_ms, most);
}
