//! A key through the guard's Redis port, under the lock of the round trip.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use redis_link::RedisTarget;

use super::check::Check;

const ABOUT: &str = "redis port";
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time after which the key is gone even if it cannot be removed, in milliseconds.
const KEY_MS: u64 = 60_000;

/// Writes and removes a key of the lock's name with the higher token, and tries to log in with the
/// lower one. `listen` is the port's address as the guard at `base` says it.
pub(super) async fn check(
    listen: &str,
    base: &str,
    first: &LeaseReply,
    second: &LeaseReply,
) -> Check {
    let address = match reachable(listen, base) {
        Ok(address) => address,
        Err(why) => return Check::information(ABOUT, why),
    };
    let tried = tokio::time::timeout(TIMEOUT * 4, attempt(&address, first, second)).await;
    let silence = || Err(Check::warning(ABOUT, format!("{address} does not reply")));
    tried.unwrap_or_else(|_| silence()).unwrap_or_else(|failed| failed)
}

/// The address as it is reached from here.
///
/// # Errors
/// A sentence where it cannot be.
fn reachable(listen: &str, base: &str) -> Result<String, String> {
    let host = reqwest::Url::parse(base).ok().and_then(|url| url.host_str().map(str::to_owned));
    let host = host.unwrap_or_default();
    let Ok(address) = listen.parse::<SocketAddr>() else { return Ok(listen.to_owned()) };
    let guard: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    let is_here = host == "localhost" || guard.is_some_and(|ip| ip.is_loopback());
    if address.ip().is_loopback() && !is_here {
        return Err(format!("not tried: {listen} is reached from the guard's own machine alone"));
    }
    if address.ip().is_unspecified() {
        return Ok(format!("{host}:{}", address.port()));
    }
    Ok(listen.to_owned())
}

async fn attempt(address: &str, first: &LeaseReply, second: &LeaseReply) -> Result<Check, Check> {
    let key = second.lock.as_str();
    let mut high = connect(address).await?;
    log_in(&mut high, second).await.map_err(|why| {
        Check::failing(ABOUT, format!("{address} refuses token {}: {why}", second.token))
    })?;
    let mut set = redis::cmd("SET");
    set.arg(key).arg("written by fence doctor").arg("PX").arg(KEY_MS);
    if let Err(why) = run(&mut high, &set).await {
        let text = format!("{address} admits token {}, and refuses SET {key}: {why}", second.token);
        let is_rule = why.starts_with("DENIED") || why.starts_with("WRONGTOKEN");
        return Err(if is_rule {
            Check::information(ABOUT, text)
        } else {
            Check::failing(ABOUT, text)
        });
    }
    let mut low = connect(address).await?;
    let late = log_in(&mut low, first).await;
    let removed = run(&mut high, redis::cmd("DEL").arg(key)).await;
    let tokens = format!("{} after {}", first.token, second.token);
    match (late, removed) {
        (Err(why), Ok(_)) if why.starts_with("FENCED") => {
            let text = format!("{address}: {key} was written and removed, token {tokens} refused");
            Ok(Check::ok(ABOUT, text))
        }
        (Err(why), Ok(_)) => {
            let text = format!("{address} refuses token {tokens} for another reason: {why}");
            Err(Check::warning(ABOUT, text))
        }
        (Ok(_), _) => {
            let text = format!("{address} admitted token {tokens}: nothing is fenced there");
            Err(Check::warning(ABOUT, text))
        }
        (_, Err(why)) => {
            let text = format!("the key {key} could not be removed; it ends in 60 s: {why}");
            Err(Check::warning(ABOUT, text))
        }
    }
}

async fn connect(address: &str) -> Result<MultiplexedConnection, Check> {
    let target: Result<RedisTarget, _> = format!("redis://{address}").parse();
    let unreached = |why: String| {
        Check::warning(ABOUT, format!("it cannot be reached from here, so it was not tried: {why}"))
    };
    let target = target.map_err(|error| unreached(error.to_string()))?;
    target.connect(TIMEOUT).await.map_err(unreached)
}

async fn log_in(
    connection: &mut MultiplexedConnection,
    lease: &LeaseReply,
) -> Result<Value, String> {
    run(connection, redis::cmd("AUTH").arg(&lease.fencing_credential)).await
}

/// Runs a command; an error begins with its code.
async fn run(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, String> {
    match tokio::time::timeout(TIMEOUT, command.query_async::<Value>(connection)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(match error.code() {
            Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
            None => error.to_string(),
        }),
        Err(_) => Err(format!("no reply within {} s", TIMEOUT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_reached_where_its_guard_is() {
        let port = |listen, base| reachable(listen, base).map_err(|_| ());
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(port("127.0.0.1:6380", "http://127.0.0.1:7421"), ok("127.0.0.1:6380"));
        assert_eq!(port("127.0.0.1:6380", "http://localhost:7421"), ok("127.0.0.1:6380"));
        assert_eq!(port("127.0.0.1:6380", "http://guard.example.org:7421"), Err(()));
        assert_eq!(port("0.0.0.0:6380", "http://guard.example.org"), ok("guard.example.org:6380"));
        assert_eq!(port("[::]:6380", "http://[::1]:7421"), ok("[::1]:6380"));
        assert_eq!(port("10.0.0.7:6380", "http://10.0.0.7:7421"), ok("10.0.0.7:6380"));
    }
}
