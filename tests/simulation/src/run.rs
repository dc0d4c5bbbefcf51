//! One seed: servers, clients and faults for a minute of simulated time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic;
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::audit::{Audit, Kind, RECOVERY_MS, STOP_MS};
use crate::client::Client;
use crate::clock::SimClock;
use crate::faults::Faults;
use crate::seed::Seed;
use crate::server::Fleet;
use crate::store::World;

/// The length of a simulation.
const LENGTH: Duration = Duration::from_secs(60);
/// Faults end here, so that what they broke can be seen to recover.
const FAULTS_END: Duration = Duration::from_secs(42);
/// Interval of the audit's checks of background progress.
const LOOK: Duration = Duration::from_millis(100);
/// Interval at which the engine's memory becomes durable.
const SYNC: Duration = Duration::from_millis(700);

/// Result of a seed.
#[derive(Debug)]
pub struct History {
    /// The broken promise, where one was.
    pub violation: Option<String>,
    /// Everything that happened, a line each; empty unless it was asked for.
    pub trace: String,
    /// Number of times each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
}

thread_local! {
    /// The last panic of this thread: tasks keep theirs to themselves.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn watch_panics() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        panic::set_hook(Box::new(|info| PANIC.set(Some(info.to_string()))));
    });
}

/// Runs one seed. A panic of the code under test is a broken promise: the rules check themselves in
/// this build.
///
/// # Panics
/// If no runtime can be made.
pub fn run(seed: u64, is_traced: bool) -> History {
    watch_panics();
    PANIC.take();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let mut history = runtime.block_on(simulate(Seed::new(seed), is_traced));
    history.violation = history.violation.or_else(|| PANIC.take());
    // Whatever still runs is dropped with its runtime.
    runtime.shutdown_background();
    history
}

async fn simulate(mut seed: Seed, is_traced: bool) -> History {
    let began = Instant::now();
    let kind = if seed.below(6) == 0 { Kind::Alone } else { Kind::Shared };
    let faults = match seed.below(10) {
        0 | 1 => Faults::calm(&mut seed),
        2 => Faults::of_messages(&mut seed),
        3 => Faults::of_stops(&mut seed),
        _ => Faults::some(&mut seed),
    };
    let servers = if kind == Kind::Alone { 1 } else { 1 + seed.below(3) as usize };
    // Many wait for one lock, or few for several.
    let is_hot = seed.below(4) == 0;
    let clients = if is_hot { 8 + seed.below(9) } else { 2 + seed.below(6) };
    let time = Arc::new(SimClock::new(began, 1));
    let has_clock = kind == Kind::Alone || seed.below(3) > 0;
    let mut world = World::new(time, seed.fork(), faults, Audit::for_kind(kind), is_traced);
    world.has_clock = has_clock;
    let world = Arc::new(world);
    world.log(|| {
        let clock = if has_clock { "" } else { " with clocks of their own" };
        format!("{kind:?}, {servers} servers{clock}, {clients} clients, {faults:?}")
    });
    let fleet = Fleet::start(&world, kind, servers).await;
    for number in 0..clients {
        let client = Client::new(number, is_hot, seed.fork(), world.clone(), fleet.clone());
        tokio::spawn(client.live());
    }
    tokio::spawn(break_things(world.clone(), fleet.clone(), seed.fork(), faults, kind));
    let end = began + LENGTH;
    while Instant::now() < end && world.state().audit.violation().is_none() {
        sleep(LOOK).await;
        world.check_audit();
    }
    let trace = world.take_trace();
    let state = world.state();
    History {
        violation: state.audit.violation().map(ToOwned::to_owned),
        trace,
        counts: state.audit.counts().clone(),
    }
}

/// Faults of whole processes, until they end and everything recovers.
async fn break_things(
    world: Arc<World>,
    fleet: Arc<Fleet>,
    mut seed: Seed,
    faults: Faults,
    kind: Kind,
) {
    let end = Instant::now() + FAULTS_END;
    let synced = world.clone();
    tokio::spawn(async move {
        loop {
            sleep(SYNC).await;
            synced.sync();
        }
    });
    while faults.pause_ms > 0 && Instant::now() < end {
        sleep(Duration::from_millis(seed.below(2 * faults.pause_ms))).await;
        let place = seed.below(fleet.count() as u64) as usize;
        match seed.below(4) {
            0 if faults.stops => {
                let grace = seed.below(3) * seed.below(800);
                fleet.stop(place, Duration::from_millis(grace)).await;
                sleep(Duration::from_millis(seed.below(2_500))).await;
                fleet.restart(place).await;
                world.trouble(STOP_MS);
            }
            1 if faults.stalls => {
                fleet.stall(place, seed.time_ms(100, 6_000));
                world.trouble(RECOVERY_MS);
            }
            2 if faults.losses && kind == Kind::Shared => world.lose_memory(),
            3 if faults.steps && kind == Kind::Shared && world.has_clock => match seed.below(4) {
                0 => world.step_clock_forward(seed.below(1_000)),
                1 => world.step_clock_forward(1_001 + seed.below(58_000)),
                2 => world.step_clock_forward(60_001 + seed.below(60_000)),
                _ => world.step_clock_back(seed.below(2_000)),
            },
            _ => {}
        }
    }
    sleep_until(end).await;
    for place in 0..fleet.count() {
        fleet.restart(place).await;
    }
    world.end_faults();
}
