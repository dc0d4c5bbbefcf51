//! Random histories against the invariants of an oracle.

use fence_protocol::SessionId;
use proptest::prelude::*;

use super::*;
use crate::Reading;
use crate::{Acquire, NewSession, Revoke};
use crate::{Session, StoredRecord, StoredSession};

mod oracle;
mod steps;

use oracle::Oracle;
use steps::{HistoryStep, step};

/// Number of locks and of owners.
const LOCKS: u8 = 3;
/// Most shared leases of a lock.
const SHARED: usize = 3;
/// Time to live of a session without a heartbeat.
const SESSION_MS: u64 = 120;

fn name(number: u8) -> LockName {
    lock(&number.to_string())
}

fn number(lock: &LockName) -> u8 {
    lock.as_str().parse().unwrap()
}

/// Returns the owner of a session.
fn session_number(session: SessionId) -> usize {
    (session.uuid().as_u128() % 3) as usize
}

/// Applies one step; everything due is applied first, as every store does.
fn apply(machine: &mut Machine, oracle: &mut Oracle, now_ms: &mut u64, step: HistoryStep) {
    catch_up(machine, oracle, *now_ms);
    let now = *now_ms;
    match step {
        HistoryStep::Acquire(request) => acquire(machine, oracle, now, request),
        HistoryStep::AcquireAll(parts) => acquire_all(machine, oracle, now, parts),
        HistoryStep::Renew { lock: l, id: lease } => {
            let renewed = machine.renew(now, &name(l), id(lease), None);
            let live = oracle.live(l, id(lease)).cloned();
            assert_eq!(renewed.is_ok(), live.is_some(), "{renewed:?}");
            if let (Ok(grant), Some(live)) = (renewed, live) {
                oracle.grant(now, l, &grant, &live.request, false);
            }
        }
        HistoryStep::Release { lock: l, id: lease } => {
            let released = machine.release(now, &name(l), id(lease));
            assert_eq!(released.is_ok(), oracle.live(l, id(lease)).is_some(), "{released:?}");
            oracle.leave(l, id(lease));
            oracle.end(now, l, id(lease), false);
        }
        HistoryStep::Withdraw { lock: l, id: lease } => {
            withdraw(machine, oracle, now, l, id(lease))
        }
        HistoryStep::WithdrawGroup => {
            if let Some((l, lease)) = oracle.last_group() {
                withdraw(machine, oracle, now, l, lease);
            }
        }
        HistoryStep::Revoke { lock: l, id: lease } => {
            let lease = lease.map(id);
            let ended = machine.revoke(now, &name(l), &Revoke { lease, reason: None });
            let ended = ended.map(|all| all.iter().map(|ended| ended.lease_id).collect());
            assert_eq!(ended.ok(), oracle.revoke(now, l, lease), "what a revocation ends");
        }
        HistoryStep::Mint => {
            let token = machine.mint().unwrap().get();
            assert!(token > oracle.last_token, "L1: a minted token rises too");
            oracle.last_token = token;
        }
        HistoryStep::Pass { ms } => *now_ms += ms,
        other => apply_to_session(machine, oracle, now, &other),
    }
    for delivery in machine.take_deliveries() {
        oracle.delivered(now, &delivery);
    }
    catch_up(machine, oracle, *now_ms);
}

/// Contents of a journal.
#[derive(Default)]
struct Disk {
    counter: u64,
    locks: BTreeMap<LockName, StoredRecord>,
    sessions: BTreeMap<SessionId, StoredSession>,
}

impl Disk {
    fn write(&mut self, machine: &mut Machine) {
        self.counter = machine.counter();
        for (lock, record) in machine.take_changes() {
            match record {
                Some(record) => drop(self.locks.insert(lock, record.to_stored(u64::MAX))),
                None => drop(self.locks.remove(&lock)),
            }
        }
        for (id, session) in machine.take_session_changes() {
            match session {
                Some(session) => drop(self.sessions.insert(id, session.to_stored())),
                None => drop(self.sessions.remove(&id)),
            }
        }
    }

