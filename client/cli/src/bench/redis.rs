//! `fence bench guard --redis`: SET and GET through the guard's Redis port, beside Redis itself and
//! beside twemproxy, a proxy that does nothing but forward.

mod client;
mod grid;
mod peers;

use std::time::Duration;

use service_kit::signals;

use self::client::{Pipe, Work};
use self::grid::{Cell, Grid};
use self::peers::Peers;
pub(super) use self::peers::plain_address;
use super::Load;
use super::load;
use super::report::Side;
use crate::exit::{Failure, code};
use crate::output::{Output, say};

/// How many clients, where `--clients` does not say.
const CLIENTS: [u16; 3] = [1, 16, 64];
/// How long a measurement takes, where `--time` does not say.
const TIME: Duration = Duration::from_millis(500);
/// Before each measurement the side runs for this long uncounted.
const WARM_UP: Duration = Duration::from_millis(30);
/// SIGINT, for the exit code of a benchmark that was interrupted.
const INTERRUPT: u8 = 2;

/// What is sent, how many bytes its value has, and how many are sent before a reply is awaited.
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
    let peers = Peers::start(url).await?;
    let measured = tokio::select! {
        measured = measure(&peers, load) => measured,
        () = signals::terminated() => {
            Err(Failure::new(code::SIGNAL_BASE + INTERRUPT, "the benchmark was interrupted"))
        }
    };
    let missing = peers.missing();
    peers.end().await?;
    output.print(&Grid::new(measured?, load.rounds, time(load), missing), Grid::table)?;
    Ok(code::OK)
}

fn time(load: Load) -> Duration {
    load.time.unwrap_or(TIME)
}

async fn measure(peers: &Peers, load: Load) -> Result<Vec<Cell>, Failure> {
    let counts = load.clients.map_or(CLIENTS.to_vec(), |clients| vec![clients]);
    let most = counts.iter().copied().max().unwrap_or(1);
    let mut columns = Vec::new();
    for peer in peers.columns() {
        let mut pipes = Vec::new();
        for number in 0..most {
            pipes.push(Pipe::open(&peer.at, peer.credential.as_deref(), number).await?);
        }
        columns.push((peer, pipes));
    }
    let mut cells = Vec::new();
    for work in WORKS {
        for (peer, pipes) in &mut columns {
            client::fill(pipes, &peer.prefix, work).await?;
        }
        for &clients in &counts {
            let mut sides: Vec<Side> =
                columns.iter().map(|(peer, _)| Side::new(peer.name)).collect();
            for round in 0..usize::from(load.rounds) {
                // Each round begins with another side, so that none has a place of its own.
                for turn in 0..columns.len() {
                    let at = (round + turn) % columns.len();
                    let pipes = &mut columns[at].1[..usize::from(clients)];
                    load::run(pipes, WARM_UP).await?;
                    let mut measured = load::run(pipes, time(load)).await?;
                    measured.done *= u64::from(work.pipeline);
                    sides[at].add(measured);
                }
            }
            let cell = Cell::new(work, clients, &sides);
            say(&cell.line());
            cells.push(cell);
        }
    }
    Ok(cells)
}
