//! `fence doctor`: judges an installation.

mod check;
mod http_date;
mod redis;
mod server;

use service_kit::redis_link::RedisTarget;

use crate::connect::Connect;
use crate::exit::{Failure, code};
use crate::output::Output;
use check::{Check, Verdict};

/// Checks that the servers work and are safe to rely on
///
/// Asks both servers whether they live and are ready, shows each of their own checks, and compares
/// versions and clocks. With --redis it also judges a Redis: what it forgets when it restarts, what
/// it drops when it is full, and its clock.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence doctor
  fence doctor --redis redis://127.0.0.1:6379 --strict
  fence doctor --output json | jq '.[] | select(.verdict != \"ok\")'

Exit codes: 0 nothing fails, 1 there are warnings and --strict was given, 69 something fails")]
pub(crate) struct Args {
    /// Judge this Redis too: redis://host:port, or redis://user:password@host:port
    #[arg(long, value_name = "URL")]
    redis: Option<RedisTarget>,

    /// End with 1 when there are warnings
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    connect: Connect,
}

/// Checks everything; the exit code.
pub(crate) async fn doctor(args: Args) -> Result<u8, Failure> {
    let client = args.connect.client()?;
    let http = server::http_client()?;
    let mut checks = server::judge("lock-server", client.lock_server(), &http).await;
    checks.extend(server::judge("fenced-store", client.fenced_store(), &http).await);
    if let Some(target) = args.redis {
        checks.extend(redis::judge(target).await);
    }
    args.output.print(&checks, |checks| check::table(checks))?;
    Ok(exit_code(&checks, args.strict))
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
        assert_eq!(exit_code(&[ok()], true), code::OK);
        assert_eq!(exit_code(&[ok(), warning()], false), code::OK);
        assert_eq!(exit_code(&[warning(), ok()], true), code::NOTHING);
        let failing = [Check::failing("a", "b"), warning(), ok()];
        assert_eq!(exit_code(&failing, false), code::UNAVAILABLE);
    }
}
