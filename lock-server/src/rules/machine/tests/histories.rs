//! Random histories against what must always be true.

use std::collections::{HashMap, VecDeque};

use fence_protocol::SessionId;
use fence_protocol::wire::lock::HolderReply;
use proptest::prelude::*;

use super::*;
use crate::store::NewSession;

#[derive(Clone, Debug)]
enum Step {
    Acquire { lock: u8, id: u128, wait_ms: u64, takeover: Takeover },
    Renew { lock: u8, id: u128 },
    Release { lock: u8, id: u128 },
    Withdraw { lock: u8, id: u128 },
    Revoke { lock: u8 },
    Begin { session: u8 },
    Heartbeat { session: u8 },
    End { session: u8 },
    Block { session: u8 },
    Pass { ms: u64 },
}

fn takeover() -> impl Strategy<Value = Takeover> {
    prop_oneof![
        3 => Just(Takeover::Never),
        2 => Just(Takeover::EarlierSelf),
        1 => (1..40_u128).prop_map(|number| Takeover::Of(id(number))),
    ]
}

/// Ids share a few owners, each with a few lives and some that say nothing of themselves.
fn asked(lock: u8, number: u128, wait_ms: u64, takeover: Takeover) -> Acquire {
    let incarnation = Owner::new((number / 3 % 4).to_string()).unwrap();
    Acquire {
        owner: Owner::new(format!("worker-{}", number % 3)).unwrap(),
        incarnation: (!number.is_multiple_of(4)).then_some(incarnation),
        takeover,
        ..ask(&lock.to_string(), number, wait_ms)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let lock = 0..3_u8;
    let number = 1..40_u128;
    prop_oneof![
        5 => (lock.clone(), number.clone(), prop_oneof![Just(0), 1..200_u64], takeover())
            .prop_map(|(lock, id, wait_ms, takeover)| Step::Acquire { lock, id, wait_ms, takeover }),
        2 => (lock.clone(), number.clone()).prop_map(|(lock, id)| Step::Renew { lock, id }),
        3 => (lock.clone(), number.clone()).prop_map(|(lock, id)| Step::Release { lock, id }),
        1 => (lock.clone(), number).prop_map(|(lock, id)| Step::Withdraw { lock, id }),
        1 => lock.prop_map(|lock| Step::Revoke { lock }),
        3 => (0..3_u8).prop_map(|session| Step::Begin { session }),
        3 => (0..3_u8).prop_map(|session| Step::Heartbeat { session }),
        1 => (0..3_u8).prop_map(|session| Step::End { session }),
        1 => (0..3_u8).prop_map(|session| Step::Block { session }),
        3 => (1..80_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// What must be true of any history, kept apart from how the machine works.
#[derive(Default)]
struct Oracle {
    last_token: u64,
    tokens: HashMap<(u8, LeaseId), Token>,
    queues: HashMap<u8, Vec<LeaseId>>,
    live: HashMap<u8, (LeaseId, u64)>,
    /// The last eight a lock, newest first: what is documented to be remembered.
    ended: HashMap<u8, VecDeque<LeaseId>>,
    /// Which lease of an owner was taken over by another life of it, a lock.
    taken_over: Vec<(u8, LeaseId, Owner, Option<Owner>)>,
    superseding: Option<LeaseId>,
    /// How many sessions an owner has begun, until when the last one lives, and whether it is blocked.
    sessions: [(u128, u64, bool); 3],
    /// Which session each request asked under.
    bound: HashMap<(u8, LeaseId), SessionId>,
}

impl Oracle {
    /// L1, L2, L3 and the order of the queue, for one grant.
    fn grant(&mut self, now_ms: u64, lock: u8, grant: &Grant) {
        let key = (lock, grant.lease_id);
        match self.tokens.get(&key) {
            Some(token) => assert_eq!(*token, grant.token, "L3: one id, one grant"),
            None => {
                assert!(grant.token.get() > self.last_token, "L1: tokens rise");
                self.last_token = grant.token.get();
                self.tokens.insert(key, grant.token);
                if let Some((_, until_ms)) = self.live.get(&lock) {
                    assert!(*until_ms <= now_ms, "L2: one live lease");
                }
                let queue = self.queues.entry(lock).or_default();
                if let Some(place) = queue.iter().position(|waiter| *waiter == grant.lease_id) {
                    assert_eq!(place, 0, "first come, first served");
                    queue.remove(0);
                } else {
                    let own = self.superseding == Some(grant.lease_id);
                    assert!(own || queue.is_empty(), "nobody overtakes the queue");
                }
                self.superseding = None;
            }
        }
        let ended = self.ended.entry(lock).or_default();
        assert!(!ended.contains(&grant.lease_id), "an ended id came back");
        let until_ms = now_ms + grant.remaining_ms;
        if let Some(session) = self.bound.get(&key) {
            let (_, ends_ms, _) = self.sessions[session_number(*session)];
            assert_eq!(self.session(session_number(*session)), *session, "of an ended session");
            assert!(ends_ms > now_ms, "granted to a session that has ended");
            assert_eq!(until_ms, ends_ms, "a bound lease lives as long as its session");
        }
        self.live.insert(lock, (grant.lease_id, until_ms));
    }

    /// The last session that an owner has begun.
    fn session(&self, owner: usize) -> SessionId {
        let number = self.sessions[owner].0 * 3 + owner as u128;
        SessionId::new(uuid_of(number + 3)).unwrap()
    }

    /// A session was renewed or ended: all its leases with it.
    fn session_lives_until(&mut self, owner: usize, until_ms: u64) {
        self.sessions[owner].1 = until_ms;
        let session = self.session(owner);
        for (lock, (lease_id, until)) in &mut self.live {
            if self.bound.get(&(*lock, *lease_id)) == Some(&session) {
                *until = until_ms;
            }
        }
    }

    /// A lease took the place of a live one: only what is the same owner's, and the named lease or
    /// another life that was not itself taken over.
    fn superseded(&mut self, lock: u8, before: &HolderReply, request: &Acquire) {
        assert_eq!(before.info.owner, request.owner, "takeover crossed owners");
        match request.takeover {
            Takeover::Never => panic!("a lock was taken over unasked"),
            Takeover::Of(lease_id) => assert_eq!(lease_id, before.lease_id),
            Takeover::EarlierSelf => {
                assert!(before.incarnation.is_some() && request.incarnation.is_some());
                assert_ne!(before.incarnation, request.incarnation, "a process from itself");
                let remembered = self.ended.entry(lock).or_default().clone();
                assert!(
                    !self.taken_over.iter().any(|(on, lease, owner, life)| *on == lock
                        && remembered.contains(lease)
                        && (owner, life) == (&request.owner, &request.incarnation)),
                    "the earlier life took the lock back"
                );
            }
        }
        let earlier = (before.info.owner.clone(), before.incarnation.clone());
        self.end(lock, before.lease_id);
        self.taken_over.push((lock, before.lease_id, earlier.0, earlier.1));
        self.leave(lock, request.lease_id);
        self.superseding = Some(request.lease_id);
    }

    fn end(&mut self, lock: u8, lease_id: LeaseId) {
        if self.live.get(&lock).is_some_and(|(live, _)| *live == lease_id) {
            self.live.remove(&lock);
        }
        let ended = self.ended.entry(lock).or_default();
        if ended.contains(&lease_id) {
            return;
        }
        ended.push_front(lease_id);
        if ended.len() > 8
            && let Some(forgotten) = ended.pop_back()
        {
            self.tokens.remove(&(lock, forgotten));
        }
    }

    fn expire(&mut self, now_ms: u64) {
        let due = |(lock, (lease, until_ms)): (&u8, &(LeaseId, u64))| {
            (*until_ms <= now_ms).then_some((*lock, *lease))
        };
        for (lock, lease_id) in self.live.iter().filter_map(due).collect::<Vec<_>>() {
            self.end(lock, lease_id);
        }
    }

    fn leave(&mut self, lock: u8, lease_id: LeaseId) {
        self.queues.entry(lock).or_default().retain(|waiter| *waiter != lease_id);
    }

    fn delivered(&mut self, now_ms: u64, delivery: &Delivery) {
        let lock: u8 = delivery.lock.as_str().parse().unwrap();
        match &delivery.result {
            Ok(grant) => self.grant(now_ms, lock, grant),
            Err(_) => self.leave(lock, delivery.lease_id),
        }
    }
}

/// Whose session it is.
fn session_number(session: SessionId) -> usize {
    (session.uuid().as_u128() % 3) as usize
}

/// What the sessions say they hold is what the locks say, and nothing lives on without its session.
fn agree(machine: &mut Machine, oracle: &Oracle, now_ms: u64) {
    for l in 0..3_u8 {
        let holder = machine.show(now_ms, &lock(&l.to_string())).holder;
        let expected = oracle.live.get(&l).filter(|(_, until_ms)| *until_ms > now_ms);
        let found = holder.as_ref().map(|h| (h.lease_id, now_ms + h.info.expires_in_ms));
        assert_eq!(found, expected.copied(), "who holds lock {l}");
    }
    for session in machine.list_sessions(now_ms, None, 10).sessions {
        for lease in machine.show_session(now_ms, session.session_id).unwrap().leases {
            let holder = machine.show(now_ms, &lease.lock).holder.unwrap();
            assert_eq!(
                (holder.lease_id, holder.session_id),
                (lease.lease_id, Some(session.session_id))
            );
        }
    }
}

/// Applies one step on a session; whether it may be done is known without the machine.
fn apply_to_session(machine: &mut Machine, oracle: &mut Oracle, now_ms: u64, step: &Step) {
    match step {
        Step::Begin { session } => {
            let owner = usize::from(*session);
            if oracle.sessions[owner].1 <= now_ms {
                oracle.sessions[owner].0 += 1;
                let new = NewSession {
                    session_id: oracle.session(owner),
                    owner: Owner::new(format!("worker-{session}")).unwrap(),
                    ttl: Ttl::from_ms(120).unwrap(),
                    metadata: None,
                    principal: None,
                };
                machine.create_session(now_ms, new).unwrap();
                oracle.sessions[owner].1 = now_ms + 120;
                oracle.sessions[owner].2 = false;
            }
        }
        Step::Heartbeat { session } => {
            let owner = usize::from(*session);
            let (_, until_ms, blocked) = oracle.sessions[owner];
            let beat = machine.heartbeat(now_ms, oracle.session(owner));
            assert_eq!(beat.is_ok(), until_ms > now_ms && !blocked, "{beat:?}");
            if beat.is_ok() {
                oracle.session_lives_until(owner, now_ms + 120);
            }
        }
        Step::End { session } => {
            let owner = usize::from(*session);
            let ended = machine.end_session(now_ms, oracle.session(owner));
            assert_eq!(ended.is_ok(), oracle.sessions[owner].1 > now_ms, "{ended:?}");
            oracle.session_lives_until(owner, oracle.sessions[owner].1.min(now_ms));
            oracle.expire(now_ms);
        }
        Step::Block { session } => {
            let owner = usize::from(*session);
            let reason = Owner::new("why").unwrap();
            let blocked = machine.block_session(now_ms, oracle.session(owner), reason);
            assert_eq!(blocked.is_ok(), oracle.sessions[owner].1 > now_ms, "{blocked:?}");
            oracle.sessions[owner].2 = true;
        }
        other => panic!("no step on a session: {other:?}"),
    }
}

/// Applies one step; leases that are due are let go first, as every store does.
fn apply(machine: &mut Machine, oracle: &mut Oracle, now_ms: &mut u64, step: Step) {
    let name = |number: u8| lock(&number.to_string());
    oracle.expire(*now_ms);
    machine.tick(*now_ms);
    for delivery in machine.take_deliveries() {
        oracle.delivered(*now_ms, &delivery);
    }
    match step {
        Step::Acquire { lock: l, id: number, wait_ms, takeover } => {
            let mut request = asked(l, number, wait_ms, takeover);
            let session = oracle.session((number % 3) as usize);
            request.session = (number % 5 < 2).then_some(session);
            let known = oracle.tokens.contains_key(&(l, id(number)))
                || oracle.queues.get(&l).is_some_and(|queue| queue.contains(&id(number)));
            if let Some(session) = request.session.filter(|_| !known) {
                oracle.bound.insert((l, id(number)), session);
            }
            let before = machine.show(*now_ms, &name(l)).holder;
            match machine.acquire(*now_ms, request.clone()) {
                Reply::Done(Ok(grant)) => {
                    if let Some(before) = before.filter(|b| b.lease_id != grant.lease_id) {
                        oracle.superseded(l, &before, &request);
                    }
                    oracle.grant(*now_ms, l, &grant);
                }
                Reply::Done(Err(_)) => {}
                Reply::Queued => {
                    let queue = oracle.queues.entry(l).or_default();
                    if !queue.contains(&id(number)) {
                        queue.push(id(number));
                    }
                }
            }
        }
        Step::Renew { lock: l, id: number } => {
            if let Ok(grant) = machine.renew(*now_ms, &name(l), id(number), None) {
                oracle.grant(*now_ms, l, &grant);
            }
        }
        Step::Release { lock: l, id: number } => {
            oracle.leave(l, id(number));
            let _ = machine.release(*now_ms, &name(l), id(number));
            oracle.end(l, id(number));
        }
        Step::Withdraw { lock: l, id: number } => {
            oracle.leave(l, id(number));
            let held = machine.show(*now_ms, &name(l)).holder.map(|holder| holder.lease_id);
            machine.withdraw(*now_ms, &name(l), id(number));
            let holds = machine.show(*now_ms, &name(l)).holder.map(|holder| holder.lease_id);
            if held == Some(id(number)) && holds != held {
                oracle.end(l, id(number));
            }
        }
        Step::Revoke { lock: l } => {
            if let Ok(ended) = machine.revoke(*now_ms, &name(l)) {
                oracle.end(l, ended.lease_id);
            }
        }
        Step::Pass { ms } => *now_ms += ms,
        other => apply_to_session(machine, oracle, *now_ms, &other),
    }
    for delivery in machine.take_deliveries() {
        oracle.delivered(*now_ms, &delivery);
    }
}

proptest! {
    /// Time passes in steps shorter than a lease, so that at most one expiry a lock comes at once.
    #[test]
    fn every_history_keeps_the_invariants(steps in proptest::collection::vec(step(), 1..150)) {
        let limits = Limits { ended_retention_ms: 1_000_000, ..Limits::default() };
        let mut machine = Machine::new(0, limits);
        let mut oracle = Oracle::default();
        let mut now_ms = 0;
        for step in steps {
            apply(&mut machine, &mut oracle, &mut now_ms, step);
            oracle.expire(now_ms);
            machine.tick(now_ms);
            for delivery in machine.take_deliveries() {
                oracle.delivered(now_ms, &delivery);
            }
            agree(&mut machine, &oracle, now_ms);
        }
        prop_assert_eq!(machine.counter(), oracle.last_token);
    }
}
