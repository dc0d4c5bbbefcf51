//! `fence bench`: speed of locks and fenced writes here, beside what they are built on.

mod cpu;
mod forwarder;
mod guard;
mod http;
mod http_proxy;
mod load;
mod lock;
mod objects;
mod postgres;
mod redis;
mod report;
mod resp;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

pub(crate) use self::http_proxy::origin;
pub(crate) use self::lock::thin;
use fence_terminal::exit::Failure;

/// Measures locks and fenced writes, beside what they are built on
///
/// Figures of one machine mean little; ratios between two measurements of the same run mean more.
/// Rounds of the two sides take turns, and medians over the rounds are printed.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence bench lock                                   memory, embedded and redis, beside raw Redis
  fence bench lock --redis --etcd --quorum           every store, beside what it could do at least
  fence bench lock --server http://127.0.0.1:7420    a server that is running
  fence bench lock --programs /usr/bin               the programs that are installed
  fence bench guard --clients 16                     fenced writes of 100 bytes, and reads
  fence bench guard --objects                        fenced writes beside Redis and redb
  fence bench guard --redis                          the Redis port beside Redis and twemproxy
  fence bench guard --http                           the reverse proxy beside nginx and HAProxy
  fence bench guard --postgres                       the PostgreSQL port beside pgbouncer")]
pub struct Args {
    /// Measure the programs lock-server and fenced-store in this folder [default: those built into
    /// fence]
    #[arg(long, global = true, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    Lock(lock::Args),
    Guard(guard::Args),
}

/// Checks the address of a running server. The benchmark's own client speaks no TLS.
fn plain_address(text: &str) -> Result<String, String> {
    match text.starts_with("http://") {
        true => Ok(text.to_owned()),
        false => Err("must begin with http://: the benchmark speaks no TLS; measure a server or \
                      guard with a listener without it, on its own machine"
            .to_owned()),
    }
}

/// Load of both benchmarks.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Load {
    /// Connections, 1 to 1024 [default: 1, 16 and 64 in turn; guard without a port 64]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    clients: Option<u16>,
    /// Length of a measurement [default: 2s; guard --redis or --http 500ms, --postgres 5s]
    #[arg(long, value_parser = fence_protocol::duration::parse_positive, value_name = "DURATION")]
    time: Option<Duration>,
    /// Measurements of each side, 1 to 100
    #[arg(
        long,
        default_value_t = 5,
        value_parser = clap::value_parser!(u8).range(1..=100),
        value_name = "N",
    )]
    rounds: u8,
}

impl Load {
    fn clients(self) -> u16 {
        self.clients.unwrap_or(64)
    }

    fn time(self) -> Duration {
        self.time.unwrap_or(Duration::from_secs(2))
    }
}

/// Measures; the exit code.
pub async fn bench(args: Args) -> Result<u8, Failure> {
    if let Some(folder) = args.programs {
        server::take_from(folder);
    }
    match args.what {
        What::Lock(args) => lock::bench(args).await,
        What::Guard(args) => guard::bench(args).await,
    }
}
