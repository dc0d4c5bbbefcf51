//! Flags, variables (`FENCED_STORE_…`) and configuration keys, and the settings made from them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use access_control::AccessFlags;
use access_control::secret::authorization;
use clap::{Parser, Subcommand};
use fence_protocol::duration::{parse, parse_positive};
use fence_protocol::wire::fence::Mode;
use fence_protocol::{Namespace, Token};
use service_kit::config::report::ConfigAction;
use service_kit::flags::{
    HostFlags, KeyFlags, ListenerFlags, LogFlags, PeerFlags, StoreLoginFlags, TlsFlags, TraceFlags,
};
use service_kit::listener::{Exposure, ListenAddr, Safeguards};
use service_kit::tls::ServerUrl;

use crate::doors::http_proxy::{Upstream, UpstreamTlsFlags, upstream_url};
use crate::doors::redis::resp::request::ARGUMENT_BYTES_MAX;
use crate::doors::redis::{
    AfterFenced, PortPassword, PortSettings, SilenceLimits, plain_text_reply,
};
use crate::fail_points::{FailAt, FailPoints};
use crate::https::Https;
use crate::report::ReportOptions;
use crate::rules::{DefaultRule, Rule, Rules};
use crate::settings::{Backend, Settings};
use crate::store::StoreUrl;
use crate::store::redis::{LostMarks, RedisOptions};

/// Prefix of the environment variables.
pub const PREFIX: &str = "FENCED_STORE";

/// The storage guard of Fencepost: refuses every operation whose fencing token is lower than the
/// highest it has seen.
///
/// Every flag is also a key of the configuration file and a variable: --token-key-file is
/// token-key-file and FENCED_STORE_TOKEN_KEY_FILE. A flag beats a variable, which beats the file.
#[derive(Clone, Debug, Parser)]
#[command(name = "fenced-store", version, after_help = EXAMPLES)]
pub struct Config {
    /// Subcommand in place of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Address of the API; port 0 lets the system choose. One beyond loopback needs TLS, an access
    /// file and signed tokens.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7421")]
    pub listen: SocketAddr,
    /// Store of objects and marks. It is memory:, embedded:DIR, redis://HOST:PORT,
    /// redis-sentinel://HOST:PORT/MASTER or redis-cluster://HOST:PORT,HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub store: Option<StoreUrl>,
    /// Earlier store of this guard, for a change of --store: its marks are carried over before
    /// anything is served. Stop its guards first. Objects are not copied.
    #[arg(long, value_name = "URL")]
    pub marks_from: Option<StoreUrl>,
    /// Login of the guard at the store.
    #[command(flatten)]
    pub login: StoreLoginFlags,
    /// Namespace of the tokens, the lock server's.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub namespace: Namespace,
    /// PATTERN=LOCK: the lock that protects a resource; repeatable, the first match wins. As in
    /// 'orders/{id}/**=orders/{id}', 'orders:{id}:**=orders/{id},unfenced-reads', 'public/**=@open'
    /// for no lock, and @deny to refuse.
    #[arg(long = "rule", value_name = "PATTERN=LOCK")]
    pub rule: Vec<Rule>,
    /// Keys that no rule matches: fenced, open or deny. With fenced the key itself is the lock.
    #[arg(long, value_name = "WORD", value_enum, default_value_t)]
    pub default_rule: DefaultRule,
    /// Keys that verify tokens.
    #[command(flatten)]
    pub keys: KeyFlags,
    /// Rights of the callers of --listen; the other ports identify clients by fencing tokens.
    #[command(flatten)]
    pub access: AccessFlags,
    /// Lock server to which refusals are reported, http(s)://HOST:PORT; repeatable. The first that
    /// replies takes them. No operation waits for it.
    #[arg(long, value_name = "URL")]
    pub report_to: Vec<ServerUrl>,
    /// Bearer token for reports to a lock server with an access file. It needs the right "report *"
    /// there.
    #[arg(long, value_name = "FILE")]
    pub report_auth_file: Option<PathBuf>,
    /// HTTPS to lock servers.
    #[command(flatten)]
    pub peers: PeerFlags,
    /// enforce, or observe: count, log and execute what enforce refuses.
    #[arg(long, value_name = "enforce|observe", default_value_t = Mode::Enforce)]
    pub mode: Mode,
    /// Reads of protected objects need no token, and raise no mark.
    #[arg(long)]
    pub allow_unfenced_reads: bool,

