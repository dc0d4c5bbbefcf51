use fence_protocol::wire::lock::EndReason;
use fence_protocol::{Owner, Token, Ttl};
use service_kit::ids;

use super::settlement::FinalReply;
use super::*;
use crate::store::Mode;

const NOW_MS: u64 = 1_000;
const POLL: u64 = 500;

fn lock() -> LockName {
    LockName::new("l").unwrap()
}

fn request() -> Acquire {
    let owner = Owner::new("me").unwrap();
    let ttl = Ttl::from_ms(60_000).unwrap();
    Acquire::new(lock(), ids::lease_id(), owner, ttl)
}

/// Enters a caller; returns its lease id and the receiver of its reply.
fn enter(queue: &mut Queue, patient: bool) -> (LeaseId, oneshot::Receiver<QueueReply>) {
    let (answer, reply) = oneshot::channel();
    let request = request();
    let listener = Listener { number: 0, patient, answer };
    queue.admit(&request, listener, NOW_MS, false).unwrap();
    (request.lease_id, reply)
}

fn holder(lease_id: LeaseId) -> Holder {
    Holder {
        lease_id,
        owner: Owner::new("you").unwrap(),
        token: Token::new(7).unwrap(),
        since_ms: 0,
        until_ms: NOW_MS + 400,
    }
}

/// Queues in which the first is with the nodes.
fn proposing(queue: Queue) -> Queues {
    let queues = Queues::default();
    let waiting = queue.entries.iter().filter(|entry| entry.is_patient()).count();
    queues.state().waiting = waiting;
    queues.state().locks.insert(lock(), queue);
    assert!(queues.head(&lock()).is_some());
    queues
}

fn settle(queues: &Queues, lease: LeaseId, outcome: ProposalOutcome) -> NextProposal {
    queues.settle(&lock(), lease, outcome, NOW_MS, POLL)
}

#[test]
fn a_caller_that_does_not_wait_learns_of_no_holder_without_a_majority() {
    let mut queue = Queue { holder: Some(holder(ids::lease_id())), ..Queue::default() };
    let (first, mut one) = enter(&mut queue, false);
    let (_, mut other) = enter(&mut queue, false);
    let queues = proposing(queue);
    settle(&queues, first, ProposalOutcome::Split { possibly_granted: true, backoff_ms: 3 });
    assert!(matches!(one.try_recv(), Ok(Err(StoreError::Unknown(_)))));
    assert!(matches!(other.try_recv(), Ok(Err(StoreError::Unavailable(_)))));
}

#[test]
fn an_end_that_is_received_during_a_proposal_is_not_missed() {
    let mut queue = Queue { holder: Some(holder(ids::lease_id())), ..Queue::default() };
    let (first, _reply) = enter(&mut queue, true);
    let queues = proposing(queue);
    let ended = ids::lease_id();
    let other = ids::lease_id();
    // It is not the one that was in the way so far.
    assert!(!queues.concerns(&lock(), ended));
    assert!(matches!(
        settle(&queues, first, ProposalOutcome::Held(holder(ended))),
        NextProposal::Wait(1)
    ));
    assert!(queues.head(&lock()).is_some());
    assert!(matches!(
        settle(&queues, first, ProposalOutcome::Held(holder(other))),
        NextProposal::Wait(401)
    ));
}

#[test]
fn the_last_word_of_a_refusal_counts_those_who_wait() {
    let mut queue = Queue::default();
    let (first, _first) = enter(&mut queue, true);
    let (_, _second) = enter(&mut queue, true);
    let (_, mut impatient) = enter(&mut queue, false);
    let queues = proposing(queue);
    settle(&queues, first, ProposalOutcome::Held(holder(ids::lease_id())));
    let Ok(Err(StoreError::Held { holder, queue_length })) = impatient.try_recv() else {
        panic!("it is refused");
    };
    assert_eq!((holder.token.get(), queue_length), (7, 2));
    assert_eq!(queues.shown(&lock(), NOW_MS).0, 2);
}

/// If every waiter looked at every other one, this would take hours.
#[test]
fn a_long_queue_is_notified_of_each_outcome_at_once() {
    let mut queue = Queue::default();
    let mut replies: Vec<_> = (0..20_000).map(|_| enter_unchecked(&mut queue)).collect();
    let first = queue.entries[0].request.lease_id;
    let queues = proposing(queue);
    for _ in 0..200 {
        settle(&queues, first, ProposalOutcome::Held(holder(ids::lease_id())));
        queues.head(&lock());
    }
    assert!(replies.iter_mut().all(|reply| reply.try_recv().is_err()));
}

/// As [`enter`], where it is known that the id is new: looking it up is what takes long.
fn enter_unchecked(queue: &mut Queue) -> oneshot::Receiver<QueueReply> {
    let (answer, reply) = oneshot::channel();
    queue.entries.push_back(Entry {
        request: Acquire { mode: Mode::Exclusive, ..request() },
        since_ms: NOW_MS,
        listeners: vec![Listener { number: 0, patient: true, answer }],
        rolls_back: true,
        waited: true,
        possibly_granted: false,
    });
    reply
}

/// The lease was over before this server knew of it: a request that waits is proposed again, one
/// that does not is lost.
#[test]
fn a_grant_that_came_too_late_is_lost_and_keeps_no_waiter_away() {
    let mut queue = Queue::default();
    let (first, mut waiting) = enter(&mut queue, true);
    let (_, mut other) = enter(&mut queue, false);
    let queues = proposing(queue);
    let late = || ProposalOutcome::Late("the nodes took 7 ms".to_owned());
    assert!(matches!(settle(&queues, first, late()), NextProposal::Wait(_)));
    assert!(waiting.try_recv().is_err(), "it waits on");
    let Ok(Err(StoreError::Unavailable(why))) = other.try_recv() else { panic!("not refused") };
    assert!(why.contains("7 ms"), "{why}");
    // Its wait is over: the next answer is its last.
    assert!(queues.head(&lock()).is_some());
    assert!(matches!(queues.state().final_reply(&lock(), 0, NOW_MS), FinalReply::Soon));
    settle(&queues, first, late());
    let expired = StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true };
    assert!(matches!(waiting.try_recv(), Ok(Err(error)) if error == expired));
}
