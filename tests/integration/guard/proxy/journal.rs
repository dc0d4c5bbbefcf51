//! The journal oracle: many holders, an origin that misbehaves in every way, and guards that are
//! killed, paused and restarted. The order in which the origin applied the writes is judged, not
//! what the guard says of it.
//!
//! Short by default; `FENCE_LONG=1` makes it long, and `FENCE_SEED` repeats a run's choices.

use std::sync::Arc;

use fence_tests::http_holders::{Holders, Target};
use fence_tests::journal::{Entry, Journal};
use fence_tests::journal_origin::{EFFECT_MAX, Fate, Origin};
use fence_tests::seed::{Seed, rounds};

use super::*;

const LOCKS: usize = 12;

/// A guard that keeps its addresses when it is restarted.
struct Guarded {
    setup: Setup,
    server: Server,
    ports: [u16; 2],
    _state: DataDir,
}

impl Guarded {
    async fn new(origin: &Origin) -> Self {
        let state = DataDir::new();
        let ports = [fence_tests::ports::unused(), fence_tests::ports::unused()];
        let [guard, proxy] = ports.map(|port| format!("127.0.0.1:{port}"));
        let lifetime = format!("{}ms", 2 * EFFECT_MAX.as_millis());
        let setup = Setup::bare("fenced-store")
            .listen(guard)
            .args(&["--unsigned", "--proxy-listen", &proxy, "--upstream", origin.base()])
            .args(&["--max-request-lifetime", &lifetime])
            .args(&["--upstream-timeout", "300ms", "--drain-wait", "200ms"])
            .args(&["--state", fence_tests::key_file::text(&state.path())]);
        let server = setup.start().await;
        Self { setup, server, ports, _state: state }
    }

    fn target(&self, lock: usize) -> Target {
        let [guard, proxy] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        Target { proxy, guard, lock: format!("lock-{lock}") }
    }

    /// Kills, restarts or pauses it.
    async fn hurt(&mut self, fault: u64, seed: &mut Seed) {
        match fault % 3 {
            0 => self.server.process.kill(),
            1 => {
                self.server.process.pause();
                tokio::time::sleep(seed.time_ms(1, 700)).await;
                return self.server.process.resume();
            }
            _ => {
                self.server.process.terminate();
                self.server.process.ended().await;
            }
        }
        self.server = self.setup.start().await;
    }
}

/// Waits until so many of the locks have acknowledged writes.
async fn progress(locks: &[Holders], count: usize) {
    let before: Vec<u64> = locks.iter().map(Holders::applied).collect();
    until_true("writes to be acknowledged", || async {
        let moved = locks.iter().zip(&before).filter(|(lock, before)| lock.applied() > **before);
        moved.count() >= count
    })
    .await;
}

async fn round(seed: &mut Seed) {
    let origin = Arc::new(Origin::start(seed));
    let mut guard = Guarded::new(&origin).await;
    let mut locks: Vec<Holders> =
        (0..LOCKS).map(|lock| Holders::new(guard.target(lock), &origin, seed)).collect();
    locks.iter_mut().for_each(Holders::succeed);
    let first = seed.below(3);
    for fault in first..first + 3 {
        for _ in 0..2 {
            for _ in 0..LOCKS / 2 {
                let lock = usize::try_from(seed.below(LOCKS as u64)).unwrap();
                locks[lock].succeed();
            }
            progress(&locks, 2).await;
        }
        guard.hurt(fault, seed).await;
    }
    locks.iter_mut().for_each(Holders::succeed);
    progress(&locks, LOCKS / 2).await;
    let misbehaved = || {
        let fates = origin.fates();
        Fate::BAD.iter().filter(|fate| fates.contains_key(fate)).count()
    };
    until_true("the origin to misbehave in most ways", || async { misbehaved() > 6 }).await;
    let mut reports = [0; 4];
    for holders in locks {
        let journal = holders.stop().await;
        journal.check().unwrap();
        journal.never_overtaken().unwrap();
        for answer in &journal.answers {
            reports[answer.report as usize] += 1;
        }
    }
    assert!(reports.iter().all(|count| *count > 0), "{reports:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_falls_at_an_origin_that_misbehaves_in_every_way() {
    let mut seed = Seed::of_run("no_token_falls_at_an_origin_that_misbehaves_in_every_way");
    for _ in 0..rounds(1, 40) {
        round(&mut seed).await;
    }
}

/// The other side of `bounded`: beyond the lifetime that the operator stated nothing is promised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_later_than_the_stated_lifetime_lands_on_top_of_a_newer_one() {
    let lane = Lane::new("2s").await;
    let mut hold = lane.upstream.hold("33");
    let late = lane.put("/doc", &token(33), "33").await;
    hold.arrived().await;
    late.problem(Code::OutcomeUnknown);
    let newer = token(34);
    until_true("the quarantine to end", || async {
        lane.put("/doc", &newer, "34").await.status == 204
    })
    .await;
    hold.release();
    until_true("both writes to take effect", || async { lane.upstream.log().len() == 2 }).await;
    let entries = lane.upstream.values().into_iter();
    let entries = entries.map(|op| Entry { token: op.parse().unwrap(), op }).collect();
    let broken = Journal { entries, ..Journal::default() }.check().unwrap_err();
    assert!(broken.starts_with("G1"), "{broken}");
}