    /// Address of the reverse proxy, with --upstream, --max-request-lifetime and --state; excludes
    /// --store.
    #[arg(long, value_name = "ADDR")]
    pub proxy_listen: Option<SocketAddr>,
    /// Datastore of the proxy, http(s)://HOST:PORT.
    #[arg(long, value_name = "URL", value_parser = upstream_url)]
    pub upstream: Option<ServerUrl>,
    /// HTTPS to the datastore.
    #[command(flatten)]
    pub upstream_tls: UpstreamTlsFlags,
    /// Time for which the upstream may act on a request whose connection broke. You have to know
    /// it: the guarantee "bounded" is worth what this number is. No default.
    #[arg(long, value_name = "DURATION", value_parser = parse_positive)]
    pub max_request_lifetime: Option<Duration>,
    /// Folder of the proxy's durable marks and intents.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Time for the upstream's reply, then the outcome is unknown.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive)]
    pub upstream_timeout: Duration,
    /// Longest wait of a request for lower ones, then 503.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive)]
    pub drain_wait: Duration,

    /// Address of the Redis port, before the Redis of --store. Clients keep their driver and give
    /// the token as the password.
    #[arg(long, value_name = "ADDR")]
    pub redis_listen: Option<SocketAddr>,
    /// The Redis port speaks no TLS, though the other ports do (--tls-cert). For clients on this
    /// machine.
    #[arg(long)]
    pub redis_plaintext: bool,
    /// Threads of the Redis port, 1 to 64. One is enough for what one Redis can do.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub redis_threads: usize,
    /// Largest command at the Redis port, at most 513 MiB. That holds an argument of the 512 MiB
    /// that Redis takes.
    #[arg(long, value_name = "BYTES", default_value_t = COMMAND_BYTES)]
    pub max_command_bytes: usize,
    /// Buffers of all clients of the Redis port, beyond 64 KiB each and direction.
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20)]
    pub max_redis_buffer_bytes: usize,
    /// Idle time of a client of the Redis port with a token; 0 is no limit. A client that waits for
    /// Redis, or subscribes, is not idle.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse)]
    pub redis_idle_timeout: Duration,
    /// close or keep a connection of the Redis port after FENCED. Closed, pools connect again with
    /// the newest token; kept, it takes a newer token.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub after_fenced: AfterFenced,
    /// Password of the Redis port, in one line. As Redis' requirepass: a client is served nothing
    /// until it has presented the password or a fencing credential. Read again when it changes; not
    /// with --unsigned, where any program can make a credential.
    #[arg(long, value_name = "FILE")]
    pub redis_password_file: Option<PathBuf>,
    /// After Redis lost marks: refuse until the first token to be admitted is known, or accept.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = LostMarks::Refuse)]
    pub lost_marks: LostMarks,
    /// First token to be admitted, after Redis lost marks. As POST /v1/floor states it to a guard
    /// that runs. A higher floor that is in force stays.
    #[arg(long, value_name = "TOKEN")]
    pub floor: Option<Token>,
    /// Point at which a test makes the guard stop or end; only in builds with debug assertions.
    #[arg(long, value_name = "POINT=stop|kill", hide = true)]
    pub fail_at: Option<FailAt>,

    /// Largest object, and largest forwarded request.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub max_object_bytes: usize,
    /// Bytes of all bodies being received, and of all objects being sent. A quarter of each is kept
    /// for those of at most 64 KiB.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    pub max_body_bytes_in_all: usize,
    /// Limits of the listeners.
    #[command(flatten)]
    pub listener: ListenerFlags,
    /// TLS of the listeners.
    #[command(flatten)]
    pub tls: TlsFlags,
    /// Host names of the guard.
    #[command(flatten)]
    pub hosts: HostFlags,
    /// Log settings.
    #[command(flatten)]
    pub log: LogFlags,
    /// Destination of spans.
    #[command(flatten)]
    pub traces: TraceFlags,
    /// TOML file with any of these settings.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

