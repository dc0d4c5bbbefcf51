//! Random histories with restarts against the agreement of the machine's parts: locks, sessions,
//! queues and alarms are consistent after any step, and in the end nothing is left.

use std::collections::{BTreeMap, BTreeSet};

use fence_protocol::SessionId;
use proptest::prelude::*;

use super::*;
use crate::Reading;
use crate::{NewSession, Revoke};
use crate::{Session, StoredRecord, StoredSession};

const LOCKS: u8 = 4;
const OWNERS: u128 = 3;
const RETENTION_MS: u64 = 50;

#[derive(Clone, Debug)]
enum StructureStep {
    Acquire { lock: u8, id: u128, wait_ms: u64, takeover: Takeover, bound: bool },
    Renew { lock: u8, id: u128 },
    Release { lock: u8, id: u128 },
    Withdraw { lock: u8, id: u128 },
    Revoke { lock: u8 },
    Begin { owner: u128 },
    Heartbeat { owner: u128 },
    End { owner: u128 },
    Block { owner: u128 },
    Pass { ms: u64 },
    Restart,
}

fn step() -> impl Strategy<Value = StructureStep> {
    let lock = 0..LOCKS;
    let number = 1..30_u128;
    let owner = 0..OWNERS;
    let wait = prop_oneof![Just(0), 1..300_u64];
    let takeover = prop_oneof![
        2 => Just(Takeover::Never),
        2 => Just(Takeover::EarlierSelf),
        2 => (1..30_u128).prop_map(|number| Takeover::Of(id(number))),
    ];
    prop_oneof![
        8 => (lock.clone(), number.clone(), wait, takeover, any::<bool>()).prop_map(
            |(lock, id, wait_ms, takeover, bound)|
                StructureStep::Acquire { lock, id, wait_ms, takeover, bound }
        ),
        1 => (lock.clone(), number.clone())
            .prop_map(|(lock, id)| StructureStep::Renew { lock, id }),
        3 => (lock.clone(), number.clone())
            .prop_map(|(lock, id)| StructureStep::Release { lock, id }),
        1 => (lock.clone(), number).prop_map(|(lock, id)| StructureStep::Withdraw { lock, id }),
        1 => lock.prop_map(|lock| StructureStep::Revoke { lock }),
        4 => owner.clone().prop_map(|owner| StructureStep::Begin { owner }),
        3 => owner.clone().prop_map(|owner| StructureStep::Heartbeat { owner }),
        1 => owner.clone().prop_map(|owner| StructureStep::End { owner }),
        1 => owner.prop_map(|owner| StructureStep::Block { owner }),
        4 => prop_oneof![3 => 1..60_u64, 1 => 60..400_u64]
            .prop_map(|ms| StructureStep::Pass { ms }),
        1 => Just(StructureStep::Restart),
    ]
}

/// The machine, the contents of its journal, and the waiters.
struct Run {
    machine: Machine,
    now_ms: u64,
    locks: BTreeMap<LockName, StoredRecord>,
    sessions: BTreeMap<SessionId, StoredSession>,
    waiting: BTreeSet<(LockName, LeaseId)>,
    tokens: BTreeMap<(LockName, LeaseId), Token>,
    highest: u64,
    /// Number of sessions that each owner has begun.
    begun: [u128; OWNERS as usize],
}

fn empty(counter: u64) -> Machine {
    Machine::new(counter, Limits { ended_retention_ms: RETENTION_MS, ..Limits::default() })
}

impl Run {
    fn new() -> Self {
        Self {
            machine: empty(0),
            now_ms: 0,
            locks: BTreeMap::new(),
            sessions: BTreeMap::new(),
            waiting: BTreeSet::new(),
            tokens: BTreeMap::new(),
            highest: 0,
            begun: [0; OWNERS as usize],
        }
    }

    /// Returns the owner's last session.
    fn session(&self, owner: u128) -> SessionId {
        let begun = self.begun[usize::try_from(owner).unwrap()];
        SessionId::new(uuid_of(1_000 + begun * OWNERS + owner)).unwrap()
    }

