//! Judging a Redis directly, before a server relies on it.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::Namespace;
use lock_server::engines::redis::judge::{ClockWatch, Finding, Version, oldest_version, probe};
use lock_server::engines::redis::key_prefix::KeyPrefix;
use lock_server::engines::redis::rights::Needs;
use redis::Cmd;
use redis::aio::MultiplexedConnection;
use redis_link::{
    LinkError, LinkOptions, Product, RedisLink, RedisTarget, Verifier, info_field, text_fields,
};
use service_kit::clock::SystemClock;
use service_kit::flags::StoreLoginFlags;
use service_kit::tasks::Tasks;

use super::check::Check;
use super::unreached::{Reachability, reachability};

/// Doctor only reads, so any Redis will do; the server's own verification is another matter.
struct AnyRedis;

#[async_trait]
impl Verifier for AnyRedis {
    async fn verify(&self, _connection: &mut MultiplexedConnection) -> Result<(), String> {
        Ok(())
    }
}

/// Login and keys of lock-server at the Redis, as the server's own flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "The Redis")]
pub(super) struct Login {
    /// The CA of its certificates (PEM), for rediss://
    #[arg(long, value_name = "FILE", requires = "redis")]
    redis_ca: Option<PathBuf>,

    /// The certificate to present (PEM)
    #[arg(long, value_name = "FILE", requires = "redis")]
    redis_cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "redis")]
    redis_key: Option<PathBuf>,

    /// The user whose rights are checked
    #[arg(long, value_name = "NAME", requires = "redis")]
    redis_user: Option<String>,

    /// The user's password, in one line
    #[arg(long, value_name = "FILE", requires = "redis")]
    redis_password_file: Option<PathBuf>,

    /// Password of the sentinels
    #[arg(long, value_name = "FILE", requires = "redis")]
    redis_sentinel_password_file: Option<PathBuf>,

    /// The --key-prefix of lock-server
    #[arg(long, value_name = "TEXT", requires = "redis")]
    redis_key_prefix: Option<KeyPrefix>,

    /// The namespace of the locks
    #[arg(long, value_name = "NAME", default_value = "default")]
    redis_namespace: Namespace,
}

impl Login {
    fn target(&self, target: RedisTarget) -> Result<RedisTarget, String> {
        let flags = StoreLoginFlags {
            store_ca: self.redis_ca.clone(),
            store_cert: self.redis_cert.clone(),
            store_key: self.redis_key.clone(),
            store_user: self.redis_user.clone(),
            store_password_file: self.redis_password_file.clone(),
            sentinel_password_file: self.redis_sentinel_password_file.clone(),
        };
        target.with_login(&flags.login()?)
    }

    fn prefix(&self) -> String {
        self.redis_key_prefix.clone().unwrap_or_default().for_namespace(&self.redis_namespace)
    }
}

/// Checks what the servers would find, and what the guard's port needs.
pub(super) async fn check(target: RedisTarget, login: &Login) -> Vec<Check> {
    let tasks = Tasks::new();
    let named = target.clone();
    let found = match login.target(target) {
        Ok(target) => check_at(target, &login.prefix(), &tasks).await,
        Err(error) => Err(error),
    };
    tasks.begin_shutdown();
    match found {
        Ok(checks) => checks,
        Err(error) => vec![Check::failing("redis", failure(&named, &error).await)],
    }
}

/// The finding of a Redis that cannot be examined: the cause, and what to do.
async fn failure(target: &RedisTarget, error: &str) -> String {
    // A Redis that sentinels name is asked for its role before anything else.
    if error.contains("ROLE") && error.contains("NOAUTH") {
        return wants_password(target);
    }
    if ["no reply within", "timed out"].iter().any(|late| error.contains(late)) {
        let limit = LinkOptions::default().connect_timeout;
        if let Ok(address) = target.tcp_address(limit).await {
            return silence(target, reachability(&address, limit).await);
        }
    }
    if error.starts_with("Redis at ") && error.contains("Parse error") {
        let other = if target.is_tls() { "" } else { ", and write rediss:// if it speaks TLS" };
        return format!("the reply of {target} is none of Redis; correct the URL{other}");
    }
    let error = with_own_flags(error).lines().map(str::trim).collect::<Vec<_>>().join(" ");
    match error.contains(" broke: ") {
        true => format!("{error}; look at the log of Redis, and try again"),
        false => error,
    }
}

/// The finding of a Redis that did not reply in time.
fn silence(target: &RedisTarget, reachability: Reachability) -> String {
    match reachability {
        Reachability::Open => format!(
            "Redis at {target} does not reply, though connections are accepted: it is paused, or \
             busy with one long command; look at its process, its log and SLOWLOG, and restart it \
             if that does not end"
        ),
        Reachability::Closed(why) | Reachability::Untried(why) => {
            format!("Redis at {target} cannot be reached: {why}; start it, or correct the URL")
        }
    }
}

fn wants_password(target: &RedisTarget) -> String {
    format!(
        "Redis at {target} wants a password (NOAUTH), so nothing else could be checked: name its \
         file with --redis-password-file, and the user with --redis-user if it is not \"default\""
    )
}

/// The servers' flags are named as here but for what they begin with.
fn with_own_flags(text: &str) -> String {
    text.replace("--store", "--redis").replace("--sentinel-", "--redis-sentinel-")
}

