//! `fence bench guard`: fenced writes and reads of small objects, or the Redis port.

use fence_client::BearerToken;
use serde::Deserialize;

use super::load::{self, Client, Counted, Side};
use super::report::{Report, Row};
use super::server::Server;
use super::{Load, http, http_proxy, objects, postgres, redis};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::Output;

/// Content of an object.
pub(super) const VALUE: [u8; 100] = [b'x'; 100];

/// Namespace of servers of the benchmark's own.
pub(super) const NAMESPACE: [&str; 2] = ["--namespace", "bench"];

/// Measures pairs of fenced write and read of 100 bytes; with --redis, --http or --postgres, that
/// port
///
/// Without --redis every client holds a lock of its own and writes the object that it protects,
/// over HTTP. With it, SET and GET are measured through the guard's Redis port, with a token, with
/// a lock for each client and on open keys, beside Redis itself and beside twemproxy (nutcracker;
/// left out where it is not installed). With --http it is PUT through the reverse proxy, with a
/// token and with a lock for each client, beside the origin itself, nginx and HAProxy. With
/// --postgres it is pgbench through the PostgreSQL port, beside PostgreSQL itself, pgbouncer and
/// HAProxy.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence bench guard
  fence bench guard --objects                                   beside Redis and redb themselves
  fence bench guard --redis                                     starts a redis-server of its own
  fence bench guard --redis redis://127.0.0.1:6379 --clients 16 --time 2s
  fence bench guard --http --clients 64
  fence bench guard --postgres                                  starts a PostgreSQL of its own
  fence bench guard --redis --output json > redis-port.json
  fence bench guard --server http://127.0.0.1:7420 --guard http://127.0.0.1:7421")]
pub(super) struct Args {
    /// A running lock server (no TLS) [default: the benchmark's own]
    #[arg(long, value_name = "URL", requires = "guard", value_parser = super::plain_address)]
    server: Option<String>,
    /// A running guard (no TLS) with the same keys [default: the benchmark's own]
    #[arg(long, alias = "store", value_name = "URL", requires = "server",
          value_parser = super::plain_address)]
    guard: Option<String>,
    /// The file with the bearer token, with the right "use bench/*"
    #[arg(long, value_name = "FILE")]
    auth_file: Option<std::path::PathBuf>,
    /// Measure the Redis port before this Redis (no password) or the benchmark's own; writes are
    /// deleted at the end
    #[arg(
        long, value_name = "URL", num_args = 0..=1, default_missing_value = "own",
        conflicts_with = "server",
    )]
    redis: Option<String>,
    /// Measure PUT of 1 KiB through the reverse proxy, before an HTTP datastore in memory
    #[arg(long, conflicts_with_all = ["server", "redis"])]
    http: bool,
    /// Measure pgbench through the PostgreSQL port, before a PostgreSQL of the benchmark's own
    #[arg(long, conflicts_with_all = ["server", "redis", "http"])]
    postgres: bool,
    /// Measure PUT of 100 bytes on redis and embedded, beside the same script calls at Redis and a
    /// bare redb file
    #[arg(long, conflicts_with_all = ["server", "redis", "http", "postgres"])]
    objects: bool,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    output: Output,
    /// The TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
}

pub(super) async fn bench(args: Args) -> Result<u8, Failure> {
    if let Some(url) = args.redis.as_deref() {
        return redis::bench(url, args.load, args.output).await;
    }
    if args.http {
        return http_proxy::bench(args.load, args.output).await;
    }
    if args.postgres {
        return postgres::bench(args.load, args.output).await;
    }
    if args.objects {
        return objects::bench(args.load, args.output).await;
    }
    let own = match (&args.server, &args.guard) {
        (Some(_), Some(_)) => None,
        _ => Some((
            Server::start("lock-server", "embedded:", &NAMESPACE).await?,
            Server::start("fenced-store", "embedded:", &NAMESPACE).await?,
        )),
    };
    let (locks, guard) = match &own {
        Some((locks, guard)) => (locks.url.as_str(), guard.url.as_str()),
        None => {
            (args.server.as_deref().unwrap_or_default(), args.guard.as_deref().unwrap_or_default())
        }
    };
    let auth = load::auth(args.auth_file.as_deref())?;
    let mut writers = Vec::new();
    for number in 0..args.load.clients() {
        let writer = Writer::open(locks, guard, auth.as_ref(), number).await;
        writers.push(writer.map_err(|error| Failure::new(code::UNAVAILABLE, error))?);
    }
    let counted: Vec<Counted> =
        own.iter().map(|(_, guard)| ("fenced-store", guard.pid())).collect();
    let rounds = args.load.rounds;
    let time = args.load.time();
    let name = "fenced-store".to_owned();
    let side = Side { name, clients: &mut writers, counted: &counted };
    let measured = load::compare(rounds, time, vec![side]).await?;
    let mut report = Report::new(rounds, time);
    report.rows.push(Row::new("fenced write + read", args.load.clients(), &measured));
    if let Some((locks, guard)) = own {
        locks.end().await;
        guard.end().await;
    }
    args.output.print(&report, Report::table)?;
    Ok(code::OK)
}

#[derive(Deserialize)]
struct Granted {
    fencing_token: String,
}

/// A client with a lock of its own.
pub(super) struct Writer {
    connection: http::Connection,
    path: String,
    header: String,
}

impl Writer {
    pub(super) async fn open(
        locks: &str,
        guard: &str,
        auth: Option<&BearerToken>,
        number: u16,
    ) -> Result<Self, String> {
        let name = format!("bench%2Fguard-{}-{number}", std::process::id());
        let mut locks = http::Connection::open(locks, auth).await?;
        let path = format!("/v1/locks/{name}/acquire");
        let headers = "content-type: application/json\r\n";
        let (status, body) = locks.send("POST", &path, headers, b"{\"ttl_ms\":600000}").await?;
        if status != 200 {
            return Err(format!("acquire: {status} {}", String::from_utf8_lossy(&body)));
        }
        let granted: Granted = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        Ok(Self {
            connection: http::Connection::open(guard, auth).await?,
            path: format!("/v1/objects/{name}"),
            header: format!("fencing-token: {}\r\n", granted.fencing_token),
        })
    }

    pub(super) async fn send(&mut self, method: &str, body: &[u8]) -> Result<(), String> {
        match self.connection.send(method, &self.path, &self.header, body).await? {
            (200..300, _) => Ok(()),
            (status, body) => Err(format!("{method}: {status} {}", String::from_utf8_lossy(&body))),
        }
    }
}

impl Client for Writer {
    async fn begin(&mut self) -> Result<(), String> {
        self.connection.reopen().await
    }

    async fn once(&mut self, _number: u64) -> Result<(), String> {
        self.send("PUT", &VALUE).await?;
        self.send("GET", b"").await
    }
}