    /// Checks L1 and L3 for a grant.
    fn granted(&mut self, lock: &LockName, grant: &Grant) {
        let key = (lock.clone(), grant.lease_id);
        if self.tokens.get(&key) != Some(&grant.token) {
            assert!(grant.token.get() > self.highest, "L1: {} after {}", grant.token, self.highest);
            self.highest = grant.token.get();
            self.tokens.insert(key, grant.token);
        }
        assert!(grant.remaining_ms > 0, "a lease without a moment to live");
    }

    /// Does the work of a store's thread after each step: deliveries and journal.
    fn settle(&mut self) {
        self.machine.tick(self.now_ms);
        for delivery in self.machine.take_deliveries() {
            let key = (delivery.lock.clone(), delivery.lease_id);
            assert!(self.waiting.remove(&key), "{key:?} was answered twice, or never asked");
            if let Ok(grant) = &delivery.result {
                self.granted(&delivery.lock, grant);
            }
        }
        for (lock, record) in self.machine.take_changes() {
            match record.map(|record| record.to_stored(u64::MAX)) {
                Some(stored) => drop(self.locks.insert(lock, stored)),
                None => drop(self.locks.remove(&lock)),
            }
        }
        for (id, session) in self.machine.take_session_changes() {
            match session.map(Session::to_stored) {
                Some(stored) => drop(self.sessions.insert(id, stored)),
                None => drop(self.sessions.remove(&id)),
            }
        }
    }

    /// Returns the holders that the machine shows.
    fn holders(&mut self) -> BTreeMap<LockName, (LeaseId, Token, Option<SessionId>)> {
        let now_ms = self.now_ms;
        let names: Vec<LockName> =
            self.machine.records.iter().map(|(lock, _)| lock.clone()).collect();
        let holder = |name: &LockName| self.machine.show(now_ms, name).holder;
        let all: Vec<_> = names.iter().map(holder).collect();
        let held =
            |h: fence_protocol::wire::lock::HolderReply| (h.lease_id, h.info.token, h.session_id);
        names.into_iter().zip(all).filter_map(|(name, h)| Some((name, held(h?)))).collect()
    }

    /// Starts a new process with the contents of the journal. The waiters have lost their
    /// connections.
    fn restart(&mut self) {
        let before = self.holders();
        self.settle();
        let mut machine = empty(self.machine.counter());
        for (id, stored) in &self.sessions {
            machine.restore_session(
                *id,
                Session::from_stored(stored.clone(), Reading::Restart { now_ms: self.now_ms }),
            );
        }
        for (lock, stored) in &self.locks {
            let record =
                Record::from_stored(stored.clone(), Reading::Restart { now_ms: self.now_ms })
                    .unwrap();
            machine.restore(self.now_ms, lock.clone(), record);
        }
        self.machine = machine;
        self.waiting.clear();
        assert_eq!(self.holders(), before, "L4: the leases that live across a restart");
    }

    fn acquire(&mut self, request: Acquire) {
        let key = (request.lock.clone(), request.lease_id);
        match self.machine.acquire(self.now_ms, request) {
            Reply::Done(Ok(grant)) => self.granted(&key.0, &grant),
            Reply::Done(Err(_)) => {}
            Reply::Queued => drop(self.waiting.insert(key)),
        }
    }

    fn apply(&mut self, step: StructureStep) {
        let now_ms = self.now_ms;
        let name = |number: u8| lock(&number.to_string());
        match step {
            StructureStep::Acquire { lock, id: number, wait_ms, takeover, bound } => {
                let life = Owner::new((number / OWNERS % 4).to_string()).unwrap();
                self.acquire(Acquire {
                    owner: Owner::new(format!("worker-{}", number % OWNERS)).unwrap(),
                    incarnation: (number % 4 > 0).then_some(life),
                    takeover,
                    session: bound.then(|| self.session(number % OWNERS)),
                    ..request(&lock.to_string(), number, wait_ms)
                });
            }
            StructureStep::Renew { lock, id: number } => {
                if let Ok(grant) = self.machine.renew(now_ms, &name(lock), id(number), None) {
                    self.granted(&name(lock), &grant);
                }
            }
            StructureStep::Release { lock, id: number } => {
                let _ = self.machine.release(now_ms, &name(lock), id(number));
            }
            StructureStep::Withdraw { lock, id: number } => {
                self.waiting.remove(&(name(lock), id(number)));
                self.machine.withdraw(now_ms, &name(lock), id(number));
            }
            StructureStep::Revoke { lock } => {
                drop(self.machine.revoke(now_ms, &name(lock), &Revoke::default()));
            }
            StructureStep::Begin { owner } => self.begin(owner),
            StructureStep::Heartbeat { owner } => {
                let _ = self.machine.heartbeat(now_ms, self.session(owner));
            }
            StructureStep::End { owner } => {
                let _ = self.machine.end_session(now_ms, self.session(owner));
            }
            StructureStep::Block { owner } => {
                let why = Owner::new("why").unwrap();
                let _ = self.machine.block_session(now_ms, self.session(owner), why);
            }
            StructureStep::Pass { ms } => self.now_ms += ms,
            StructureStep::Restart => self.restart(),
        }
    }

