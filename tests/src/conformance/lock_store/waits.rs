//! Waiting at two servers of one namespace that started at different times: a wait has the length
//! that was asked for, and no client waits longer than the holders before it and [`SLACK`].
//!
//! [`waits_suite!`](crate::waits_suite) makes a test of every case for one pair of servers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::wait::scaled;

/// Two servers of one namespace.
pub type Servers = [Store; 2];

/// Wait of a request that is to time out.
const WAIT_MS: u64 = 2_000;
/// Time by which a server's knowledge of the store's clock may grow beside the client's clock: as
/// much as a reply of the store is late, which may be more on a busy machine.
const CLOCK_SLACK: Duration = Duration::from_millis(500);
/// A longer slack would hide a wait that is not as long as was asked.
const CLOCK_SLACK_MAX: Duration = Duration::from_millis(WAIT_MS / 2);
/// Runs of a case, of which the store must have replied in time in one.
const RUNS: usize = 3;
/// Time that servers may take to pass a lock on, on a busy machine; a lost message takes 2 s.
const SLACK: Duration = Duration::from_secs(15);
/// Clients of each server.
const CLIENTS: usize = 3;
/// Grants of each client.
const TURNS: usize = 6;
/// Time for which each grant is held.
const HOLD: Duration = Duration::from_millis(20);

/// Begin and end of a wait or of a lease, as its client saw them.
#[derive(Clone, Copy, Debug)]
struct Span {
    begin: Instant,
    end: Instant,
}

impl Span {
    /// Returns the time that both have in common.
    fn overlap(self, other: Self) -> Duration {
        self.end.min(other.end).saturating_duration_since(self.begin.max(other.begin))
    }
}

/// The longest time without a reply of the store.
#[derive(Debug)]
struct Silence {
    since: Instant,
    longest: Duration,
}

impl Silence {
    fn new() -> Self {
        Self { since: Instant::now(), longest: Duration::ZERO }
    }

    fn ends(&mut self) {
        self.longest = self.longest.max(self.since.elapsed());
        self.since = Instant::now();
    }
}

/// The slack of a run in which the store was silent for so long.
fn slack(silence: Duration) -> Duration {
    CLOCK_SLACK.max(silence).min(CLOCK_SLACK_MAX)
}

