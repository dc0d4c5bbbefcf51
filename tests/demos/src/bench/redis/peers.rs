//! Peers that are measured beside each other: Redis, twemproxy before it, and the guard before it.

use std::path::PathBuf;

use tempfile::TempDir;
use tokio::net::TcpStream;

use super::client::{Keys, Pipe};
use crate::backing::Backing;
use crate::bench::http;
use crate::bench::load::Counted;
use crate::bench::server::Server;
use crate::own_redis::{OwnRedis, find, free_port};
use crate::process::{Process, awaited};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::say;

/// Message if twemproxy is not installed.
const NO_TWEMPROXY: &str =
    "twemproxy: nutcracker is not installed (Debian and Ubuntu: apt install nutcracker)";

/// Everything that was started. Ended by [`Peers::end`], and killed where this is dropped.
pub(super) struct Peers {
    redis: String,
    backing: Backing,
    own_redis: Option<OwnRedis>,
    twemproxy: Option<Twemproxy>,
    guard: String,
    credential: String,
    /// Of locks of which each client has one.
    own_credentials: Vec<String>,
    servers: [Server; 2],
}

/// One side.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// `HOST:PORT`.
    pub(super) at: String,
    tokens: Tokens,
    /// Prefix of its keys.
    prefix: String,
    pub(super) counted: Vec<Counted>,
}

/// The credentials of the clients of a side.
#[derive(Clone, Debug)]
enum Tokens {
    None,
    /// One that all present.
    Same(String),
    /// One for each, of a lock of its own.
    Own(Vec<String>),
}

impl Column {
    /// Connects client `number`.
    pub(super) async fn open(&self, number: u16) -> Result<Pipe, Failure> {
        let (credential, keys) = match &self.tokens {
            Tokens::None => (None, Keys { prefix: self.prefix.clone(), shares: 1 }),
            Tokens::Same(credential) => {
                (Some(credential), Keys { prefix: self.prefix.clone(), shares: 1 })
            }
            Tokens::Own(credentials) => {
                let prefix = format!("{}{number:03}/", self.prefix);
                let shares = u32::try_from(credentials.len()).unwrap_or(u32::MAX);
                (credentials.get(usize::from(number)), Keys { prefix, shares })
            }
        };
        Pipe::open(&self.at, credential.map(String::as_str), keys, number).await
    }
}

impl Peers {
    /// Starts what is measured for so many clients; `url` is a Redis, or `own`.
    pub(super) async fn start(url: &str, clients: u16) -> Result<Self, Failure> {
        let own_redis = match url {
            "own" => Some(OwnRedis::start("name one: --redis redis://HOST:PORT").await?),
            _ => None,
        };
        let url = own_redis.as_ref().map_or(url, OwnRedis::url);
        let redis = plain_address(url)?;
        let backing = Backing::redis(url, "bench")
            .map_err(|error| Failure::usage(format!("--redis: {error}")))?;
        backing.check().await?;
        let namespace = backing.namespace().to_owned();
        let twemproxy = Twemproxy::start(&redis).await?;
        if twemproxy.is_none() {
            say(&format!("NOT MEASURED: {NO_TWEMPROXY}"));
        }
        let of_namespace = ["--namespace", &namespace];
        let locks = Server::start("lock-server", "embedded:", &of_namespace).await?;
        let rules = [
            format!("--rule={namespace}/fenced/**={namespace}/fenced"),
            format!("--rule={namespace}/opened/**=@open"),
            format!("--rule={namespace}/o/{{client}}/**={namespace}/{{client}}"),
        ];
        let mut guard_args = vec!["--namespace", &namespace, "--redis-listen=127.0.0.1:0"];
        guard_args.extend(rules.iter().map(String::as_str));
        let guard = Server::start("fenced-store", url, &guard_args).await?;
        let port = guard.port.clone().unwrap_or_default();
        let mut own_credentials = Vec::new();
        for number in 0..clients {
            own_credentials.push(
                http::lease(&locks.url, &format!("{namespace}/{number:03}"))
                    .await?
                    .fencing_credential,
            );
        }
        let credential =
            http::lease(&locks.url, &format!("{namespace}/fenced")).await?.fencing_credential;
        let guard_at = port.trim_start_matches("redis://").to_owned();
        let servers = [locks, guard];
        Ok(Self {
            redis,
            backing,
            own_redis,
            twemproxy,
            guard: guard_at,
            credential,
            own_credentials,
            servers,
        })
    }

