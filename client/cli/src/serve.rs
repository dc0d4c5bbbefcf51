//! `fence serve`: both services in one process, for trials and development.

mod folder;
mod self_signed;
mod tour;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use access_control::{Grant, secret};
use axum::http::HeaderValue;
use clap::Parser as _;
use fenced_store::https::Https;
use fenced_store::lock_servers::LockServers;
use lock_server::guards::GuardOptions;
use redis_link::RedisTarget;
use service_kit::listener::{self, DrainReport, listen_addr};
use service_kit::login::without_password;
use service_kit::tls::TlsOptions;
use service_kit::{Kit, signals};
use tokio::task::JoinHandle;

use fence_terminal::exit::{Failure, code};
use fence_terminal::output::emit;
use folder::Folder;
use self_signed::SelfSigned;
use tour::Tour;

/// Time for tasks that outlive the listeners: commits.
const TASKS_DEADLINE: Duration = Duration::from_secs(10);

/// Runs lock-server and fenced-store in one process, with embedded stores or before a Redis
///
/// Everything is kept in one folder: leases, objects, and a key file that is made there, so that
/// tokens are signed. Without --dir it is a temporary folder that is deleted at the end. With
/// --redis leases and marks are kept in that Redis, and its keys are served by the guard's Redis
/// port. Ends on Ctrl-C, after finishing what is in flight.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence serve                                   prints a tour with curl to paste
  fence serve --dir ./fencepost                 keeps leases, objects and keys
  fence serve --rule 'orders/{id}/**=orders/{id}' --rule 'public/**=@open'
  fence serve --access-file access.toml         callers need a bearer token: see fence auth
  fence serve --redis redis://127.0.0.1:6379    Redis clients connect to 127.0.0.1:6380
  fence serve --dir ./fencepost --tls-self-signed --access-file access.toml \\
    --listen 0.0.0.0:7420 --guard-listen 0.0.0.0:7421    for other machines

Exit codes: 0 ended by a signal, 69 could not start, 64 wrong usage")]
pub(crate) struct Args {
    /// The folder of leases, objects and keys [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Address of the lock server; port 0 lets the system choose
    #[arg(long, default_value = "127.0.0.1:7420", value_name = "ADDR", value_parser = listen_addr)]
    listen: SocketAddr,

    /// Address of the guard
    #[arg(long, alias = "store-listen", default_value = "127.0.0.1:7421", value_name = "ADDR")]
    #[arg(value_parser = listen_addr)]
    guard_listen: SocketAddr,

    /// Keep leases and marks in this Redis, and serve its keys at the Redis port
    #[arg(long, value_name = "URL")]
    redis: Option<String>,

    /// Address of the Redis port
    #[arg(long, default_value = "127.0.0.1:6380", value_name = "ADDR", value_parser = listen_addr)]
    redis_listen: SocketAddr,

    /// A rule: the lock that protects a resource; repeatable
    #[arg(long = "rule", value_name = "PATTERN=LOCK")]
    rule: Vec<String>,

    /// The access file (see fence auth)
    #[arg(long, value_name = "FILE")]
    access_file: Option<PathBuf>,

    /// The log of administration and refusals
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,

    /// Serve over TLS, with a CA of its own that is made in the folder
    #[arg(long)]
    tls_self_signed: bool,

    /// A name in URLs of clients, without a port; repeatable
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,

