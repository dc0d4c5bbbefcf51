//! `fence bench lock`: lock servers beside the least that their stores could do.

mod clients;
mod etcd_lock;
mod large;
mod peers;
pub(crate) mod thin;

use std::path::PathBuf;

use service_kit::signals;

use self::clients::{Target, Work, Worker};
use self::peers::{ALWAYS, Counted, EVERY_SECOND, Etcd, Peer, Redis};
use super::load::{self, Measured};
use super::report::{LOAD_GENERATOR, Report, Row, Side};
use super::{Load, cpu};
use crate::exit::{Failure, code};
use crate::output::{Output, say};

/// How many clients, where `--clients` does not say.
const CLIENTS: [u16; 3] = [1, 16, 64];
/// The same of one lock that all of them want.
const CONTENDERS: u16 = 16;
/// Before each measurement a side runs uncounted for this part of the time.
const WARM_UP_PART: u32 = 10;
/// SIGINT, for the exit code of a benchmark that was interrupted.
const INTERRUPT: u8 = 2;

/// Lock servers, beside raw Redis, a thin HTTP handler, etcd's own lock and Redlock
///
/// A base is the least that its store can do for a lock with a token: raw Redis runs two scripts of
/// three calls, one connection a client. Each round measures the base and then the server; the ratio
/// is the median of the rounds' own ratios. docs/reference/performance.md describes every row.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence bench lock                                   memory, embedded and redis
  fence bench lock --redis --etcd --quorum           every store
  fence bench lock --redis redis://127.0.0.1:6379 --clients 64 --rounds 3 --time 1s
  fence bench lock --large                           a million leases, ten thousand waiters
  fence bench lock --server http://127.0.0.1:7420 --output json")]
pub(super) struct Args {
    /// A lock server that is running, in place of the benchmark's own [with --redis beside raw Redis]
    #[arg(long, value_name = "URL", conflicts_with_all = ["etcd", "quorum", "large"])]
    server: Option<String>,
    /// The file with the bearer token, where the running server asks who it is; its principal needs
    /// the right "use bench/*"
    #[arg(long, value_name = "FILE", requires = "server")]
    auth_file: Option<PathBuf>,
    /// The Redis (no password) of the rows on redis [default: one of the benchmark's own, with
    /// appendfsync everysec]. What is written there is deleted at the end
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "own")]
    redis: Option<String>,
    /// Measure etcd too: the lock server on it, beside its own lock
    #[arg(long)]
    etcd: bool,
    /// Measure a quorum of three Redis too, beside Redlock on them
    #[arg(long)]
    quorum: bool,
    /// Measure so many live leases beside a thousand, and a hundredth of it as waiters
    #[arg(long, value_name = "LEASES", num_args = 0..=1, default_missing_value = "1000000",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    large: Option<u32>,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    output: Output,
    /// A TOML file with settings, by the names of the flags
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) async fn bench(args: Args) -> Result<u8, Failure> {
    let mut bench =
        Bench { load: args.load, report: Report::new(args.load, Vec::new()), failed: None };
    let mut redis = match args.redis.as_deref() {
        None if args.server.is_some() => None,
        None | Some("own") => bench.started("redis", Redis::start(EVERY_SECOND).await),
        Some(url) => Some(Redis::given(url).await?),
    };
    tokio::select! {
        () = measure(&mut bench, &args, redis.as_mut()) => {}
        () = signals::terminated() => {
            let interrupted = Failure::new(code::SIGNAL_BASE + INTERRUPT, "the benchmark was interrupted");
            bench.failed.get_or_insert(interrupted);
        }
    }
    if let Some(redis) = redis {
        redis.end().await?;
    }
    args.output.print(&bench.report, Report::table)?;
    bench.failed.map_or(Ok(code::OK), Err)
}

