//! `fence doctor`: checks an installation.

mod check;
mod direct;
mod http;
mod pair;
mod redis;
mod redis_port;
mod round_trip;
mod server;
mod stores;
mod unreached;

use std::path::PathBuf;

use fence_client::config::{DEFAULT_FENCED_STORE, DEFAULT_LOCK_SERVER};
use fence_client::{BearerToken, Client, TlsOptions};
use redis_link::RedisTarget;
use service_kit::login::StoreLogin;

use crate::connect::HttpsFlags;
use check::{Check, Verdict};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::Output;
use round_trip::{GuardSide, Site};
use server::Examined;

const LOCK_SERVER: &str = "lock-server";
const GUARD: &str = "fenced-store";
/// The guard's own check of its reports.
const REPORTS: &str = "fenced-store refusal-reports";

/// Checks that the servers work and are safe to rely on
///
/// Judges what is named, by a flag, a variable or the file; where nothing is, both servers at their
/// default addresses. Asks a server whether it lives and is ready, shows each of its own checks,
/// compares its version and clock, and reads what a guard guarantees for its stores. Compares the
/// namespace and the keys of both.
///
/// Then it makes a round trip, for which a bearer token needs the right "use fence-doctor/*": it
/// acquires the lock fence-doctor/XX (two random digits), writes the object of that name (at a
/// Redis port also the key), seals, has a lower token refused, removes what it wrote and releases.
/// The refusal stays in logs and counters, and the mark of fence-doctor/XX at the guard.
///
/// With --redis it checks a Redis: what it forgets when it restarts, what it drops when it is full,
/// its clock, and what its user may do, for lock-server and for the guard. With --direct it tries
/// to write past the guard, as an application would.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence doctor
  fence doctor --redis redis://127.0.0.1:6379 --strict
  fence doctor --direct redis://app:secret@127.0.0.1:6379 --direct-key orders/42
  fence doctor --output json | jq '.[] | select(.verdict != \"ok\")'

Exit codes: 0 nothing fails, 1 there are warnings and --strict was given, 69 something fails")]
pub(crate) struct Args {
    /// Check this Redis: persistence, version, clock, and the rights of its user
    #[arg(long, value_name = "URL")]
    redis: Option<RedisTarget>,

    #[command(flatten)]
    redis_login: redis::Login,

    /// Check that these credentials cannot write to Redis past the guard. A key that expires is set
    /// and removed; nothing that exists is changed
    #[arg(long, value_name = "URL")]
    direct: Option<RedisTarget>,

    /// The key to try; one that exists is not changed [default: a new one]
    #[arg(long, value_name = "KEY", requires = "direct")]
    direct_key: Option<String>,

    /// Exit code 1 if there are warnings
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    servers: Servers,
}

/// Addresses of the servers, as with every command; it matters here which of them were given.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Servers")]
struct Servers {
    /// Check this lock server
    #[arg(long, value_name = "URL")]
    server: Option<String>,

    /// Check this guard
    #[arg(long, alias = "store", value_name = "URL")]
    guard: Option<String>,

    /// Taken so that one file serves every command
    #[arg(long, value_name = "NAME", hide = true)]
    owner: Option<String>,

    /// The file with the bearer token, for servers with an access file
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,

    #[command(flatten)]
    https: HttpsFlags,

    /// The TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Servers {
    fn client(&self, auth: Option<&BearerToken>) -> Result<Client, Failure> {
        let server = self.server.as_deref().unwrap_or(DEFAULT_LOCK_SERVER);
        let guard = self.guard.as_deref().unwrap_or(DEFAULT_FENCED_STORE);
        let builder = Client::builder().lock_server(server).fenced_store(guard);
        let mut builder = self.https.apply(builder, [server, guard])?;
        if let Some(auth) = auth {
            builder = builder.auth(auth.clone());
        }
        if let Some(owner) = &self.owner {
            builder = builder.owner(owner);
        }
        Ok(builder.build()?)
    }
}

