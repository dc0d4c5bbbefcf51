//! `fence bench guard --redis`: SET and GET through the guard's Redis port, beside Redis itself and
//! beside twemproxy, a proxy that does nothing but forward.

mod client;
mod peers;

use std::time::Duration;

use service_kit::signals;

use self::client::Work;
use self::peers::Peers;
pub(super) use self::peers::plain_address;
use super::Load;
use super::load;
use super::load::Side;
use super::report::{Report, Row};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Output, say};

/// Numbers of clients without `--clients`.
const CLIENTS: [u16; 3] = [1, 16, 64];
/// Duration of a measurement without `--time`.
const TIME: Duration = Duration::from_millis(500);
/// SIGINT, for the exit code of a benchmark that was interrupted.
const INTERRUPT: u8 = 2;

/// Operation, bytes of its value, and requests that are sent before a reply is awaited.
const WORKS: [Work; 6] = [
    Work { verb: "SET", value_bytes: 100, pipeline: 1 },
    Work { verb: "GET", value_bytes: 100, pipeline: 1 },
    Work { verb: "SET", value_bytes: 100, pipeline: 16 },
    Work { verb: "GET", value_bytes: 100, pipeline: 16 },
    Work { verb: "SET", value_bytes: 4096, pipeline: 1 },
    Work { verb: "GET", value_bytes: 4096, pipeline: 1 },
];

/// Measures; the exit code.
pub(super) async fn bench(url: &str, load: Load, output: Output) -> Result<u8, Failure> {
    let counts = load.clients.map_or(CLIENTS.to_vec(), |clients| vec![clients]);
    let most = counts.iter().copied().max().unwrap_or(1);
    let peers = Peers::start(url, most).await?;
    let measured = tokio::select! {
        measured = measure(&peers, load, &counts) => measured,
        () = signals::terminated() => {
            Err(Failure::new(code::SIGNAL_BASE + INTERRUPT, "the benchmark was interrupted"))
        }
    };
    let mut report = Report::new(load.rounds, time(load));
    report.missing = peers.missing();
    peers.end().await?;
    report.rows = measured?;
    output.print(&report, Report::table)?;
    Ok(code::OK)
}

fn time(load: Load) -> Duration {
    load.time.unwrap_or(TIME)
}

async fn measure(peers: &Peers, load: Load, counts: &[u16]) -> Result<Vec<Row>, Failure> {
    let most = counts.iter().copied().max().unwrap_or(1);
    let mut columns = Vec::new();
    for peer in peers.columns() {
        let mut pipes = Vec::new();
        for number in 0..most {
            pipes.push(peer.open(number).await?);
        }
        columns.push((peer, pipes));
    }
    let mut rows = Vec::new();
    for work in WORKS {
        for (_, pipes) in &mut columns {
            client::fill(pipes, work).await?;
        }
        for &clients in counts {
            let sides = columns.iter_mut().map(|(peer, pipes)| Side {
                name: peer.name.to_owned(),
                clients: &mut pipes[..usize::from(clients)],
                counted: &peer.counted,
            });
            let measured = load::compare(load.rounds, time(load), sides.collect()).await?;
            let row = Row::new(&work.to_string(), clients, &measured);
            say(row.text().trim_end());
            rows.push(row);
        }
    }
    Ok(rows)
}
