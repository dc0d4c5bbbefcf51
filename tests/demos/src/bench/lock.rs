//! `fence bench lock`: lock servers beside the least that their stores could do.

mod clients;
mod etcd_lock;
mod large;
mod peers;
mod sql_lock;
mod storm;
pub(crate) mod thin;

use std::path::PathBuf;

use service_kit::signals;

use self::clients::{REDLOCK, Target, Work, Worker};
use self::peers::{ALWAYS, EVERY_SECOND, Etcd, Peer, Redis};
use self::sql_lock::{ADVISORY, LEASE};
use super::Load;
use super::load::{self, Counted, Side};
use super::report::{Report, Row};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Output, say};

/// Numbers of clients without `--clients`.
const CLIENTS: [u16; 3] = [1, 16, 64];
/// Number of clients of one contended lock without `--clients`.
const CONTENDERS: u16 = 16;
/// SIGINT, for the exit code of a benchmark that was interrupted.
const INTERRUPT: u8 = 2;

/// Measures locks beside raw Redis, a thin HTTP handler, etcd's own lock, Redlock and PostgreSQL's
///
/// A base is the least that its store can do for a lock with a token: raw Redis runs two scripts of
/// two calls each, one connection a client. Each round measures the base and then the server; the
/// ratio is the median of the rounds' own ratios. docs/reference/performance.md describes every
/// row.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence bench lock                                   memory, embedded and redis
  fence bench lock --redis --etcd --quorum           every store
  fence bench lock --redis redis://127.0.0.1:6379 --clients 64 --rounds 3 --time 1s
  fence bench lock --large                           a million leases, ten thousand waiters
  fence bench lock --storm --etcd                    100 000 leases that end together
  fence bench lock --server http://127.0.0.1:7420 --output json")]
pub(super) struct Args {
    /// A running lock server (no TLS), with --redis beside raw Redis [default: the benchmark's own]
    #[arg(long, value_name = "URL", value_parser = super::plain_address,
          conflicts_with_all = ["etcd", "postgres", "quorum", "large", "storm"])]
    server: Option<String>,
    /// The file with the bearer token, with the right "use bench/*"
    #[arg(long, value_name = "FILE", requires = "server")]
    auth_file: Option<PathBuf>,
    /// The Redis (no password) of the rows on redis; writes are deleted at the end [default: the
    /// benchmark's own, with appendfsync everysec]
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "own")]
    redis: Option<String>,
    /// Measure etcd too, beside its own lock
    #[arg(long)]
    etcd: bool,
    /// Measure PostgreSQL too, at this URL, beside a lease in a row and advisory locks
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Measure a quorum of three Redis too, beside Redlock on them
    #[arg(long)]
    quorum: bool,
    /// Measure with so many live leases (1000000 without a number), a hundredth as waiters, a tenth
    /// as idle locks
    #[arg(long, value_name = "LEASES", num_args = 0..=1, default_missing_value = "1000000",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    large: Option<u32>,
    /// Measure how long others wait while so many leases (100000 without a number) end together
    #[arg(long, value_name = "LEASES", num_args = 0..=1, default_missing_value = "100000",
          value_parser = clap::value_parser!(u32).range(1..=900_000))]
    storm: Option<u32>,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    output: Output,
    /// The TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) async fn bench(args: Args) -> Result<u8, Failure> {
    let report = Report::new(args.load.rounds, args.load.time());
    let mut bench = Bench { load: args.load, report, failed: None };
    let mut redis = match args.redis.as_deref() {
        None if args.server.is_some() => None,
        None | Some("own") => bench.check("redis", Redis::start(EVERY_SECOND).await),
        Some(url) => Some(Redis::given(url).await?),
    };
    tokio::select! {
        () = measure(&mut bench, &args, redis.as_mut()) => {}
        () = signals::terminated() => {
            let interrupted = Failure::new(code::SIGNAL_BASE + INTERRUPT, "the benchmark was interrupted");
            bench.failed = Some(interrupted);
        }
    }
    if let Some(redis) = redis {
        redis.end().await?;
    }
    args.output.print(&bench.report, Report::table)?;
    bench.failed.map_or(Ok(code::OK), Err)
}