/// Largest command that a setting can allow: the longest argument, and room for the others.
const COMMAND_BYTES_MAX: usize = ARGUMENT_BYTES_MAX + (1 << 20);
/// Largest command by default.
const COMMAND_BYTES: usize = 64 << 20;
/// Maximum number of lock servers to report to.
const REPORT_TO_MAX: usize = 16;

const EXAMPLES: &str = "\
Examples:
  Objects on this disk, for a first try (no signatures):
    fenced-store --store embedded:data --unsigned
  Objects in Redis, tokens signed by the lock server with the same key file:
    fenced-store --store redis://127.0.0.1:6379 --token-key-file keys.txt
  Before an HTTP datastore that ends every request within 30 seconds:
    fenced-store --proxy-listen 127.0.0.1:7431 --upstream http://127.0.0.1:9000 \\
      --max-request-lifetime 30s --state state --token-key-file keys.txt
  The settings with the origin of each:
    fenced-store config show --config /etc/fencepost/fenced-store.toml
Exit codes: 0 ended by a signal, 1 could not start, 64 bad settings.";

/// Settings that are valid each and conflict together, or name a missing file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SettingsError(Vec<String>);

/// Subcommand in place of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Check that the guard with these settings is ready: exit code 0, otherwise 1.
    Health,
    /// Check or show the settings. Flags of the guard stand before this word.
    #[command(subcommand)]
    Config(ConfigAction),
}

impl Config {
    /// Checks the flags together and reads the key file.
    ///
    /// # Errors
    /// [`SettingsError`] with every problem, a line each.
    pub fn settings(self) -> Result<Settings, SettingsError> {
        let mut problems = Vec::new();
        let backend = keep(self.backend(), &mut problems);
        let exposure = keep(self.exposure(), &mut problems);
        let redis_port = self.redis_port(exposure.clone().unwrap_or_default());
        let redis_port = keep(redis_port, &mut problems);
        problems.extend(self.unusable_marks_from());
        let keys = keep(self.keys.keys().map_err(|error| vec![error]), &mut problems);
        let access = keep(self.access.open().map_err(|error| vec![error]), &mut problems);
        let report = keep(self.report().map_err(|error| vec![error]), &mut problems);
        let rules = Rules::new(self.rule.clone()).map_err(|error| vec![error.to_string()]);
        let rules = keep(rules, &mut problems).map(|rules| rules.with_default(self.default_rule));
        let access = exposure.zip(access).zip(report);
        match (backend, keys, rules, redis_port, access) {
            (
                Some(backend),
                Some(keys),
                Some(rules),
                Some(redis_port),
                Some(((exposure, access), report)),
            ) if problems.is_empty() => Ok(Settings {
                listen: self.listen,
                exposure,
                backend,
                marks_from: self.marks_from.clone(),
                mode: self.mode,
                namespace: self.namespace.clone(),
                keys,
                rules,
                allow_unfenced_reads: self.allow_unfenced_reads,
                max_object_bytes: self.max_object_bytes,
                max_body_bytes_in_all: self.max_body_bytes_in_all,
                listener: self.listener.options(),
                host_names: self.hosts.names(),
                collector: self.traces.otlp_endpoint.clone(),
                redis: RedisOptions {
                    lost_marks: self.lost_marks,
                    floor: self.floor,
                    fail_points: FailPoints::new(self.fail_at),
                },
                redis_port,
                access,
                report,
            }),
            _ => Err(SettingsError(problems)),
        }
    }

