//! `fence bench guard --postgres`: pgbench through the guard's PostgreSQL port, beside PostgreSQL
//! itself and beside pgbouncer and HAProxy, which only forward.

mod peers;

use std::process::Stdio;
use std::time::Duration;

use service_kit::signals;
use tempfile::TempDir;
use tokio::process::Command;

use self::peers::{Peer, Peers};
use super::load::{self, Measured};
use super::report::{Report, Row};
use super::{Load, cpu};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Output, say};
use fence_terminal::status::StatusLine;

/// Numbers of clients without `--clients`.
const CLIENTS: [u16; 3] = [1, 16, 64];
/// Duration of a measurement without `--time`; pgbench counts whole seconds. In the first one the
/// server's sessions are slow.
const TIME: Duration = Duration::from_secs(5);
/// SIGINT, for the exit code of a benchmark that was interrupted.
const INTERRUPT: u8 = 2;
/// One-row update of a table with 100 000 rows a unit of scale.
const UPDATE: &str = "\\set aid random(1, 100000 * :scale)\n\
                      UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n";
/// Share of the transactions whose latency pgbench writes down.
const SAMPLED: &str = "--sampling-rate=0.2";

/// Runs of pgbench: name, mode of the protocol, `true` for a write.
const WORKS: [(&str, &str, bool); 4] = [
    ("UPDATE", "simple", true),
    ("UPDATE, prepared", "prepared", true),
    ("SELECT", "simple", false),
    ("SELECT, prepared", "prepared", false),
];

/// Measures; the exit code.
pub(super) async fn bench(load: Load, output: Output) -> Result<u8, Failure> {
    let counts = load.clients.map_or(CLIENTS.to_vec(), |clients| vec![clients]);
    let most = counts.iter().copied().max().unwrap_or(1);
    let time = Duration::from_secs(load.time.unwrap_or(TIME).as_secs().max(1));
    let peers = Peers::start(most).await?;
    let measured = tokio::select! {
        measured = measure(&peers, load.rounds, time, &counts) => measured,
        () = signals::terminated() => {
            Err(Failure::new(code::SIGNAL_BASE + INTERRUPT, "the benchmark was interrupted"))
        }
    };
    let mut report = Report::new(load.rounds, time);
    report.missing = peers.missing();
    peers.end().await;
    report.rows = measured?;
    output.print(&report, Report::table)?;
    Ok(code::OK)
}

async fn measure(
    peers: &Peers,
    rounds: u8,
    time: Duration,
    counts: &[u16],
) -> Result<Vec<Row>, Failure> {
    let folder = TempDir::new().map_err(broken)?;
    let script = folder.path().join("update.sql");
    std::fs::write(&script, UPDATE).map_err(broken)?;
    let script = script.display().to_string();
    let status = StatusLine::default();
    let columns = peers.columns();
    let mut rows = Vec::new();
    for (what, mode, writes) in WORKS {
        let work = match writes {
            true => ["-M", mode, "-f", script.as_str()],
            false => ["-M", mode, "-b", "select-only"],
        };
        for &clients in counts {
            let mut measured: Vec<(String, Vec<Measured>)> =
                columns.iter().map(|peer| (peer.name.to_owned(), Vec::new())).collect();
            for round in 0..usize::from(rounds) {
                for turn in 0..columns.len() {
                    // Each round begins with another side, so that none has a turn of its own.
                    let at = (round + turn) % columns.len();
                    let name = columns[at].name;
                    status.show(&format!("{what}, {name}, {clients} clients: round {round}"));
                    peers.end_sessions().await?;
                    let pgbench = peers.pgbench(&columns[at]);
                    let result = run(pgbench, &columns[at], &work, clients, time).await?;
                    measured[at].1.push(result);
                }
            }
            let row = Row::new(what, clients, &measured);
            say(row.text().trim_end());
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Runs pgbench once.
async fn run(
    mut pgbench: Command,
    peer: &Peer,
    work: &[&str],
    clients: u16,
    time: Duration,
) -> Result<Measured, Failure> {
    let folder = TempDir::new().map_err(broken)?;
    let clients = clients.to_string();
    let seconds = time.as_secs().to_string();
    pgbench.args(["-n", "-j", "1", "-c", &clients, "-T", &seconds, "-l", SAMPLED]).args(work);
    pgbench.arg(format!("--log-prefix={}", folder.path().join("log").display()));
    pgbench.stdin(Stdio::null()).kill_on_drop(true);
    let before = peer.proxy.and_then(|(_, pid)| cpu::used(pid));
    let output = pgbench.output().await.map_err(broken)?;
    let after = peer.proxy.and_then(|(_, pid)| cpu::used(pid));
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = || {
        let errors = String::from_utf8_lossy(&output.stderr);
        let message = format!("pgbench, {}: {}{said}", peer.name, errors.trim_end());
        Failure::new(code::UNAVAILABLE, message)
    };
    let figure = |begin: &str| {
        said.lines().find_map(|line| line.strip_prefix(begin)?.split_whitespace().next())
    };
    let per_sec = figure("tps = ").and_then(|text| text.parse::<f64>().ok());
    let done = figure("number of transactions actually processed: ");
    let done = done.and_then(|text| text.parse::<u64>().ok());
    let (Some(per_sec), Some(done), true) = (per_sec, done, output.status.success()) else {
        return Err(failed());
    };
    if done == 0 || !per_sec.is_normal() {
        return Err(failed());
    }
    let mut latency = load::histogram()?;
    for entry in folder.path().read_dir().map_err(broken)?.flatten() {
        let log = std::fs::read_to_string(entry.path()).map_err(broken)?;
        // Client, transaction, latency in microseconds, and more.
        let micros = log.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok());
        micros.for_each(|micros| latency.saturating_record(micros.max(1)));
    }
    let used = peer.proxy.and_then(|(name, _)| Some((name, after?.saturating_sub(before?))));
    // The rate leaves out the time that the connections took.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let took = Duration::from_secs_f64(done as f64 / per_sec);
    Ok(Measured { done, took, latency, cpu: used.into_iter().collect() })
}

fn broken(error: std::io::Error) -> Failure {
    Failure::new(code::UNAVAILABLE, error.to_string())
}
