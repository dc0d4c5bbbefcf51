//! The thread's steps one by one.

use fence_protocol::{Owner, Ttl};
use service_kit::clock::ManualClock;

use super::super::NoJournal;
use super::*;
use crate::store::{Limits, Mode, Takeover};

fn ask(wait_ms: u64) -> Acquire {
    Acquire {
        lock: LockName::new("a").unwrap(),
        lease_id: service_kit::ids::lease_id(),
        owner: Owner::new("me").unwrap(),
        ttl: Ttl::DEFAULT,
        wait_ms,
        metadata: None,
        min_token: None,
        session: None,
        incarnation: None,
        takeover: Takeover::Never,
        mode: Mode::Exclusive,
        lock_delay_ms: 0,
    }
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