    fn read(&self, now_ms: u64) -> Machine {
        let mut machine = Machine::new(self.counter, limits());
        for (id, session) in self.sessions.clone() {
            machine.restore_session(id, Session::from_stored(session, Reading::Restart { now_ms }));
        }
        for (lock, record) in self.locks.clone() {
            machine.restore(
                now_ms,
                lock,
                Record::from_stored(record, Reading::Restart { now_ms }).unwrap(),
            );
        }
        machine
    }
}

fn limits() -> Limits {
    Limits { ended_retention_ms: 1_000_000, shared_per_lock: SHARED, ..Limits::default() }
}

fn withdraw(machine: &mut Machine, oracle: &mut Oracle, now_ms: u64, l: u8, lease: LeaseId) {
    let locks = oracle.asked_for(l, lease);
    let names: Vec<LockName> = locks.iter().map(|l| name(*l)).collect();
    machine.withdraw_all(now_ms, &names, lease);
    oracle.withdraw(now_ms, &locks, lease);
}

/// Applies everything that is due.
fn catch_up(machine: &mut Machine, oracle: &mut Oracle, now_ms: u64) {
    oracle.expire(now_ms);
    machine.tick(now_ms);
    for delivery in machine.take_deliveries() {
        oracle.delivered(now_ms, &delivery);
    }
}

fn acquire(machine: &mut Machine, oracle: &mut Oracle, now_ms: u64, mut request: Acquire) {
    request.session = request.session.map(|id| oracle.session(session_number(id)));
    let l = number(&request.lock);
    let lease_id = request.lease_id;
    let is_known = oracle.live(l, lease_id).is_some() || oracle.waits(l, lease_id);
    match machine.acquire(now_ms, request.clone()) {
        Reply::Done(Ok(grant)) => {
            oracle.supersede(now_ms, l, &request);
            oracle.grant(now_ms, l, &grant, &request, false);
        }
        Reply::Queued if is_known => assert!(oracle.waits(l, lease_id)),
        Reply::Queued => oracle.queue(&[request]),
        Reply::Done(Err(StoreError::OtherKind(kind))) => {
            assert_eq!(oracle.kind(l), Some(kind));
            assert!(kind != request.mode.kind() && !is_known);
        }
        Reply::Done(Err(StoreError::Held { holder, .. })) => {
            assert!(!oracle.is_open(l, request.mode), "refused although the lock was free");
            assert!(oracle.has_token(holder.token), "refused for a holder without a lease");
        }
        Reply::Done(Err(StoreError::Kept { .. })) => {
            assert!(!oracle.is_open(l, request.mode), "refused although the lock was free");
            assert!(oracle.held(l).is_empty(), "kept, although a lease is live");
        }
        Reply::Done(Err(_)) => {}
    }
}

fn acquire_all(machine: &mut Machine, oracle: &mut Oracle, now_ms: u64, mut parts: Vec<Acquire>) {
    for part in &mut parts {
        part.session = part.session.map(|id| oracle.session(session_number(id)));
    }
    let lease_id = parts[0].lease_id;
    let waits = parts.iter().any(|part| oracle.waits(number(&part.lock), lease_id));
    match machine.acquire_all(now_ms, parts.clone()) {
        Reply::Done(Ok(grants)) => {
            assert_eq!(grants.len(), parts.len(), "all of them");
            for (grant, part) in grants.iter().zip(&parts) {
                oracle.grant(now_ms, number(&part.lock), grant, part, false);
            }
        }
        Reply::Queued if waits => {}
        Reply::Queued => oracle.queue(&parts),
        Reply::Done(Err(StoreError::Part { lock, refusal })) => {
            let part = parts.iter().find(|part| part.lock == lock).unwrap();
            match *refusal {
                StoreError::OtherKind(kind) => {
                    assert_eq!(oracle.kind(number(&lock)), Some(kind));
                    assert_ne!(part.mode.kind(), kind);
                }
                StoreError::Held { .. } | StoreError::Kept { .. } => {
                    assert!(!oracle.is_open(number(&lock), part.mode), "refused a free lock");
                }
                _ => {}
            }
        }
        Reply::Done(Err(other)) => panic!("no lock is named: {other}"),
    }
}