    /// The TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Serves until a signal; the exit code.
pub(crate) async fn serve(args: Args) -> Result<u8, Failure> {
    let folder = Folder::open(args.dir.clone())?;
    let lock_kit = Kit::new("lock-server");
    let guard_kit = Kit::new("fenced-store");
    let stop = {
        let locks = lock_kit.tasks.clone();
        let guard = guard_kit.tasks.clone();
        move || {
            locks.begin_shutdown();
            guard.begin_shutdown();
        }
    };
    let tls = Tls::prepare(&args, &folder)?;
    let started = start(&args, &folder, &tls, (&lock_kit, &guard_kit)).await;
    let result = match started {
        Ok(Started { locks, guard, addresses }) => {
            announce(&args, &folder, &tls, &addresses)?;
            let on_signal = stop.clone();
            let signal = lock_kit.tasks.spawn(async move {
                signals::terminated().await;
                on_signal();
            });
            let _ = tokio::join!(locks.serve(), guard);
            signal.abort();
            Ok(code::OK)
        }
        Err(failure) => Err(failure),
    };
    // Also where only one of the two could start: what it opened is closed in order.
    stop();
    let deadline = TASKS_DEADLINE;
    let _ = tokio::join!(lock_kit.tasks.drained(deadline), guard_kit.tasks.drained(deadline));
    result
}

/// TLS of both services, and of their requests to each other.
struct Tls {
    files: Option<SelfSigned>,
    /// Names of this machine in URLs, beside its addresses.
    host_names: Vec<String>,
    peers: TlsOptions,
}

impl Tls {
    fn prepare(args: &Args, folder: &Folder) -> Result<Self, Failure> {
        let mut host_names = args.host_name.clone();
        let mut peers = TlsOptions::default();
        let mut files = None;
        if args.tls_self_signed {
            host_names.push(rustix::system::uname().nodename().to_string_lossy().into_owned());
            let names = self_signed::names(&host_names, &[args.listen, args.guard_listen]);
            let made = SelfSigned::prepare(folder.path(), names)?;
            peers = peers.with_ca(&made.ca).map_err(Failure::internal)?;
            files = Some(made);
        }
        Ok(Self { files, host_names, peers })
    }

