//! Calls that may be made, and the names that they are about.

use fence_protocol::{LeaseId, LockName, Owner, SessionId, Ttl};
use fence_tests::key_file::{lease_id, session_id};
use fence_tests::seed::Seed;
use lock_server::store::{Acquire, Mode, NewSession, Revoke, Takeover};

const LONG_MS: u64 = 600_000;
/// The patience of a caller that waits until the step is over, and no longer.
pub(super) const SHORT_MS: u64 = 20;

/// One call, at one of the servers where there are several.
#[derive(Clone, Debug)]
pub(super) enum StoreStep {
    /// Answers at once, or when a short patience is over.
    Acquire(Vec<Acquire>, usize),
    /// Waits in a task.
    Wait(Vec<Acquire>, usize),
    /// The caller who waits is gone.
    HangUp(usize),
    Renew(LockName, LeaseId, Option<Ttl>, usize),
    Release(LockName, LeaseId, usize),
    Revoke(LockName, Revoke, usize),
    Begin(NewSession),
    Beat(SessionId),
    End(SessionId),
    Block(SessionId),
}

/// The names of one round.
pub(super) struct World {
    pub(super) locks: Vec<LockName>,
    pub(super) leases: Vec<LeaseId>,
    pub(super) sessions: Vec<SessionId>,
    owners: Vec<Owner>,
}

impl World {
    pub(super) fn new(round: usize, seed: &mut Seed) -> Self {
        let locks = 1 + seed.below(4) as usize;
        let name = |n: usize| LockName::new(&format!("r{round}/{}", ["a", "b:1", "c", "d"][n]));
        let owner = |text: &str| Owner::new(text).unwrap();
        Self {
            locks: (0..locks).map(|n| name(n).unwrap()).collect(),
            leases: (0..12).map(|_| lease_id()).collect(),
            sessions: (0..2).map(|_| session_id()).collect(),
            owners: vec![owner("zoë, *\u{2028}1"), owner("*two")],
        }
    }

    fn one<'a, T>(of: &'a [T], seed: &mut Seed) -> &'a T {
        &of[seed.below(of.len() as u64) as usize]
    }

    /// Nearly always of the kind that the lock is used as.
    fn mode(lock: &LockName, seed: &mut Seed) -> Mode {
        let semaphore = lock.as_str().ends_with("b:1");
        match (seed.below(24), semaphore) {
            (0, _) => Mode::Permit { size: 3 },
            (1, _) | (3.., true) => Mode::Permit { size: 2 },
            (2, _) | (3..10, false) => Mode::Exclusive,
            (_, false) => Mode::Shared,
        }
    }

    fn request(&self, seed: &mut Seed, wait_ms: u64) -> Acquire {
        let chance = |seed: &mut Seed, in_ten: u64| seed.below(10) < in_ten;
        let ttl = Ttl::from_ms(LONG_MS).unwrap();
        // An id has its owner nearly always.
        let at = seed.below(self.leases.len() as u64) as usize;
        let own = if seed.below(20) == 0 { at + 1 } else { at };
        let owner = self.owners[own % self.owners.len()].clone();
        let lock = Self::one(&self.locks, seed).clone();
        let mut request = Acquire::new(lock, self.leases[at], owner, ttl);
        request.wait_ms = wait_ms;
        request.mode = Self::mode(&request.lock, seed);
        // A repeat names the session of the first try.
        request.session = self.sessions.get(at % 5).copied();
        if chance(seed, 3) {
            let life = ["1", "2", "3"][seed.below(3) as usize];
            request.incarnation = Some(Owner::new(life).unwrap());
        }
        if chance(seed, 3) {
            request.metadata = Some("{\"a\":\"\\t,*\"}".to_owned());
        }
        if chance(seed, 3) {
            request.lock_delay_ms = LONG_MS;
        }
        if request.mode == Mode::Exclusive && chance(seed, 2) {
            request.takeover = match seed.below(2) {
                0 => Takeover::EarlierSelf,
                _ => Takeover::Of(*Self::one(&self.leases, seed)),
            };
        }
        request
    }

    fn parts(&self, seed: &mut Seed, wait_ms: u64) -> Vec<Acquire> {
        let first = self.request(seed, wait_ms);
        if seed.below(10) < 6 || self.locks.len() == 1 {
            return vec![first];
        }
        let mut locks = self.locks.clone();
        let mut parts = Vec::new();
        for _ in 0..2 + seed.below(locks.len() as u64 - 1) {
            let lock = locks.swap_remove(seed.below(locks.len() as u64) as usize);
            let mode = Self::mode(&lock, seed);
            let takeover = Takeover::Never;
            parts.push(Acquire { lock, mode, takeover, ..first.clone() });
        }
        parts
    }

    pub(super) fn step(&mut self, seed: &mut Seed) -> StoreStep {
        let lock = Self::one(&self.locks, seed).clone();
        let lease = *Self::one(&self.leases, seed);
        let session = *Self::one(&self.sessions, seed);
        let server = seed.below(2) as usize;
        let why = Owner::new("why, *not").unwrap();
        match seed.below(40) {
            0..9 => {
                let wait_ms = if seed.below(3) == 0 { SHORT_MS } else { 0 };
                StoreStep::Acquire(self.parts(seed, wait_ms), server)
            }
            9..20 => StoreStep::Wait(self.parts(seed, LONG_MS), 0),
            20..22 => StoreStep::HangUp(seed.below(8) as usize),
            22..24 => {
                let ttl = (seed.below(2) == 0).then(|| Ttl::from_ms(LONG_MS * 2).unwrap());
                StoreStep::Renew(lock, lease, ttl, server)
            }
            24..31 => StoreStep::Release(lock, lease, server),
            31..34 => {
                let lease = (seed.below(3) == 0).then_some(lease);
                let reason = (seed.below(2) == 0).then_some(why);
                StoreStep::Revoke(lock, Revoke { lease, reason }, server)
            }
            34..37 => StoreStep::Begin(NewSession {
                session_id: session,
                owner: self.owners[usize::from(session == self.sessions[0])].clone(),
                ttl: Ttl::from_ms(LONG_MS).unwrap(),
                metadata: None,
                principal: (seed.below(2) == 0).then(|| "me".to_owned()),
            }),
            37 => StoreStep::Beat(session),
            38 => {
                // Its id begins nothing new for a while.
                let at = self.sessions.iter().position(|id| *id == session).unwrap_or(0);
                if seed.below(2) == 0 {
                    self.sessions[at] = session_id();
                }
                StoreStep::End(session)
            }
            _ => StoreStep::Block(session),
        }
    }
}
