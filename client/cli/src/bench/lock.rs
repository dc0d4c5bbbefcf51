//! `fence bench lock`: acquire and release of locks that nobody else wants.

use fence_client::{BearerToken, ids};
use fence_protocol::{LeaseId, Namespace};
use lock_server::store::redis::raw::RawCommands;
use service_kit::redis_link::RedisTarget;

use super::load::{self, Client};
use super::report::{Report, Side};
use super::server::Server;
use super::{Load, http, resp};
use crate::exit::{Failure, code};
use crate::output::Output;

/// Lock names that each client takes in turn.
const NAMES: u64 = 100;
/// Long enough that nothing expires while it is measured.
const TTL_MS: u64 = 30_000;

/// Pairs of acquire and release, each client with locks of its own
///
/// With --redis the same scripts are also sent straight to that Redis, one connection a client, in
/// turns with the server: the ratio is what the HTTP service keeps of raw Redis.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence bench lock
  fence bench lock --redis redis://127.0.0.1:6379 --clients 64
  fence bench lock --server http://127.0.0.1:7420 --output json")]
pub(super) struct Args {
    /// A lock server that is running [default: one of the benchmark's own]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The file with the bearer token, where the running server asks who it is; its principal needs
    /// the right "use bench/*"
    #[arg(long, value_name = "FILE")]
    auth_file: Option<std::path::PathBuf>,
    /// A Redis (no password) to measure raw, and for the benchmark's own server
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    output: Output,
    /// A TOML file with settings, by the names of the flags
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
}

pub(super) async fn bench(args: Args) -> Result<u8, Failure> {
    let own = match args.server {
        Some(_) => None,
        None => Some(Server::start("lock-server", args.redis.as_deref()).await?),
    };
    let url = own.as_ref().map_or(args.server.as_deref().unwrap_or_default(), |own| &own.url);
    let auth = load::auth(args.auth_file.as_deref())?;
    let unreachable = |error: String| Failure::new(code::UNAVAILABLE, error);
    let mut served = Vec::new();
    let mut direct = Vec::new();
    for number in 0..args.load.clients() {
        served.push(Served::open(url, auth.as_ref(), number).await.map_err(unreachable)?);
    }
    if let Some(redis) = &args.redis {
        let target: RedisTarget =
            redis.parse().map_err(|error| Failure::usage(format!("--redis: {error}")))?;
        let namespace = Namespace::new("bench")?;
        let commands = RawCommands::prepare(&target, &namespace).await.map_err(unreachable)?;
        for number in 0..args.load.clients() {
            let connection = resp::Connection::open(redis).await.map_err(unreachable)?;
            direct.push(Direct { connection, commands: commands.clone(), number });
        }
    }
    let mut server = Side::new("lock-server");
    let mut raw = Side::new("raw Redis, same scripts");
    for _ in 0..args.load.rounds {
        if !direct.is_empty() {
            raw.add(load::run(&mut direct, args.load.time()).await?);
        }
        server.add(load::run(&mut served, args.load.time()).await?);
    }
    let base = (!direct.is_empty()).then_some(raw);
    let report = Report::new("pairs of acquire and release", args.load, server, base);
    args.output.print(&report, Report::table)?;
    Ok(code::OK)
}

fn lock_name(client: u16, number: u64) -> String {
    format!("bench/{client}/{}", number % NAMES)
}

/// A client of the server.
struct Served {
    connection: http::Connection,
    client: u16,
}

impl Served {
    async fn open(url: &str, auth: Option<&BearerToken>, client: u16) -> Result<Self, String> {
        Ok(Self { connection: http::Connection::open(url, auth).await?, client })
    }

    async fn post(&mut self, lock: &str, verb: &str, body: &str) -> Result<(), String> {
        let path = format!("/v1/locks/{}/{verb}", lock.replace('/', "%2F"));
        let headers = "content-type: application/json\r\n";
        match self.connection.send("POST", &path, headers, body.as_bytes()).await? {
            (200, _) => Ok(()),
            (status, body) => Err(format!("{verb}: {status} {}", String::from_utf8_lossy(&body))),
        }
    }
}

impl Client for Served {
    async fn once(&mut self, number: u64) -> Result<(), String> {
        let (lock, lease) = (lock_name(self.client, number), ids::lease_id());
        let body = format!("{{\"ttl_ms\":{TTL_MS},\"owner\":\"bench\",\"lease_id\":\"{lease}\"}}");
        self.post(&lock, "acquire", &body).await?;
        self.post(&lock, "release", &format!("{{\"lease_id\":\"{lease}\"}}")).await
    }
}

/// A client of Redis itself.
struct Direct {
    connection: resp::Connection,
    commands: RawCommands,
    number: u16,
}

impl Client for Direct {
    async fn once(&mut self, number: u64) -> Result<(), String> {
        let (lock, lease): (String, LeaseId) = (lock_name(self.number, number), ids::lease_id());
        self.connection.send(&self.commands.acquire(&lock, lease, "bench", TTL_MS)).await?;
        self.connection.send(&self.commands.release(&lock, lease)).await
    }
}