/// Measures every row that was asked for. One that fails is left out, and the others are measured.
async fn measure(bench: &mut Bench, args: &Args, mut redis: Option<&mut Redis>) {
    if let Some(url) = &args.server {
        let measured = running(bench, args, url, redis).await;
        return bench.check("the server", measured);
    }
    let measured = on_redis(bench, redis.as_deref_mut()).await;
    bench.check("redis and memory", measured);
    let measured = durable(bench).await;
    bench.check("appendfsync always and embedded", measured);
    if args.etcd {
        let measured = on_etcd(bench).await;
        bench.check("etcd", measured);
    }
    if args.quorum {
        let measured = on_quorum(bench, redis).await;
        bench.check("quorum", measured);
    }
    if let Some(leases) = args.large {
        let measured = large::measure(bench, leases).await;
        bench.check("many leases", measured);
    }
}

/// A server that is running.
async fn running(
    bench: &mut Bench,
    args: &Args,
    url: &str,
    mut redis: Option<&mut Redis>,
) -> Result<(), Failure> {
    let auth = load::auth(args.auth_file.as_deref())?;
    let target = Target::Http { urls: vec![url.to_owned()], auth };
    let server = Peer::of("the server", target, Vec::new());
    let raw = redis.as_deref_mut().map(|redis| redis.raw("raw Redis")).transpose()?;
    bench.distinct("running server", raw.as_ref(), &server).await?;
    let baton = redis.map(Redis::baton).transpose()?;
    bench.contended("running server", baton.as_ref(), &server).await
}

/// Leases in Redis, and in memory beside a handler on that Redis.
async fn on_redis(bench: &mut Bench, redis: Option<&mut Redis>) -> Result<(), Failure> {
    let memory = Peer::alone("lock-server, memory", "memory:").await?;
    let Some(redis) = redis else {
        bench.distinct("memory", None, &memory).await?;
        return bench.contended("memory", None, &memory).await;
    };
    let (raw, baton) = (redis.raw("raw Redis")?, redis.baton()?);
    let served = redis.lock_servers("lock-server, redis", 1, &[]).await?;
    bench.distinct("redis", Some(&raw), &served).await?;
    bench.contended("redis", Some(&baton), &served).await?;
    let quiet = redis.lock_servers("--event-history 0", 1, &["--event-history", "0"]).await?;
    let clients = bench.most_clients();
    bench.compare("redis, events", clients, Work::Distinct, Some(&quiet), &served).await?;
    quiet.end().await;
    served.end().await;

    let two = redis.lock_servers("two lock-servers, redis", 2, &[]).await?;
    bench.contended("redis, two servers in turns", Some(&baton), &two).await?;
    two.end().await;

    let handler = redis.thin_handler().await?;
    bench.distinct("memory", Some(&handler), &memory).await?;
    bench.contended("memory", Some(&baton), &memory).await
}

/// Leases on disk before they are acknowledged.
async fn durable(bench: &mut Bench) -> Result<(), Failure> {
    let embedded = Peer::alone("lock-server, embedded", "embedded:").await?;
    let Some(mut redis) = bench.started("redis, always", Redis::start(ALWAYS).await) else {
        bench.distinct("embedded", None, &embedded).await?;
        return bench.contended("embedded", None, &embedded).await;
    };
    let (raw, baton) = (redis.raw("raw Redis, always")?, redis.baton()?);
    let served = redis.lock_servers("lock-server, redis, always", 1, &[]).await?;
    bench.distinct("redis, appendfsync always", Some(&raw), &served).await?;
    served.end().await;
    bench.distinct("embedded", Some(&raw), &embedded).await?;
    bench.contended("embedded", Some(&baton), &embedded).await?;
    redis.end().await
}

async fn on_etcd(bench: &mut Bench) -> Result<(), Failure> {
    let Some(etcd) = bench.started("etcd", Etcd::start().await) else { return Ok(()) };
    let (own, served) = (etcd.own_lock(), etcd.lock_server().await?);
    bench.distinct("etcd", Some(&own), &served).await?;
    bench.contended("etcd", Some(&own), &served).await
}

