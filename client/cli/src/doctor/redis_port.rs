//! A key through the guard's Redis port, under the lock of the round trip.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use redis_link::RedisTarget;
use service_kit::login::StoreLogin;

use super::check::Check;

const ABOUT: &str = "redis port";
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time after which the key is gone even if it cannot be removed, in milliseconds.
const KEY_MS: u64 = 60_000;

/// Writes and removes a key of the lock's name with the higher token, and tries to log in with the
/// lower one. `listen` is the port's address as the guard at `base` says it; the port speaks TLS if
/// the guard does, with the certificates of `login`.
pub(super) async fn check(
    listen: &str,
    base: &str,
    login: &StoreLogin,
    [first, second]: [&LeaseReply; 2],
) -> Check {
    let url = match reachable(listen, base) {
        Ok(url) => url,
        Err(why) => return Check::information(ABOUT, why),
    };
    let target = url.parse::<RedisTarget>().map_err(|error| error.to_string());
    let certified = |target: RedisTarget| match target.is_tls() {
        true => target.with_login(login),
        false => Ok(target),
    };
    let target = match target.and_then(certified) {
        Ok(target) => target,
        Err(why) => return Check::warning(ABOUT, format!("not tried: {why}")),
    };
    let tried = tokio::time::timeout(TIMEOUT * 4, attempt(&url, &target, first, second)).await;
    let silence = || Err(Check::warning(ABOUT, format!("{url} does not reply")));
    tried.unwrap_or_else(|_| silence()).unwrap_or_else(|failed| failed)
}

/// Returns the URL by which the port is reached from here. Under TLS it has the guard's own name,
/// which is in the certificate.
///
/// # Errors
/// A sentence where it cannot be.
fn reachable(listen: &str, base: &str) -> Result<String, String> {
    let url = reqwest::Url::parse(base).ok();
    let host = url.as_ref().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
    let Ok(address) = listen.parse::<SocketAddr>() else { return Ok(format!("redis://{listen}")) };
    let guard: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    let is_here = host == "localhost" || guard.is_some_and(|ip| ip.is_loopback());
    if address.ip().is_loopback() && !is_here {
        return Err(format!("not tried: {listen} is reached from the guard's own machine alone"));
    }
    if url.is_some_and(|url| url.scheme() == "https") {
        return Ok(format!("rediss://{host}:{}", address.port()));
    }
    if address.ip().is_unspecified() {
        return Ok(format!("redis://{host}:{}", address.port()));
    }
    Ok(format!("redis://{listen}"))
}

async fn attempt(
    address: &str,
    target: &RedisTarget,
    first: &LeaseReply,
    second: &LeaseReply,
) -> Result<Check, Check> {
    let key = second.lock.as_str();
    let mut high = connect(target).await?;
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
    let mut low = connect(target).await?;
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

async fn connect(target: &RedisTarget) -> Result<MultiplexedConnection, Check> {
    let unreached = |why: String| {
        Check::warning(ABOUT, format!("it cannot be reached from here, so it was not tried: {why}"))
    };
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
        assert_eq!(port("127.0.0.1:6380", "http://127.0.0.1:7421"), ok("redis://127.0.0.1:6380"));
        assert_eq!(port("127.0.0.1:6380", "http://localhost:7421"), ok("redis://127.0.0.1:6380"));
        assert_eq!(port("127.0.0.1:6380", "http://guard.example.org:7421"), Err(()));
        assert_eq!(
            port("0.0.0.0:6380", "http://guard.example.org"),
            ok("redis://guard.example.org:6380")
        );
        assert_eq!(port("[::]:6380", "http://[::1]:7421"), ok("redis://[::1]:6380"));
        assert_eq!(port("10.0.0.7:6380", "http://10.0.0.7:7421"), ok("redis://10.0.0.7:6380"));
        let named = ok("rediss://guard.example.org:6380");
        assert_eq!(port("10.0.0.7:6380", "https://guard.example.org:7421"), named);
    }
}
