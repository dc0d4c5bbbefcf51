//! Runs seeds of the simulation, or replays one.
#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a command of the tests: the terminal is its interface, and it owns its threads"
)]

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Parser;
use fence_simulation::{History, run};

/// Last lines of the history that are shown of a seed that failed.
const LINES_SHOWN: usize = 60;

/// Runs seeds of the simulation; each is a minute of simulated time.
#[derive(Debug, Parser)]
struct Options {
    /// Number of seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Replays one seed, and prints its history.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Threads, each with seeds of its own; as many as there are cores where it is left out.
    #[arg(long)]
    jobs: Option<usize>,
    /// Continues after a seed that failed.
    #[arg(long)]
    keep_going: bool,
}

/// Sums over all threads.
#[derive(Default)]
struct Sum {
    next: AtomicU64,
    passed: AtomicU64,
    failed: Mutex<Vec<u64>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match options.seed {
        Some(seed) => replay(seed),
        None => run_all(&options),
    }
}

/// Runs a seed; a panic of the code under test is a broken promise too.
fn attempt(seed: u64, is_traced: bool) -> History {
    catch_unwind(AssertUnwindSafe(|| run(seed, is_traced))).unwrap_or_else(|_| History {
        violation: Some("it panicked".to_owned()),
        trace: String::new(),
        counts: BTreeMap::new(),
    })
}

fn replay(seed: u64) -> ExitCode {
    let history = attempt(seed, true);
    print!("{}", history.trace);
    match history.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("seed {seed}: {violation}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(options: &Options) -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let sum = Sum::default();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.unwrap_or(cores) {
            scope.spawn(|| work(options, &sum, began));
        }
    });
    let passed = sum.passed.into_inner();
    let failed = sum.failed.into_inner();
    let mut failed = failed.unwrap_or_else(PoisonError::into_inner);
    failed.sort_unstable();
    let counts = sum.counts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let counts: Vec<String> =
        counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    eprintln!("simulated minutes in {:.0?}: {}", began.elapsed(), counts.join(", "));
    println!("simulation: {passed} passed, {} failed", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn work(options: &Options, sum: &Sum, began: Instant) {
    loop {
        let at = sum.next.fetch_add(1, Ordering::Relaxed);
        let has_failed = !sum.failed.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if at >= options.seeds || (has_failed && !options.keep_going) {
            return;
        }
        let seed = options.from + at;
        let history = attempt(seed, false);
        let mut counts = sum.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for (what, count) in &history.counts {
            *counts.entry(what).or_default() += count;
        }
        drop(counts);
        match history.violation {
            None => progress(sum.passed.fetch_add(1, Ordering::Relaxed) + 1, options.seeds, began),
            Some(violation) => {
                sum.failed.lock().unwrap_or_else(PoisonError::into_inner).push(seed);
                report(seed, &violation);
            }
        }
    }
}

/// Prints what broke, the end of its history, and how to replay it.
fn report(seed: u64, violation: &str) {
    let history = attempt(seed, true);
    let lines: Vec<&str> = history.trace.lines().collect();
    for line in &lines[lines.len().saturating_sub(LINES_SHOWN)..] {
        eprintln!("{}", line.chars().take(400).collect::<String>());
    }
    eprintln!("seed {seed}: {violation}");
    eprintln!("replay with: tests/simulation/run --seed {seed}");
}

fn progress(done: u64, all: u64, began: Instant) {
    let is_step = done.is_multiple_of((all / 20).max(1)) || done == all;
    let is_terminal = std::io::stderr().is_terminal();
    let is_shown = is_step || is_terminal && done.is_multiple_of(50);
    if !is_shown {
        return;
    }
    let end = if is_terminal && done != all { '\r' } else { '\n' };
    eprint!("simulation: {done} of {all} seeds, {:.0?}{end}", began.elapsed());
    let _ = std::io::stderr().flush();
}