    /// The URL of a service on this machine.
    fn url(&self, listen: SocketAddr) -> String {
        let scheme = if self.files.is_some() { "https" } else { "http" };
        let mut addr = listen;
        if addr.ip().is_unspecified() {
            addr.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        format!("{scheme}://{addr}")
    }
}

/// Command line that both services have in common.
fn common(
    (program, part): (&str, &str),
    listen: SocketAddr,
    args: &Args,
    folder: &Folder,
    tls: &Tls,
) -> Result<Vec<String>, Failure> {
    let store = match &args.redis {
        Some(url) => url.clone(),
        None => format!("embedded:{}", folder.path().join(part).display()),
    };
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let mut line = vec![
        program.to_owned(),
        format!("--listen={listen}"),
        format!("--store={store}"),
        flag("token-key-file", &folder.key_file()?),
    ];
    line.extend(args.access_file.iter().map(|path| flag("access-file", path)));
    line.extend(args.audit_log.iter().map(|path| flag("audit-log", path)));
    line.extend(tls.host_names.iter().map(|name| format!("--host-name={name}")));
    if let Some(SelfSigned { certificate, key, .. }) = &tls.files {
        line.extend([flag("tls-cert", certificate), flag("tls-key", key)]);
    }
    Ok(line)
}

async fn start(
    args: &Args,
    folder: &Folder,
    tls: &Tls,
    (lock_kit, guard_kit): (&Kit, &Kit),
) -> Result<Started, Failure> {
    if let Some(url) = &args.redis {
        let _: RedisTarget =
            url.parse().map_err(|error| Failure::usage(format!("--redis: {error}")))?;
    }
    let line = common(("lock-server", "locks"), args.listen, args, folder, tls)?;
    let mut locks = lock_server::config::Config::try_parse_from(line)
        .map_err(|error| Failure::internal(error.to_string()))?
        .settings()
        .map_err(|error| Failure::usage(error.to_string()))?;
    let rules = args.rule.iter().map(|rule| format!("--rule={rule}"));
    let port = args.redis.is_some().then(|| format!("--redis-listen={}", args.redis_listen));
    let line = common(("fenced-store", "objects"), args.guard_listen, args, folder, tls)?;
    let line = line.into_iter().chain(rules).chain(port);
    let mut guard = fenced_store::config::Config::try_parse_from(line)
        .map_err(|error| bad_rule(&error))?
        .settings()
        .map_err(|error| Failure::usage(error.to_string()))?;
    // Each of the two talks to the other: the guard reports what it refused, and the lock server
    // seals. They know each other by bearer tokens that are kept nowhere.
    let as_guard = Introduction::new("report *")?;
    let as_locks = Introduction::new("read,write *")?;
    locks.access = locks.access.and("(guard)", &as_guard.secret, as_guard.right);
    guard.access = guard.access.and("(lock-server)", &as_locks.secret, as_locks.right);
    let listener =
        listener::bind(locks.flags.listen, &locks.exposure).await.map_err(cannot_start)?;
    let addr = listener.local_addr().map_err(cannot_start)?;
    let url = tls.url(addr).parse().map_err(Failure::internal)?;
    let https = Https::new(tls.peers.clone(), tls.files.is_some()).map_err(Failure::internal)?;
    guard.report = Some(LockServers { urls: vec![url], auth: Some(as_guard.header), https });
    let guard = fenced_store::app::build(guard, guard_kit).await.map_err(cannot_start)?;
    let guard = guard.bind().await.map_err(cannot_start)?;
    let Some(api) = guard.addr() else {
        return Err(Failure::internal("a listener does not know its address"));
    };
    let addresses = Addresses { locks: addr, api, redis: guard.redis_addr() };
    let url = tls.url(api).parse().map_err(Failure::internal)?;
    let auth = Some(as_locks.header);
    locks.store_options.guards = GuardOptions { urls: vec![url], auth, tls: tls.peers.clone() };
    // The lock server reads the guard's marks before it is complete, so the guard has to reply
    // by then. What the guard reports meanwhile waits at the listener.
    let guard = guard_kit.tasks.spawn(guard.serve());
    let locks = lock_server::app::build(locks, lock_kit).await.map_err(cannot_start)?;
    Ok(Started { locks: locks.on(listener), guard, addresses })
}

/// Both services, of which the guard is served already.
struct Started {
    locks: lock_server::app::Bound,
    guard: JoinHandle<DrainReport>,
    addresses: Addresses,
}

/// Addresses of all listeners.
struct Addresses {
    locks: SocketAddr,
    api: SocketAddr,
    redis: Option<SocketAddr>,
}

/// Credentials of one service at the other.
struct Introduction {
    secret: String,
    header: HeaderValue,
    right: Grant,
}

impl Introduction {
    fn new(right: &str) -> Result<Self, Failure> {
        let secret = secret::generate();
        let header = HeaderValue::from_str(&format!("Bearer {secret}"))
            .map_err(|error| Failure::internal(error.to_string()))?;
        let right = right.parse().map_err(Failure::internal)?;
        Ok(Self { secret, header, right })
    }
}

/// Rules are the only thing in the guard's settings that was typed here.
fn bad_rule(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    Failure::usage(line.trim_start_matches("error: "))
}

fn cannot_start(error: impl std::fmt::Display) -> Failure {
    Failure::new(code::UNAVAILABLE, format!("cannot start: {error}"))
}

fn announce(args: &Args, folder: &Folder, tls: &Tls, addresses: &Addresses) -> Result<(), Failure> {
    let Addresses { locks, api, redis } = addresses;
    let tour = Tour {
        locks: tls.url(*locks),
        guard: tls.url(*api),
        folder,
        access_file: args.access_file.as_deref(),
        ca: tls.files.as_ref().map(|files| files.ca.as_path()),
        // Other machines reach this one by a name, unless it listens on loopback alone.
        host: (!locks.ip().is_loopback()).then(|| tls.host_names.first()).flatten(),
    };
    let text = match (&args.redis, *redis) {
        (Some(url), Some(port)) => tour.redis(port, &without_password(url)),
        _ => tour.text(),
    };
    emit(text.as_bytes())
}