async fn check_at(target: RedisTarget, prefix: &str, tasks: &Tasks) -> Result<Vec<Check>, String> {
    let target = target.in_slot_of(prefix.as_bytes());
    let needs = Needs::new(&target, prefix);
    let link = RedisLink::start(target, LinkOptions::default(), Arc::new(AnyRedis), tasks).await?;
    all(&link, &needs).await
}

async fn all(link: &RedisLink, needs: &Needs) -> Result<Vec<Check>, String> {
    login_suffices(link).await?;
    let mut checks = Vec::from_iter(version(link).await?);
    checks.extend(cluster(link).await?);
    let findings = probe(link, &SystemClock::new(), &mut ClockWatch::default()).await?;
    if findings.is_empty() {
        checks.push(Check::ok("redis", "keeps what it acknowledges, and its clock agrees"));
    }
    checks.extend(findings.into_iter().map(finding_check));
    checks.push(own_rights(link, needs).await);
    checks.extend(rights(link).await?);
    Ok(checks)
}

/// Before a login Redis refuses every command, and what a user may do does not show.
///
/// # Errors
/// A sentence if a password is missing, or Redis does not reply.
async fn login_suffices(link: &RedisLink) -> Result<(), String> {
    match link.call(&redis::cmd("PING")).await {
        Err(LinkError::Server { code, .. }) if code == "NOAUTH" => {
            Err(wants_password(link.target()))
        }
        Ok(_) | Err(LinkError::Server { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn finding_check(finding: Finding) -> Check {
    let about = format!("redis {}", finding.about);
    if finding.severe {
        Check::failing(about, finding.text)
    } else {
        Check::warning(about, finding.text)
    }
}

/// Checks the version. One that is not tested is among the findings.
async fn version(link: &RedisLink) -> Result<Option<Check>, String> {
    let about = "redis version";
    let Some(info) = info(link, "server").await? else {
        return Ok(Some(Check::warning(about, "INFO may not be read; allow it to both servers")));
    };
    let compatible = info_field(&info, "redis_version").and_then(Version::parse);
    let Some(product) = Product::from_info(&info) else {
        return Ok(Some(Check::failing(about, "INFO has no redis_version: this is no Redis")));
    };
    if compatible.is_none_or(|found| found < oldest_version()) {
        let oldest = oldest_version();
        let text = format!("{product} is not supported; use version {oldest} or newer");
        return Ok(Some(Check::failing(about, text)));
    }
    Ok(product.untested().is_none().then(|| Check::ok(about, product.to_string())))
}

async fn cluster(link: &RedisLink) -> Result<Option<Check>, String> {
    let info = info(link, "cluster").await?.unwrap_or_default();
    let is_node = info_field(&info, "cluster_enabled") == Some("1");
    let text = "cluster_enabled is 1: lock-server refuses a node of a cluster, and a guard can fence \
                there only command by command";
    Ok(is_node.then(|| Check::warning("redis cluster", text)))
}

/// A section of INFO, if it may be read.
async fn info(link: &RedisLink, section: &str) -> Result<Option<String>, String> {
    let mut command = redis::cmd("INFO");
    command.arg(section);
    match link.call(&command).await {
        Ok(value) => Ok(text_fields(redis::Value::Array(vec![value])).unwrap_or_default().pop()),
        Err(LinkError::Server { .. }) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks the rights that lock-server needs, without changing anything.
async fn own_rights(link: &RedisLink, needs: &Needs) -> Check {
    let about = "redis rights of lock-server";
    match needs.check_over(link, LinkOptions::default().connect_timeout).await {
        Ok(()) => Check::ok(about, "this user may do all that lock-server needs"),
        Err(error) => Check::warning(about, with_own_flags(&error)),
    }
}

/// Checks the commands with which the guard's Redis port ends the connections of a stale holder and
/// to confine scripts, each tried in a way that changes nothing: a client that does not exist, a
/// user whose name Redis refuses.
async fn rights(link: &RedisLink) -> Result<Vec<Check>, String> {
    let needs = [
        ("CLIENT KILL", words(&["CLIENT", "KILL", "ID", "9223372036854775807"])),
        ("CLIENT LIST", words(&["CLIENT", "LIST", "ID", "9223372036854775807"])),
        ("ACL SETUSER", words(&["ACL", "SETUSER", "no such user"])),
        ("ACL DELUSER", words(&["ACL", "DELUSER", "no such user"])),
    ];
    let mut refused = Vec::new();
    for (name, command) in needs {
        match link.call(&command).await {
            Err(LinkError::Server { code, .. }) if code == "NOPERM" => refused.push(name),
            Err(LinkError::Server { code, .. }) if code == "NOAUTH" => {
                return Err(wants_password(link.target()));
            }
            Ok(_) | Err(LinkError::Server { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let about = "redis rights";
    if refused.is_empty() {
        let text = "this user may end clients and make users, as the guard's Redis port has to";
        return Ok(vec![Check::ok(about, text)]);
    }
    let text = format!(
        "{} refused to this user: the guard's Redis port cannot end the connections of a stale \
         holder, or confine scripts; allow it to the guard's user: ACL SETUSER guard {}",
        match refused.as_slice() {
            [one] => format!("{one} is"),
            several => format!("{} are", several.join(", ")),
        },
        refused
            .iter()
            .map(|name| format!("+{}", name.to_lowercase().replace(' ', "|")))
            .collect::<Vec<_>>()
            .join(" ")
    );
    Ok(vec![Check::warning(about, text)])
}

pub(super) fn words(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}