/// Checks everything; the exit code.
pub(crate) async fn doctor(args: Args) -> Result<u8, Failure> {
    let auth = args.servers.auth_file.as_ref().map(BearerToken::from_file).transpose()?;
    let client = args.servers.client(auth.as_ref())?;
    let tls = args.servers.https.options()?;
    let http = http::Http::new(auth.as_ref(), tls.clone())?;
    let Servers { server, guard, .. } = &args.servers;
    let is_anything_named =
        server.is_some() || guard.is_some() || args.redis.is_some() || args.direct.is_some();
    let named = |url: &Option<String>| url.is_some() || !is_anything_named;
    let mut checks = servers(&client, &http, tls, [named(server), named(guard)]).await;
    if let Some(target) = args.redis {
        checks.extend(redis::check(target, &args.redis_login).await);
    }
    if let Some(target) = args.direct {
        checks.extend(direct::check(&target, args.direct_key.as_deref()).await);
    }
    args.output.print(&checks, |checks| check::table(checks))?;
    Ok(exit_code(&checks, args.strict))
}

/// Checks each server, both together, and the way through them.
async fn servers(
    client: &Client,
    http: &http::Http,
    tls: TlsOptions,
    [has_lock_server, has_guard]: [bool; 2],
) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut lock_server = None;
    if has_lock_server {
        let mut found = server::examine(LOCK_SERVER, client.lock_server(), http).await;
        checks.append(&mut found.checks);
        lock_server = Some(found);
    }
    let mut guard = None;
    let mut stored = None;
    if has_guard {
        let mut found = server::examine(GUARD, client.fenced_store(), http).await;
        checks.append(&mut found.checks);
        if found.version.is_some() {
            let (lines, stores) = stores::check(GUARD, client.fenced_store(), http).await;
            checks.extend(lines);
            checks.extend(found.is_ready.then(|| unreported(&checks)).flatten());
            stored = stores;
        }
        guard = Some(found);
    }
    let versions = |found: &Option<Examined>| found.as_ref().and_then(|it| it.version.clone());
    if let Some((lock_server, guard)) = versions(&lock_server).zip(versions(&guard)) {
        checks.extend(pair::check(&lock_server, &guard));
    }
    let is_usable = |found: &Option<Examined>| found.as_ref().is_none_or(Examined::is_usable);
    if has_lock_server && is_usable(&lock_server) && is_usable(&guard) {
        let reports = own_check(&checks, REPORTS).is_some_and(|check| check.verdict == Verdict::Ok);
        let site = Site {
            client,
            guard: has_guard.then(|| GuardSide {
                stores: stored.as_ref(),
                login: StoreLogin { tls, ..StoreLogin::default() },
                reports,
            }),
            compares_by_lock: own_check(&checks, "lock-server guarantee")
                .is_some_and(|check| check.text.starts_with("redis-quorum:")),
        };
        checks.extend(round_trip::check(&site).await);
    }
    checks
}

fn own_check<'a>(checks: &'a [Check], about: &str) -> Option<&'a Check> {
    checks.iter().find(|check| check.about == about)
}

/// The finding of a guard that does not report what it refuses.
fn unreported(checks: &[Check]) -> Option<Check> {
    let text = "it reports refusals nowhere: the lock server cannot show a holder what was refused, \
                or why; start fenced-store with --report-to and the lock server's address";
    own_check(checks, REPORTS).is_none().then(|| Check::warning(REPORTS, text))
}

fn exit_code(checks: &[Check], is_strict: bool) -> u8 {
    match checks.iter().map(|check| check.verdict).max() {
        Some(Verdict::Failing) => code::UNAVAILABLE,
        Some(Verdict::Warning) if is_strict => code::NOTHING,
        _ => code::OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_verdict_decides() {
        let ok = || Check::ok("a", "b");
        let warning = || Check::warning("a", "b");
        assert_eq!(exit_code(&[ok(), Check::information("a", "b")], true), code::OK);
        assert_eq!(exit_code(&[ok(), warning()], false), code::OK);
        assert_eq!(exit_code(&[warning(), ok()], true), code::NOTHING);
        let failing = [Check::failing("a", "b"), warning(), ok()];
        assert_eq!(exit_code(&failing, false), code::UNAVAILABLE);
    }
}