/// Measures every requested row. A row that fails is left out.
async fn measure(bench: &mut Bench, args: &Args, redis: Option<&mut Redis>) {
    if let Some(url) = &args.server {
        let measured = running(bench, args, url, redis).await;
        bench.check("the server", measured);
        return;
    }
    if let Some(redis) = redis {
        let measured = on_redis(bench, redis).await;
        bench.check("redis and memory", measured);
        if args.quorum {
            let measured = on_quorum(bench, redis).await;
            bench.check("quorum", measured);
        }
    }
    let measured = durable(bench).await;
    bench.check("appendfsync always and embedded", measured);
    if args.etcd {
        let measured = on_etcd(bench).await;
        bench.check("etcd", measured);
    }
    if let Some(url) = &args.postgres {
        let measured = on_postgres(bench, url).await;
        bench.check("postgres", measured);
    }
    if let Some(leases) = args.large {
        let measured = large::measure(bench, leases).await;
        bench.check("many leases", measured);
    }
    if let Some(leases) = args.storm {
        let measured = storm::measure(bench, leases, args.etcd, args.postgres.as_deref()).await;
        bench.check("leases that end together", measured);
    }
}

/// A server that is running, beside raw Redis where one was given.
async fn running(
    bench: &mut Bench,
    args: &Args,
    url: &str,
    redis: Option<&mut Redis>,
) -> Result<(), Failure> {
    let auth = load::auth(args.auth_file.as_deref())?;
    let target = Target::Http { urls: vec![url.to_owned()], auth };
    let server = Peer::new("the server", target, Vec::new());
    let Some(redis) = redis else {
        bench.distinct("running server", &[&server]).await?;
        return bench.contended("running server", &[&server]).await;
    };
    bench.distinct("running server", &[&redis.raw()?, &server]).await?;
    bench.contended("running server", &[&redis.baton()?, &server]).await
}

/// Leases in Redis beside that Redis itself and beside a thin handler on it, and in memory beside
/// that handler.
async fn on_redis(bench: &mut Bench, redis: &mut Redis) -> Result<(), Failure> {
    let server = redis.lock_servers("lock-server", 1, &[]).await?;
    let handler = redis.thin_handler().await?;
    bench.distinct("redis", &[&redis.raw()?, &server]).await?;
    bench.distinct("redis, beside a thin handler", &[&handler, &server]).await?;
    bench.contended("redis", &[&redis.baton()?, &server]).await?;
    let quiet = redis.lock_servers("--event-history 0", 1, &["--event-history", "0"]).await?;
    let most = bench.load.clients();
    bench.compare("redis, events", most, Work::Distinct, &[&quiet, &server]).await?;
    quiet.end().await;
    server.end().await;

    let two = redis.lock_servers("two lock-servers", 2, &[]).await?;
    bench.contended("redis, two servers in turns", &[&redis.baton()?, &two]).await?;
    two.end().await;

    let memory = Peer::lock_server("lock-server", "memory:", Vec::new()).await?;
    bench.distinct("memory", &[&handler, &memory]).await?;
    bench.contended("memory", &[&redis.baton()?, &memory]).await?;
    memory.end().await;
    handler.end().await;
    Ok(())
}

/// Leases on disk before they are acknowledged.
async fn durable(bench: &mut Bench) -> Result<(), Failure> {
    let mut redis = Redis::start(ALWAYS).await?;
    let server = redis.lock_servers("lock-server", 1, &[]).await?;
    bench.distinct("redis, appendfsync always", &[&redis.raw()?, &server]).await?;
    server.end().await;
    let embedded = Peer::lock_server("lock-server", "embedded:", Vec::new()).await?;
    bench.distinct("embedded, beside appendfsync always", &[&redis.raw()?, &embedded]).await?;
    bench.contended("embedded", &[&redis.baton()?, &embedded]).await?;
    embedded.end().await;
    redis.end().await
}