    /// Begins the owner's next session, unless the last one lives.
    fn begin(&mut self, owner: u128) {
        if self.machine.show_session(self.now_ms, self.session(owner)).is_ok() {
            return;
        }
        self.begun[usize::try_from(owner).unwrap()] += 1;
        let new = NewSession {
            session_id: self.session(owner),
            owner: Owner::new(format!("worker-{owner}")).unwrap(),
            ttl: Ttl::from_ms(120).unwrap(),
            metadata: None,
            principal: None,
        };
        self.machine.create_session(self.now_ms, new).unwrap();
    }

    /// Checks that the parts of the machine are consistent.
    fn agree(&mut self) {
        let now_ms = self.now_ms;
        let sessions = self.machine.list_sessions(now_ms, None, 100).sessions;
        let live: BTreeMap<SessionId, bool> =
            sessions.iter().map(|s| (s.session_id, s.blocked.is_none())).collect();
        let mut bonds = 0;
        let mut queued = BTreeSet::new();
        let held = self.machine.records.iter().filter(|(_, record)| !record.holders.is_empty());
        assert_eq!(self.machine.held_count(), held.count());
        assert_eq!(self.machine.session_count(), live.len());
        assert_eq!(self.machine.records.len(), self.machine.records.places());
        for (name, record) in self.machine.records.iter() {
            assert!(!record.holders.is_empty() || record.queue.is_empty(), "{name}: an idle queue");
            if let Some(session) = record.holders.first().and_then(|holder| holder.session) {
                assert!(live.contains_key(&session), "{name} is held by a session that is over");
                bonds += 1;
            } else if let Some(holder) = record.holders.first() {
                assert!(holder.expires_at_ms > now_ms, "{name} is held by a lease that is over");
            }
            for waiter in record.queue.iter() {
                assert!(waiter.until_ms > now_ms, "{name}: the waiter did not time out");
                assert!(queued.insert((name.clone(), waiter.request.lease_id)), "waits twice");
                if let Some(session) = waiter.request.session {
                    let serves = live.get(&session).copied().unwrap_or(false);
                    assert!(serves, "{name}: a session that is granted nothing waits");
                    bonds += 1;
                }
            }
        }
        assert_eq!(queued, self.waiting, "who waits");
        assert_eq!(self.machine.waiters, queued.len(), "how many wait");
        let lease_count: usize = sessions.iter().map(|session| session.lease_count).sum();
        assert_eq!(lease_count, bonds, "what the sessions believe, and what names them");
    }
}

proptest! {
    #[test]
    fn every_part_says_the_same(steps in proptest::collection::vec(step(), 1..120)) {
        let mut run = Run::new();
        for step in steps {
            run.apply(step);
            run.settle();
            run.agree();
        }
        // No more requests: every waiter gets a reply, and nothing is left.
        for _ in 0..1_000 {
            let Some(at_ms) = run.machine.next_alarm_ms() else { break };
            run.now_ms = run.now_ms.max(at_ms);
            run.settle();
            run.agree();
        }
        prop_assert!(run.waiting.is_empty(), "never answered: {:?}", run.waiting);
        prop_assert!(run.machine.records.is_empty() && run.machine.next_alarm_ms().is_none());
        prop_assert!(run.locks.is_empty() && run.sessions.is_empty(), "left in the journal");
    }
}
