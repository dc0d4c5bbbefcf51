//! `fence bench guard --http`: PUT through the guard's reverse proxy, beside the origin itself and
//! beside nginx and HAProxy, which do nothing but forward.

pub(crate) mod origin;
mod peers;

use std::time::Duration;

use service_kit::signals;

use self::peers::{Peer, Peers};
use super::load::{self, Client, Side};
use super::report::{Report, Row};
use super::{Load, http};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Output, say};

/// Numbers of clients without `--clients`.
const CLIENTS: [u16; 3] = [1, 16, 64];
/// Duration of a measurement without `--time`.
const TIME: Duration = Duration::from_millis(500);
/// SIGINT, for the exit code of a benchmark that was interrupted.
const INTERRUPT: u8 = 2;
/// Content of an object.
const VALUE: [u8; 1024] = [b'x'; 1024];

/// Measures; the exit code.
pub(super) async fn bench(load: Load, output: Output) -> Result<u8, Failure> {
    let counts = load.clients.map_or(CLIENTS.to_vec(), |clients| vec![clients]);
    let most = counts.iter().copied().max().unwrap_or(1);
    let peers = Peers::start(most).await?;
    let measured = tokio::select! {
        measured = measure(&peers, load, &counts) => measured,
        () = signals::terminated() => {
            Err(Failure::new(code::SIGNAL_BASE + INTERRUPT, "the benchmark was interrupted"))
        }
    };
    let mut report = Report::new(load.rounds, load.time.unwrap_or(TIME));
    report.missing = peers.missing();
    peers.end().await;
    report.rows = measured?;
    output.print(&report, Report::table)?;
    Ok(code::OK)
}

async fn measure(peers: &Peers, load: Load, counts: &[u16]) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for &clients in counts {
        let mut columns = Vec::new();
        for peer in peers.columns() {
            let mut writers = Vec::new();
            for number in 0..clients {
                // A server cuts a connection that brings no request.
                writers.push(Writer::open(&peer, number).await?);
            }
            columns.push((peer, writers));
        }
        let sides = columns.iter_mut().map(|(peer, writers)| Side {
            name: peer.name.to_owned(),
            clients: writers,
            counted: &peer.counted,
        });
        let time = load.time.unwrap_or(TIME);
        let measured = load::compare(load.rounds, time, sides.collect()).await?;
        let row = Row::new("PUT 1 KiB", clients, &measured);
        say(row.text().trim_end());
        rows.push(row);
    }
    Ok(rows)
}

/// A client that overwrites one object.
struct Writer {
    connection: http::Connection,
    path: String,
    header: String,
}

impl Writer {
    async fn open(peer: &Peer, number: u16) -> Result<Self, Failure> {
        let (path, token) = peer.resource(number);
        let header = token.map_or(String::new(), |token| format!("fencing-token: {token}\r\n"));
        let connection = http::Connection::open(&peer.url, None).await;
        let connection = connection.map_err(|error| Failure::new(code::UNAVAILABLE, error))?;
        Ok(Self { connection, path, header })
    }
}

impl Client for Writer {
    async fn begin(&mut self) -> Result<(), String> {
        self.connection.reopen().await
    }

    async fn once(&mut self, _number: u64) -> Result<(), String> {
        match self.connection.send("PUT", &self.path, &self.header, &VALUE).await? {
            (200..300, _) => Ok(()),
            (status, body) => Err(format!("PUT: {status} {}", String::from_utf8_lossy(&body))),
        }
    }
}