async fn on_etcd(bench: &mut Bench) -> Result<(), Failure> {
    let etcd = Etcd::start().await?;
    let own = etcd.own_lock();
    let server = etcd.lock_server().await?;
    bench.distinct("etcd", &[&own, &server]).await?;
    bench.contended("etcd", &[&own, &server]).await?;
    server.end().await;
    Ok(())
}

/// Leases in a PostgreSQL that is running; what was written besides leases is removed.
async fn on_postgres(bench: &mut Bench, url: &str) -> Result<(), Failure> {
    let failed = |error: String| Failure::new(code::UNAVAILABLE, error);
    sql_lock::set_up(url).await.map_err(failed)?;
    let peer = |name: &str, commands| {
        Peer::new(name, Target::Sql { url: url.to_owned(), commands }, Vec::new())
    };
    let lease = peer("a lease in a row", LEASE);
    let advisory = peer("advisory locks, no token", ADVISORY);
    let server = Peer::lock_server("lock-server", url, Vec::new()).await?;
    bench.distinct("postgres", &[&lease, &advisory, &server]).await?;
    bench.contended("postgres", &[&advisory, &server]).await?;
    server.end().await;
    sql_lock::clean_up(url).await.map_err(failed)
}

async fn on_quorum(bench: &mut Bench, redis: &mut Redis) -> Result<(), Failure> {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Redis::start(EVERY_SECOND).await?);
    }
    let urls: Vec<String> = nodes.iter().map(|node| node.url().to_owned()).collect();
    let counted: Vec<Counted> = nodes.iter().flat_map(Redis::counted).collect();
    let store = format!("redis-quorum:{}", urls.join(","));
    let target = Target::Redis { urls, prefix: String::new(), commands: REDLOCK };
    let redlock = Peer::new("Redlock without a token", target, counted.clone());
    let server = Peer::lock_server("lock-server", &store, counted).await?;
    bench.distinct("quorum of three", &[&redlock, &server]).await?;
    bench.contended("quorum of three", &[&redis.baton()?, &server]).await
}

/// Rows so far.
struct Bench {
    load: Load,
    report: Report,
    /// First failure, which decides the exit code.
    failed: Option<Failure>,
}

impl Bench {
    /// The outcome, or a word on why rows are left out.
    fn check<T>(&mut self, what: &str, outcome: Result<T, Failure>) -> Option<T> {
        let missing = |failure: Failure| {
            let missing = format!("{what}: {failure}");
            say(&format!("NOT MEASURED: {missing}"));
            self.report.missing.push(missing);
            self.failed.get_or_insert(failure);
        };
        outcome.map_err(missing).ok()
    }

    /// Rows of locks that only one client wants; the first peer is the base.
    async fn distinct(&mut self, store: &str, peers: &[&Peer]) -> Result<(), Failure> {
        for clients in self.load.clients.map_or(CLIENTS.to_vec(), |clients| vec![clients]) {
            self.compare(store, clients, Work::Distinct, peers).await?;
        }
        Ok(())
    }

    /// The row of one lock that all clients want.
    async fn contended(&mut self, store: &str, peers: &[&Peer]) -> Result<(), Failure> {
        let what = format!("{store}, one contended lock");
        let clients = self.load.clients.unwrap_or(CONTENDERS);
        self.compare(&what, clients, Work::Contended, peers).await
    }

    async fn compare(
        &mut self,
        what: &str,
        clients: u16,
        work: Work,
        peers: &[&Peer],
    ) -> Result<(), Failure> {
        let mut workers = Vec::new();
        for peer in peers {
            let opened = Worker::open(&peer.target, work, clients).await;
            workers.push(opened.map_err(|error| {
                Failure::new(code::UNAVAILABLE, format!("{}: {error}", peer.name))
            })?);
        }
        let sides = peers.iter().zip(&mut workers).map(|(peer, workers)| Side {
            name: peer.name.clone(),
            clients: workers,
            counted: &peer.counted,
        });
        let rounds = self.load.rounds;
        let time = self.load.time();
        let measured = load::compare(rounds, time, sides.collect()).await?;
        let row = Row::new(what, clients, &measured);
        say(row.text().trim_end());
        self.report.rows.push(row);
        Ok(())
    }
}
