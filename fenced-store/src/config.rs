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
use service_kit::flags::{HostFlags, KeyFlags, ListenerFlags, LogFlags, StoreLoginFlags, TlsFlags};
use service_kit::listener::{Exposure, ListenAddr, Safeguards};

use crate::doors::http_proxy::{Upstream, UpstreamUrl};
use crate::doors::redis::resp::request::ARGUMENT_BYTES_MAX;
use crate::doors::redis::{AfterFenced, PortPassword, PortSettings, SilenceLimits};
use crate::fail_points::{FailAt, FailPoints};
use crate::report::{ReportOptions, ReportUrl};
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
    /// Lock server to which refusals are reported, http://HOST:PORT; repeatable. The first that
    /// replies takes them. No operation waits for it.
    #[arg(long, value_name = "URL")]
    pub report_to: Vec<ReportUrl>,
    /// Bearer token for reports to a lock server with an access file. It needs the right "report *"
    /// there.
    #[arg(long, value_name = "FILE")]
    pub report_auth_file: Option<PathBuf>,
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
    /// Datastore of the proxy, http://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub upstream: Option<UpstreamUrl>,
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
    /// TOML file with any of these settings.
    #[arg(long, value_name = "FILE")]
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