    fn backend(&self) -> Result<Backend, Vec<String>> {
        match (&self.store, self.is_proxy()) {
            (Some(store), false) => {
                let store = self.login.login().and_then(|login| store.clone().with_login(&login));
                store.map(Backend::Store).map_err(|error| vec![error])
            }
            (None, true) => self.upstream().map(Backend::Proxy),
            (Some(_), true) => Err(vec![
                "--store and --proxy-listen exclude each other: a lock has one mark; run two \
                 guards with locks of their own"
                    .to_owned(),
            ]),
            (None, false) => Err(vec![
                "--store is missing: set where objects are kept: memory:, embedded:DIR or \
                 redis://HOST:PORT (or set --proxy-listen and --upstream)"
                    .to_owned(),
            ]),
        }
    }

    /// In a cluster a lock has a mark in each slot, and a list shows one of them.
    fn unusable_marks_from(&self) -> Option<String> {
        let text = match (self.marks_from.as_ref()?, &self.store) {
            (StoreUrl::Cluster(_), _) | (_, Some(StoreUrl::Cluster(_))) => {
                "--marks-from carries no marks from or to a Redis Cluster: they are in each slot; \
                 copy the cluster's data with its marks"
            }
            (_, None) => "--marks-from is for a change of --store; name the new store",
            (_, Some(_)) => return None,
        };
        Some(text.to_owned())
    }

    fn exposure(&self) -> Result<Exposure, Vec<String>> {
        let redis_plain = self.redis_plaintext.then_some("--redis-plaintext");
        let addresses = [
            ("--listen", Some(self.listen), true, None),
            ("--proxy-listen", self.proxy_listen, false, None),
            ("--redis-listen", self.redis_listen, false, redis_plain),
        ];
        let addresses: Vec<ListenAddr> = addresses
            .into_iter()
            .filter_map(|(flag, addr, uses_access_file, plain_by)| {
                Some(ListenAddr { flag, addr: addr?, uses_access_file, plain_by })
            })
            .collect();
        let safeguards = Safeguards {
            access_file: self.access.access_file.is_some(),
            signed_tokens: !self.keys.unsigned,
        };
        self.tls.exposure(&addresses, safeguards)
    }

    fn redis_port(&self, exposure: Exposure) -> Result<Option<PortSettings>, Vec<String>> {
        let Some(listen) = self.redis_listen else { return self.no_redis_port() };
        if self.redis_plaintext && self.tls.tls_cert.is_none() {
            return Err(vec![
                "--redis-plaintext is for a guard with --tls-cert: without, every port is plain; \
                 leave it out"
                    .to_owned(),
            ]);
        }
        if !matches!(self.store, Some(StoreUrl::Redis(_) | StoreUrl::Cluster(_))) {
            return Err(vec![
                "--redis-listen needs the Redis behind it: set --store redis://HOST:PORT"
                    .to_owned(),
            ]);
        }
        if self.store.as_ref().is_some_and(StoreUrl::is_tls) {
            return Err(vec![
                "--redis-listen passes bytes on to a plain Redis, and --store is rediss://; write \
                 redis://, or serve objects alone"
                    .to_owned(),
            ]);
        }
        if self.redis_threads == 0 || self.redis_threads > 64 {
            return Err(vec![format!("--redis-threads {} is not in 1 to 64", self.redis_threads)]);
        }
        if self.max_command_bytes > COMMAND_BYTES_MAX {
            return Err(vec![format!(
                "--max-command-bytes {} is above {COMMAND_BYTES_MAX}: an argument of 512 MiB, which is \
                 what Redis takes, and 1 MiB for the others",
                self.max_command_bytes
            )]);
        }
        let thread_bytes = self.max_redis_buffer_bytes / self.redis_threads;
        if self.max_command_bytes > thread_bytes.max(COMMAND_BYTES) {
            return Err(vec![format!(
                "--max-command-bytes {} does not fit into the {thread_bytes} bytes that a thread has of \
                 --max-redis-buffer-bytes; raise that to twice the largest command for each of \
                 --redis-threads",
                self.max_command_bytes
            )]);
        }
        let password = self.redis_password().map_err(|problem| vec![problem])?;
        let listener = self.listener.options();
        let tls = exposure.tls().filter(|_| !self.redis_plaintext).cloned();
        Ok(Some(PortSettings {
            listen,
            exposure,
            tls: tls.map(|tls| tls.for_listener(listener.header_timeout, plain_text_reply)),
            threads: self.redis_threads,
            max_command_bytes: self.max_command_bytes,
            max_buffer_bytes: self.max_redis_buffer_bytes,
            max_connections: listener.max_connections,
            after_fenced: self.after_fenced,
            password,
            silence: SilenceLimits {
                command: listener.body_timeout,
                bytes_per_sec_min: listener.body_bytes_per_sec_min,
                stranger: listener.idle_timeout,
                idle: Some(self.redis_idle_timeout).filter(|limit| !limit.is_zero()),
            },
        }))
    }

