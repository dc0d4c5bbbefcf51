//! The failover campaign as a command: the table of docs/reference/failover.md.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command: the table on standard output, progress on standard error"
)]

use std::process::ExitCode;

use clap::Parser;
use fence_tests::campaign::report::{self, Counts};
use fence_tests::campaign::{self, Row};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinError, JoinSet};

/// Breaks real engines under load, judges the replies that their clients got, and prints a table.
///
/// Each row starts its engine and two lock servers, sets twelve clients with short leases on four
/// locks to work, and hurts the engine once a round. Build the servers first: cargo build
/// --workspace --bins.
#[derive(Debug, Parser)]
#[command(name = "campaign", after_help = EXAMPLES)]
struct Args {
    /// Only rows of these engines; may be repeated.
    #[arg(long, value_name = "NAME")]
    engine: Vec<String>,
    /// Only rows with these faults; may be repeated.
    #[arg(long, value_name = "NAME")]
    fault: Vec<String>,
    /// Only rows whose flags of lock-server contain this text; - for those without any.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    flags: Option<String>,
    /// Faults that each row gets.
    #[arg(long, value_name = "N", default_value_t = 20)]
    rounds: usize,
    /// Repeats the choices of an earlier run; the scheduling of processes is not repeated.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Rows that run at the same time.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=16),
    )]
    jobs: u16,
    /// Print JSON with every finding in place of the table.
    #[arg(long)]
    json: bool,
    /// Print the names of the rows, and run nothing.
    #[arg(long)]
    list: bool,
}

const EXAMPLES: &str = "\
Examples:
  The whole table, three rows at a time:
    cargo run -p fence-tests --bin campaign -- --jobs 3
  One row, as it was run before:
    cargo run -p fence-tests --bin campaign -- \
            --engine sentinel --fault kill-master --flags - --seed 7
  What exactly was broken:
    cargo run -p fence-tests --bin campaign -- --engine sentinel --fault split-network --json
Exit codes: 0 done, 1 L1 is broken where the engine promises it, 2 a row could not be run to its\
\x20end, 64 bad arguments.";

#[tokio::main]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    let rows = chosen(&args);
    if rows.is_empty() {
        eprintln!("no row has this engine, fault and flags; --list names all");
        return ExitCode::from(64);
    }
    if args.list {
        for row in rows {
            println!("{} {} {}", row.engine, row.fault, row.flags_text());
        }
        return ExitCode::SUCCESS;
    }
    // What a signal ends ends its processes, too: they belong to what is dropped here.
    tokio::select! {
        code = all(&args, rows) => code,
        () = ended() => ExitCode::from(2),
    }
}

fn chosen(args: &Args) -> Vec<Row> {
    let among = |names: &[String], name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let mut rows = campaign::rows();
    rows.retain(|row| {
        let flags = row.flags_text();
        among(&args.engine, row.engine)
            && among(&args.fault, row.fault)
            && args.flags.as_ref().is_none_or(|text| match text.as_str() {
                "-" => row.flags.is_empty(),
                text => flags.contains(text),
            })
    });
    rows
}

async fn ended() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Runs the rows, `--jobs` at a time, and prints what they came to in their own order.
async fn all(args: &Args, rows: Vec<Row>) -> ExitCode {
    let mut waiting = rows.iter().copied().enumerate();
    let mut running = JoinSet::new();
    let mut results: Vec<Option<Counts>> = vec![None; rows.len()];
    for (at, row) in waiting.by_ref().take(usize::from(args.jobs)) {
        running.spawn(one(at, row, args.rounds, args.seed));
    }
    let mut failed = false;
    while let Some(done) = running.join_next().await {
        match done {
            Ok((at, Ok(counts))) => results[at] = Some(counts),
            Ok((at, Err(error))) => {
                failed = true;
                eprintln!("{}: {error}", name(&rows[at]));
            }
            Err(error) => {
                failed = true;
                eprintln!("a row failed: {}", panic_text(error));
            }
        }
        if let Some((at, row)) = waiting.next() {
            running.spawn(one(at, row, args.rounds, args.seed));
        }
    }
    let results: Vec<(Row, Counts)> =
        rows.into_iter().zip(results).filter_map(|(row, counts)| Some((row, counts?))).collect();
    if args.json {
        println!("{:#}", report::json(&results, args.seed));
    } else {
        print!("{}", report::markdown(&results));
    }
    let broken = results.iter().any(|(row, counts)| counts.breaks_promise(row));
    ExitCode::from(if failed { 2 } else { u8::from(broken) })
}

async fn one(at: usize, row: Row, rounds: usize, seed: u64) -> (usize, Result<Counts, String>) {
    let report = |text: String| eprintln!("{}: {text}", name(&row));
    let record = campaign::run(&row, rounds, seed, report).await;
    (at, record.map(|record| campaign::judge(&row, &record)))
}

fn name(row: &Row) -> String {
    format!("{} {} {}", row.engine, row.fault, row.flags_text())
}

fn panic_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(_) => "see above".to_owned(),
        },
        Err(error) => error.to_string(),
    }
}