/// Applies one step on a session; the oracle predicts whether it is allowed.
fn apply_to_session(machine: &mut Machine, oracle: &mut Oracle, now_ms: u64, step: &HistoryStep) {
    match step {
        HistoryStep::Begin { session } => {
            let owner = usize::from(*session);
            if oracle.sessions[owner].1 <= now_ms {
                oracle.sessions[owner].0 += 1;
                let new = NewSession {
                    session_id: oracle.session(owner),
                    owner: Owner::new(format!("worker-{session}")).unwrap(),
                    ttl: Ttl::from_ms(SESSION_MS).unwrap(),
                    metadata: None,
                    principal: None,
                };
                machine.create_session(now_ms, new).unwrap();
                oracle.sessions[owner].1 = now_ms + SESSION_MS;
                oracle.sessions[owner].2 = false;
            }
        }
        HistoryStep::Heartbeat { session } => {
            let owner = usize::from(*session);
            let (_, until_ms, blocked) = oracle.sessions[owner];
            let beat = machine.heartbeat(now_ms, oracle.session(owner));
            assert_eq!(beat.is_ok(), until_ms > now_ms && !blocked, "{beat:?}");
            if beat.is_ok() {
                oracle.session_lives_until(owner, now_ms + SESSION_MS);
            }
        }
        HistoryStep::End { session } => {
            let owner = usize::from(*session);
            let ended = machine.end_session(now_ms, oracle.session(owner));
            assert_eq!(ended.is_ok(), oracle.sessions[owner].1 > now_ms, "{ended:?}");
            oracle.session_lives_until(owner, oracle.sessions[owner].1.min(now_ms));
            oracle.expire(now_ms);
        }
        HistoryStep::Block { session } => {
            let owner = usize::from(*session);
            let reason = Owner::new("why").unwrap();
            let blocked = machine.block_session(now_ms, oracle.session(owner), reason);
            assert_eq!(blocked.is_ok(), oracle.sessions[owner].1 > now_ms, "{blocked:?}");
            oracle.sessions[owner].2 = true;
        }
        other => panic!("no step on a session: {other:?}"),
    }
}

/// Checks that the locks and sessions that the machine shows are those of the oracle.
fn agree(machine: &mut Machine, oracle: &Oracle, now_ms: u64) {
    for l in 0..LOCKS {
        let shown = machine.show(now_ms, &name(l));
        let held: Vec<_> = shown
            .holder
            .iter()
            .chain(&shown.also_held)
            .map(|holder| (holder.lease_id, now_ms + holder.info.expires_in_ms))
            .collect();
        assert_eq!(held, oracle.held(l), "who holds lock {l}");
        assert_eq!(shown.lease_count, held.len());
        assert_eq!(shown.delayed_ms, oracle.delayed_ms(now_ms, l), "how long {l} is closed");
        let queue: Vec<_> = shown.queue.iter().map(|waiter| waiter.lease_id).collect();
        assert_eq!(queue, oracle.queued(l), "who waits for lock {l}");
    }
    for session in machine.list_sessions(now_ms, None, 10).sessions {
        for lease in machine.show_session(now_ms, session.session_id).unwrap().leases {
            let live = oracle.live(number(&lease.lock), lease.lease_id);
            assert_eq!(live.unwrap().request.session, Some(session.session_id));
        }
    }
}

/// Without requests, time removes every record.
fn runs_dry(machine: &mut Machine) {
    for _ in 0..1_000 {
        let Some(at_ms) = machine.next_alarm_ms() else { break };
        machine.tick(at_ms);
    }
    assert_eq!((machine.next_alarm_ms(), machine.waiters), (None, 0));
    assert!(machine.records.is_empty(), "{:?}", machine.records);
    assert!(machine.groups.is_empty() && machine.passing.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_history_keeps_the_invariants(steps in proptest::collection::vec(step(), 1..150)) {
        let mut machine = Machine::new(0, limits());
        let mut disk = Disk::default();
        let mut oracle = Oracle::default();
        let mut now_ms = 0;
        for step in steps {
            if matches!(step, HistoryStep::Restart) {
                machine = disk.read(now_ms);
                oracle.restart(now_ms);
            } else {
                apply(&mut machine, &mut oracle, &mut now_ms, step);
            }
            disk.write(&mut machine);
            oracle.every_front_has_to_wait();
            agree(&mut machine, &oracle, now_ms);
        }
        prop_assert_eq!(machine.counter(), oracle.last_token);
        runs_dry(&mut machine);
    }
}