/// Asks a server again and again until `done`.
async fn longest_silence(server: Store, done: Arc<AtomicBool>) -> Duration {
    let mut silence = Silence::new();
    while !done.load(Ordering::SeqCst) {
        state_of(&server, &name("turns")).await;
        silence.ends();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    silence.longest
}

/// Outcome of a wait, and its length as its client saw it.
type Wait = (Result<Grant, StoreError>, Duration);

/// Waits at both servers for a lock that stays held, and the longest silence of the store.
async fn waits_behind(servers: &Servers, held: LeaseId) -> (Vec<Wait>, Duration) {
    let [one, two] = servers;
    let lock = name("as-long");
    let waits = [one, two, one, two].map(|server| {
        let server = server.clone();
        tokio::spawn(async move {
            let begin = Instant::now();
            let outcome = server.acquire(request("as-long", LONG_MS, WAIT_MS)).await;
            (outcome, begin.elapsed())
        })
    });
    let mut turns = servers.iter().cycle();
    let silence = Mutex::new(Silence::new());
    until_true("every wait to end", || {
        let renewed = turns.next().map(|server| server.renew(&lock, held, None));
        let is_over = waits.iter().all(JoinHandle::is_finished);
        let silence = &silence;
        async move {
            if let Some(renewed) = renewed {
                renewed.await.expect("the lease lives");
                silence.lock().expect("no panic").ends();
            }
            is_over
        }
    })
    .await;
    let mut ended = Vec::new();
    for wait in waits {
        ended.push(wait.await.expect("no panic"));
    }
    let longest = silence.lock().expect("no panic").longest;
    (ended, longest)
}

/// Requests at both servers wait behind a lease whose record both servers write again and again.
/// Each is refused when its own wait is over: not earlier, and not as a request without a reply.
pub async fn a_wait_is_as_long_as_was_asked(servers: &Servers) {
    let held = grant(&servers[0], "as-long", LONG_MS).await.lease_id;
    let mut run = waits_behind(servers, held).await;
    let mut runs = 1;
    while run.1 > CLOCK_SLACK_MAX && runs < RUNS {
        run = waits_behind(servers, held).await;
        runs += 1;
    }
    let (waits, silence) = run;
    let least = Duration::from_millis(WAIT_MS).saturating_sub(slack(silence));
    for (outcome, waited) in waits {
        assert!(matches!(outcome, Err(StoreError::Held { .. })), "{waited:?}: {outcome:?}");
        assert!(waited >= least, "refused after {waited:?} of {WAIT_MS} ms");
    }
}

/// Turns of some clients, as they saw them.
#[derive(Debug)]
struct Turns {
    /// Each wait, and its length by the reply.
    waits: Vec<(Span, Duration)>,
    holds: Vec<Span>,
    /// The longest silence of the store meanwhile.
    silence: Duration,
}

/// Clients of both servers take one lock in turns.
async fn turns(servers: &Servers) -> Turns {
    let holds = Arc::new(Mutex::new(Vec::new()));
    let done = Arc::new(AtomicBool::new(false));
    let silence = tokio::spawn(longest_silence(servers[0].clone(), done.clone()));
    let clients = (0..2 * CLIENTS).map(|number| {
        let [asks, releases] = [0, 1].map(|turn| servers[(number + turn) % 2].clone());
        let holds = holds.clone();
        tokio::spawn(async move {
            let mut waits = Vec::new();
            for _ in 0..TURNS {
                let begin = Instant::now();
                let asking = asks.acquire(request("turns", LONG_MS, LONG_MS));
                let grant = soon("a turn", asking).await.expect("a grant");
                let wait = Span { begin, end: Instant::now() };
                let waited = Duration::from_millis(grant.waited_ms);
                tokio::time::sleep(HOLD).await;
                released(&releases, "turns", grant.lease_id).await;
                let hold = Span { begin: wait.end, end: Instant::now() };
                holds.lock().expect("no panic").push(hold);
                waits.push((wait, waited));
            }
            waits
        })
    });
    let mut waits = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        waits.extend(client.await.expect("no panic"));
    }
    done.store(true, Ordering::SeqCst);
    let silence = silence.await.expect("no panic");
    let holds = holds.lock().expect("no panic").clone();
    Turns { waits, holds, silence }
}

/// None of the clients is refused, the reply names no longer wait than the client saw, and of each
/// wait the lock is held but for a slack.
pub async fn a_wait_is_no_longer_than_the_holders_before_it(servers: &Servers) {
    let mut run = turns(servers).await;
    let mut runs = 1;
    while run.silence > CLOCK_SLACK_MAX && runs < RUNS {
        run = turns(servers).await;
        runs += 1;
    }
    let Turns { waits, holds, silence } = run;
    let slack = slack(silence);
    assert_eq!(waits.len(), 2 * CLIENTS * TURNS);
    for (wait, waited) in waits {
        let seen = wait.end - wait.begin;
        assert!(waited <= seen + slack, "{waited:?} by the reply, saw {seen:?}");
        let held: Duration = holds.iter().map(|hold| wait.overlap(*hold)).sum();
        let idle = (wait.end - wait.begin).saturating_sub(held);
        assert!(idle <= scaled(SLACK), "waited {idle:?} beside the holders before it: {wait:?}");
    }
}

/// Makes a test of every case of waiting. `$servers` is an expression that gives a
/// `(guard, Servers)`; the guard lives as long as the test.
#[macro_export]
macro_rules! waits_suite {
    ($servers:expr) => {
        $crate::waits_suite!(@cases $servers;
            a_wait_is_as_long_as_was_asked
            a_wait_is_no_longer_than_the_holders_before_it
        );
    };
    (@cases $servers:expr; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (_guard, servers) = $servers;
                $crate::conformance::lock_store::$case(&servers).await;
            }
        )*
    };
}