async fn on_quorum(bench: &mut Bench, redis: Option<&mut Redis>) -> Result<(), Failure> {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        match bench.started("quorum", Redis::start(EVERY_SECOND).await) {
            Some(node) => nodes.push(node),
            None => return Ok(()),
        }
    }
    let urls: Vec<String> = nodes.iter().map(|node| node.url().to_owned()).collect();
    let counted: Vec<Counted> = nodes.iter().flat_map(Redis::counted).collect();
    let store = format!("redis-quorum:{}", urls.join(","));
    let redlock = Peer::of("Redlock without a token", Target::Redlock { urls }, counted.clone());
    let served =
        Peer::lock_servers("lock-server, quorum", 1, &store, "bench", &[], counted).await?;
    bench.distinct("quorum of three", Some(&redlock), &served).await?;
    let baton = redis.map(Redis::baton).transpose()?;
    bench.contended("quorum of three", baton.as_ref(), &served).await
}

/// Rows so far.
struct Bench {
    load: Load,
    report: Report,
    /// First failure, which decides the exit code.
    failed: Option<Failure>,
}

impl Bench {
    fn most_clients(&self) -> u16 {
        self.load.clients()
    }

    /// A peer, or a word on why its rows are left out. What is not installed is no failure.
    fn started<T>(&mut self, what: &str, started: Result<T, Failure>) -> Option<T> {
        let missing = |failure: Failure| {
            let missing = format!("{what}: {failure}");
            say(&format!("NOT MEASURED: {missing}"));
            self.report.missing.push(missing);
        };
        started.map_err(missing).ok()
    }

    fn check(&mut self, what: &str, measured: Result<(), Failure>) {
        if let Err(failure) = measured {
            say(&format!("NOT MEASURED: the rest of {what}: {failure}"));
            self.report.missing.push(format!("the rest of {what}: {failure}"));
            self.failed.get_or_insert(failure);
        }
    }

    /// Rows of locks that only one client wants.
    async fn distinct(
        &mut self,
        store: &str,
        base: Option<&Peer>,
        server: &Peer,
    ) -> Result<(), Failure> {
        for clients in self.load.clients.map_or(CLIENTS.to_vec(), |clients| vec![clients]) {
            self.compare(store, clients, Work::Distinct, base, server).await?;
        }
        Ok(())
    }

    /// The row of one lock that all clients want.
    async fn contended(
        &mut self,
        store: &str,
        base: Option<&Peer>,
        server: &Peer,
    ) -> Result<(), Failure> {
        let what = format!("{store}, one contended lock");
        let clients = self.load.clients.unwrap_or(CONTENDERS);
        self.compare(&what, clients, Work::Contended, base, server).await
    }

    /// Measures a row.
    async fn compare(
        &mut self,
        what: &str,
        clients: u16,
        work: Work,
        base: Option<&Peer>,
        server: &Peer,
    ) -> Result<(), Failure> {
        let open = async |peer: &Peer| {
            let workers = Worker::open(&peer.target, work, clients).await;
            workers
                .map_err(|error| Failure::new(code::UNAVAILABLE, format!("{}: {error}", peer.name)))
        };
        let mut sides = Vec::new();
        for peer in base.into_iter().chain([server]) {
            sides.push((peer, open(peer).await?, Side::new(&peer.name)));
        }
        for _ in 0..self.load.rounds {
            for (peer, workers, side) in &mut sides {
                side.add(self.round(peer, workers).await?);
            }
        }
        let mut sides = sides.into_iter().map(|(_, _, side)| side);
        let (Some(first), second) = (sides.next(), sides.next()) else { return Ok(()) };
        let row = match second {
            Some(server) => Row::new(what, clients, Some(&first), &server),
            None => Row::new(what, clients, None, &first),
        };
        say(row.text().trim_end());
        self.report.rows.push(row);
        Ok(())
    }

    async fn round(&self, peer: &Peer, workers: &mut [Worker]) -> Result<Measured, Failure> {
        let time = self.load.time();
        load::run(workers, time / WARM_UP_PART).await?;
        let own = (LOAD_GENERATOR, std::process::id());
        let processes = || peer.counted.iter().chain([&own]);
        let before: Vec<_> = processes().map(|(_, pid)| cpu::used(*pid)).collect();
        let mut measured = load::run(workers, time).await?;
        for ((name, pid), before) in processes().zip(before) {
            if let (Some(before), Some(after)) = (before, cpu::used(*pid)) {
                measured.cpu.push((name, after.saturating_sub(before)));
            }
        }
        Ok(measured)
    }
}