    /// The sides, Redis itself first.
    pub(super) fn columns(&self) -> Vec<Column> {
        let namespace = self.backing.namespace();
        let fenced = format!("{namespace}/fenced/");
        let opened = format!("{namespace}/opened/");
        let redis = self.own_redis.as_ref().map(|redis| ("redis", redis.pid()));
        let column = |name, at: &str, prefix: &str, proxy: Option<Counted>| Column {
            name,
            at: at.to_owned(),
            tokens: Tokens::None,
            prefix: prefix.to_owned(),
            counted: redis.into_iter().chain(proxy).collect(),
        };
        let mut columns = vec![column("direct", &self.redis, &fenced, None)];
        if let Some(twemproxy) = &self.twemproxy {
            let process = ("twemproxy", twemproxy.process.pid());
            columns.push(column("twemproxy", &twemproxy.at, &fenced, Some(process)));
        }
        let process = Some(("fenced-store", self.servers[1].pid()));
        let with_token = column("guard, token", &self.guard, &fenced, process);
        columns.push(Column { tokens: Tokens::Same(self.credential.clone()), ..with_token });
        let own = column("guard, a lock each", &self.guard, &format!("{namespace}/o/"), process);
        columns.push(Column { tokens: Tokens::Own(self.own_credentials.clone()), ..own });
        columns.push(column("guard, open keys", &self.guard, &opened, process));
        columns
    }

    /// Sides that are not there, and why.
    pub(super) fn missing(&self) -> Vec<String> {
        if self.twemproxy.is_some() { Vec::new() } else { vec![NO_TWEMPROXY.to_owned()] }
    }

    /// Ends what was started, and deletes what was written.
    pub(super) async fn end(self) -> Result<(), Failure> {
        let Self { backing, own_redis, twemproxy, servers, .. } = self;
        for server in servers {
            server.end().await;
        }
        if let Some(twemproxy) = twemproxy {
            twemproxy.process.end().await;
        }
        match own_redis {
            Some(redis) => redis.end().await,
            None => backing.clean().await?,
        }
        Ok(())
    }
}

/// `HOST:PORT` of a Redis that takes connections as they come.
pub(in crate::bench) fn plain_address(url: &str) -> Result<String, Failure> {
    let rest = url.strip_prefix("redis://").unwrap_or_default().trim_end_matches('/');
    if rest.is_empty() || rest.contains(['@', '/', '?', ',']) {
        return Err(Failure::usage(
            "--redis: a benchmark needs redis://HOST:PORT, without a password and a database: \
             twemproxy takes neither",
        ));
    }
    Ok(if rest.contains(':') { rest.to_owned() } else { format!("{rest}:6379") })
}

/// twemproxy on a port of its own.
struct Twemproxy {
    at: String,
    process: Process,
    _dir: TempDir,
}

impl Twemproxy {
    /// Starts `nutcracker` before the Redis at `redis`; `None` where it is not installed.
    async fn start(redis: &str) -> Result<Option<Self>, Failure> {
        let Some(program) = find("nutcracker") else { return Ok(None) };
        let broken = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
        let dir = tempfile::Builder::new().prefix("fence-bench-").tempdir().map_err(broken)?;
        let at = format!("127.0.0.1:{}", free_port().map_err(broken)?);
        let conf = dir.path().join("nutcracker.yml");
        let text = format!(
            "bench:\n  listen: {at}\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  \
             auto_eject_hosts: false\n  servers:\n   - {redis}:1\n"
        );
        std::fs::write(&conf, text).map_err(broken)?;
        let path = |path: PathBuf| path.display().to_string();
        let args = [
            "--conf-file".to_owned(),
            path(conf),
            "--output".to_owned(),
            path(dir.path().join("nutcracker.out")),
            "--stats-addr".to_owned(),
            "127.0.0.1".to_owned(),
            "--stats-port".to_owned(),
            free_port().map_err(broken)?.to_string(),
        ];
        let process = Process::start_other("nutcracker", &program, &args, dir.path())?;
        let answers = async || Ok(TcpStream::connect(&at).await.ok());
        awaited("a twemproxy that answers", answers).await?;
        Ok(Some(Self { at, process, _dir: dir }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_addresses_are_measured() {
        assert_eq!(plain_address("redis://127.0.0.1:6379/").unwrap(), "127.0.0.1:6379");
        assert_eq!(plain_address("redis://localhost").unwrap(), "localhost:6379");
        for bad in ["", "redis://", "http://a:1", "redis://u:p@a:1", "redis://a:1/3"] {
            assert_eq!(plain_address(bad).unwrap_err().code(), code::USAGE, "{bad}");
        }
    }
}