    fn no_redis_port(&self) -> Result<Option<PortSettings>, Vec<String>> {
        let problems: Vec<String> = [
            ("--redis-password-file", self.redis_password_file.is_some()),
            ("--redis-plaintext", self.redis_plaintext),
        ]
        .into_iter()
        .filter(|(_, is_set)| *is_set)
        .map(|(flag, _)| {
            format!("{flag} is for the Redis port; set --redis-listen, or leave it out")
        })
        .collect();
        if problems.is_empty() { Ok(None) } else { Err(problems) }
    }

    fn redis_password(&self) -> Result<Option<PortPassword>, String> {
        let Some(file) = &self.redis_password_file else { return Ok(None) };
        if self.keys.unsigned {
            return Err(
                "--redis-password-file is of no use with --unsigned: a fencing credential stands \
                        in for the password, and any program can make one; use --token-key-file"
                    .to_owned(),
            );
        }
        let password = PortPassword::read(file);
        password.map(Some).map_err(|error| format!("--redis-password-file: {error}"))
    }

    fn report(&self) -> Result<Option<ReportOptions>, String> {
        let auth = self.report_auth_file.as_deref().map(authorization).transpose();
        let auth = auth.map_err(|error| format!("--report-auth-file {error}"))?;
        let tls = self.peers.tls("--report-to", &self.report_to)?;
        match self.report_to.len() {
            0 if auth.is_some() => {
                Err("--report-auth-file is of no use without --report-to http://HOST:PORT"
                    .to_owned())
            }
            0 => Ok(None),
            1..=REPORT_TO_MAX => {
                let urls = self.report_to.clone();
                let https = Https::new(tls, urls.iter().any(ServerUrl::is_https))?;
                Ok(Some(ReportOptions { urls, auth, https }))
            }
            count => Err(format!(
                "--report-to: {count} lock servers are named; at most {REPORT_TO_MAX} can be notified"
            )),
        }
    }

    fn is_proxy(&self) -> bool {
        self.proxy_listen.is_some()
            || self.upstream.is_some()
            || self.state.is_some()
            || self.max_request_lifetime.is_some()
    }

    fn upstream(&self) -> Result<Upstream, Vec<String>> {
        let listen = self.proxy_listen;
        let url = self.upstream.clone();
        let lifetime = self.max_request_lifetime;
        let state = self.state.clone();
        let missing: Vec<String> = [
            (listen.is_none(), "--proxy-listen is missing: set the address of the reverse proxy"),
            (url.is_none(), "--upstream is missing: set the datastore behind the proxy"),
            (
                lifetime.is_none(),
                "--max-request-lifetime is missing: set for how long the upstream may still act on a \
                 request whose connection broke. Only you can know; there is no default",
            ),
            (state.is_none(), "--state is missing: set the folder of marks and intents"),
        ]
        .into_iter()
        .filter(|(is_missing, _)| *is_missing)
        .map(|(_, text)| text.to_owned())
        .collect();
        match (listen, url, lifetime, state) {
            (Some(listen), Some(url), Some(max_request_lifetime), Some(state)) => {
                // Requests are forwarded with their fencing token and their clients' credentials.
                let checked = self.peers.refuse_plain("--upstream", &url);
                let https = checked.and_then(|()| self.upstream_tls.https(&url));
                Ok(Upstream {
                    listen,
                    https: https.map_err(|error| vec![error])?,
                    url,
                    max_request_lifetime,
                    state,
                    timeout: self.upstream_timeout,
                    drain_wait: self.drain_wait,
                })
            }
            _ => Err(missing),
        }
    }
}

