//! The failover campaign: engines under load are broken again and again, and the replies that their
//! clients got are judged and counted. `cargo run -p fence-tests --bin campaign -- --help` runs it.
//!
//! A [`Row`] is one engine, with flags of the lock servers before it, and one fault. Rows of other
//! engines are written in `campaign/engines`, and named in [`rows`].

pub mod engines;
pub mod load;
pub mod report;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;

use self::load::Clients;
use self::report::Counts;
use crate::api::Locks;
use crate::checks::failover::{Gone, Scope, longest_gaps, lost_leases, token_breaks};
use crate::checks::overlaps;
use crate::history::Granted;
use crate::seed::Seed;
use crate::servers::{Server, Setup};

/// Lock servers of a row.
pub const SERVERS: usize = 2;
/// Clients that use them.
const CLIENTS: usize = 12;
/// Grants between the end of one fault and the next.
const GRANTS_BETWEEN: u64 = 40;

/// Storage of leases, as real processes; gone when dropped.
#[async_trait]
pub trait Engine: Debug + Send {
    /// `--store` of the lock server of this number, from 0.
    fn store(&self, server: usize) -> String;

    /// Does once what the fault says, and waits until the engine is whole again. Panics where it
    /// does not become so: that is a failure of the run.
    async fn hurt(&mut self, fault: &str, seed: &mut Seed);
}

/// An engine that is being started.
pub type Starting = Pin<Box<dyn Future<Output = Box<dyn Engine>> + Send>>;

/// Start of an engine.
pub type Start = fn() -> Starting;

/// One engine with one fault: a line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name, as `--engine` takes it.
    pub engine: &'static str,
    /// Fault that is done to it, as `--fault` takes it.
    pub fault: &'static str,
    /// Flags of each lock server beside its store.
    pub flags: &'static [&'static str],
    /// Among which tokens the engine promises L1; `None` where it does its best.
    pub promise: Option<Scope>,
    /// Starts the engine.
    pub start: Start,
}

impl Row {
    /// The flags as they are typed; `-` where there are none.
    pub fn flags_text(&self) -> String {
        if self.flags.is_empty() { "-".to_owned() } else { self.flags.join(" ") }
    }

    /// One seed makes another sequence in each row, and the same one whichever rows are run.
    fn seed(&self, seed: u64) -> Seed {
        let name = [self.engine, self.fault].into_iter().chain(self.flags.iter().copied());
        // FNV-1a.
        let mixed = name.flat_map(str::bytes).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Seed::new(seed ^ mixed)
    }
}

/// All rows that there are, in the order of the table.
pub fn rows() -> Vec<Row> {
    [
        engines::redis::rows(),
        engines::sentinel::rows(),
        engines::cluster::rows(),
        engines::quorum::rows(),
        engines::etcd::rows(),
    ]
    .concat()
}

/// Replies that the clients of a row got.
#[derive(Clone, Debug)]
pub struct CampaignRecord {
    /// Every grant.
    pub grants: Vec<Granted>,
    /// Every lease that a server called gone.
    pub gone: Vec<Gone>,
    /// When each fault began.
    pub faults_ns: Vec<u64>,
}

/// Runs one row: starts its engine and lock servers, and hurts it `rounds` times under load.
/// `report` gets a line for each round.
///
/// # Errors
/// If nothing was granted for long, or a lock server ended.
///
/// # Panics
/// If a tool of the harness fails, or the engine does not come back.
pub async fn run(
    row: &Row,
    rounds: usize,
    seed: u64,
    report: impl Fn(String) + Send,
) -> Result<CampaignRecord, String> {
    let mut random = row.seed(seed);
    let mut engine = (row.start)().await;
    let mut servers = Vec::new();
    for number in 0..SERVERS {
        servers.push(Setup::lock_server(&engine.store(number)).args(row.flags).start().await);
    }
    let locks: Vec<Locks> = servers.iter().map(Server::locks).collect();
    let clients = Clients::start(&locks, CLIENTS, &mut random);
    let mut faults_ns = Vec::new();
    for round in 1..=rounds {
        clients.progress(GRANTS_BETWEEN).await.map_err(|e| state(&e, &mut servers))?;
        tokio::time::sleep(random.time_ms(0, 300)).await;
        faults_ns.push(clients.notes().history.now_ns());
        engine.hurt(row.fault, &mut random).await;
        report(format!("round {round} of {rounds}, {} grants", clients.notes().grants()));
    }
    clients.progress(GRANTS_BETWEEN).await.map_err(|e| state(&e, &mut servers))?;
    let notes = clients.stop().await;
    Ok(CampaignRecord { grants: notes.history.grants(), gone: notes.gone(), faults_ns })
}

/// Returns the fault with the end of the servers' logs.
fn state(what: &str, servers: &mut [Server]) -> String {
    let logs: Vec<String> = servers.iter_mut().map(|server| server.process.tail()).collect();
    format!("{what}\n{}", logs.join("\n"))
}

/// Judges a row.
pub fn judge(row: &Row, record: &CampaignRecord) -> Counts {
    let gaps = longest_gaps(&record.grants, &record.faults_ns);
    let mut gaps_ms: Vec<u64> = gaps.into_iter().map(|ns| ns / 1_000_000).collect();
    gaps_ms.sort_unstable();
    Counts {
        rounds: record.faults_ns.len(),
        grants: record.grants.len(),
        token_breaks: token_breaks(&record.grants, row.promise.unwrap_or(Scope::Lock)),
        overlaps: overlaps(&record.grants),
        lost_leases: lost_leases(&record.grants, &record.gone),
        gap_median_ms: gaps_ms.get(gaps_ms.len() / 2).copied().unwrap_or(0),
        gap_longest_ms: gaps_ms.last().copied().unwrap_or(0),
    }
}