fn keep<T>(result: Result<T, Vec<String>>, problems: &mut Vec<String>) -> Option<T> {
    result.map_err(|mut found| problems.append(&mut found)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Protection;

    fn settings(args: &str) -> Result<Settings, String> {
        let args = std::iter::once("fenced-store").chain(args.split_whitespace());
        let config = Config::try_parse_from(args).map_err(|error| error.to_string())?;
        config.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn the_usual_ways_to_start() {
        assert!(settings("--store memory: --unsigned").is_ok());
        assert!(settings("--store embedded:x --unsigned --rule a/**=a --rule b/*=@open").is_ok());
        let proxy = "--proxy-listen 127.0.0.1:0 --upstream http://127.0.0.1:9 --unsigned \
                     --max-request-lifetime 30s --state s";
        assert!(settings(proxy).is_ok(), "{:?}", settings(proxy));
    }

    #[test]
    fn the_default_rule_reaches_the_rules() {
        let key = crate::key::ObjectKey::new("a").unwrap();
        let default = |flag: &str| {
            let settings = settings(&format!("--store memory: --unsigned {flag}")).unwrap();
            settings.rules.protection(&key).unwrap()
        };
        assert_eq!(default("--default-rule deny"), Protection::Deny);
        assert_eq!(default("--default-rule open"), Protection::Open);
        assert_eq!(default(""), default("--default-rule fenced"));
    }

    #[test]
    fn bad_settings_are_refused_with_the_value() {
        for (args, reason) in [
            ("--unsigned", "--store is missing"),
            ("--store memory:", "--token-key-file is missing"),
            ("--store memory: --unsigned --token-key-file x", "exclude each other"),
            ("--store memory: --token-key-file /nonexistent/keys", "/nonexistent/keys"),
            ("--store memory: --unsigned --listen 0.0.0.0:1", "0.0.0.0:1"),
            ("--store memory: --unsigned --rule a/**/b=c", "a/**/b=c"),
            ("--store memory: --unsigned --rule a=b,fast", "unknown option \"fast\""),
            ("--store memory: --unsigned --default-rule closed", "closed"),
            ("--store mysql://x --unsigned", "mysql://x"),
            ("--store memory: --unsigned --proxy-listen 127.0.0.1:1", "exclude each other"),
            ("--proxy-listen 127.0.0.1:1 --unsigned", "--max-request-lifetime is missing"),
            ("--store memory: --unsigned --drain-wait 30", "as in 30s"),
            ("--store memory: --unsigned --marks-from redis-cluster://a", "in each slot"),
            ("--upstream ftp://x --unsigned", "ftp://x"),
            ("--store memory: --unsigned --redis-listen 127.0.0.1:0", "needs the Redis behind it"),
            (
                "--store redis://127.0.0.1:1 --unsigned --redis-listen 127.0.0.1:0 \
                 --max-command-bytes 999999999",
                "above 537919488",
            ),
            (
                "--store redis://127.0.0.1:1 --unsigned --redis-listen 127.0.0.1:0 \
                 --max-command-bytes 400000000 --redis-threads 2",
                "does not fit",
            ),
            (
                "--store redis://127.0.0.1:1 --unsigned --redis-listen 127.0.0.1:0 \
                 --redis-password-file /nonexistent/p",
                "stands in for the password",
            ),
            ("--store memory: --unsigned --redis-password-file p", "set --redis-listen"),
            ("--store memory: --unsigned --fail-at nowhere=stop", "no point"),
            ("--store memory: --unsigned --report-to redis://x", "must begin with http://"),
            (
                "--store memory: --unsigned --report-to http://x --report-auth-file /nonexistent/r",
                "/nonexistent/r cannot be",
            ),
            ("--store memory: --unsigned --mode watch", "must be enforce or observe"),
            (
                "--store memory: --unsigned --access-file /nonexistent/a",
                "/nonexistent/a: cannot be",
            ),
        ] {
            let error = settings(args).unwrap_err();
            assert!(error.contains(reason), "{args}: {error}");
        }
    }
}
