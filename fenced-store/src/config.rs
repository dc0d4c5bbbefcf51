//! Flags, variables (`FENCED_STORE_…`) and configuration keys, and the settings made from them.

mod election;
mod postgres;
mod postgres_port;
mod proxy;
mod redis_port;
mod report;
mod store;

use std::net::SocketAddr;

use access_control::AccessFlags;
use clap::{Parser, Subcommand};
use fence_protocol::Namespace;
use fence_protocol::wire::fence::Mode;
use service_kit::config::report::ConfigAction;
use service_kit::config::{SettingsError, keep};
use service_kit::flags::{KeyFlags, ServiceFlags};
use service_kit::limit;
use service_kit::listener::{Exposure, ListenAddr, Safeguards, listen_addr};

pub use self::election::ElectionFlags;
pub use self::postgres::{DatabaseFlags, InstallFlags, PackAction};
pub use self::postgres_port::PostgresPortFlags;
pub use self::proxy::ProxyFlags;
pub use self::redis_port::RedisPortFlags;
pub use self::report::ReportFlags;
pub use self::store::StoreFlags;
use crate::rules::{DefaultRule, Rule, Rules};
use crate::settings::{Backend, Settings};
use crate::stores::open::StoreUrl;

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
    /// file and signed tokens. localhost:7421 is 127.0.0.1, and :7421 every IPv4 address.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7421", value_parser = listen_addr)]
    pub listen: SocketAddr,
    /// Store of objects and marks.
    #[command(flatten)]
    pub store: StoreFlags,
    /// Namespace of the tokens, the lock server's.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub namespace: Namespace,
    /// PATTERN=LOCK: the lock that protects a resource; repeatable, the first match wins. As in
    /// 'orders/{id}/**=orders/{id}', 'orders:{id}:**=orders/{id},unfenced-reads', 'public/**=@open'
    /// for no lock, and @deny to refuse. Of the reverse proxy also 'GET,HEAD pages/**=@open'.
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
    /// Reports of refusals.
    #[command(flatten)]
    pub report: ReportFlags,
    /// enforce, or observe: count, log and execute what enforce refuses.
    #[arg(long, value_name = "enforce|observe", default_value_t = Mode::Enforce)]
    pub mode: Mode,
    /// Reads of protected objects need no token, and raise no mark.
    #[arg(long)]
    pub allow_unfenced_reads: bool,

    /// Reverse proxy before an HTTP datastore.
    #[command(flatten)]
    pub proxy: ProxyFlags,
    /// Redis port.
    #[command(flatten)]
    pub redis: RedisPortFlags,

    /// PostgreSQL port.
    #[command(flatten)]
    pub postgres: PostgresPortFlags,

    /// Largest object, and largest forwarded request.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = limit::parse)]
    pub max_object_bytes: usize,
    /// Bytes of all bodies being received, and of all objects being sent. A quarter of each is kept
    /// for those of at most 64 KiB.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = limit::parse)]
    pub max_body_bytes_in_all: usize,
    /// Listeners, names, log and spans.
    #[command(flatten)]
    pub service: ServiceFlags,
}

const EXAMPLES: &str = "\
Examples:
  Objects on this disk, for a first try (no signatures):
    fenced-store --store embedded:data --unsigned
  Objects in Redis, tokens signed by the lock server with the same key file:
    fenced-store --store redis://127.0.0.1:6379 --token-key-file keys.txt
  Objects in PostgreSQL; the tables are made in schema fence:
    fenced-store --store postgres://guard@127.0.0.1/shop --token-key-file keys.txt
  Before an HTTP datastore that ends every request within 30 seconds:
    fenced-store --proxy-listen 127.0.0.1:7431 --upstream http://127.0.0.1:9000 \\
      --max-request-lifetime 30s --state state --token-key-file keys.txt
  Rows of a PostgreSQL table that only a lock's holder may change:
    fenced-store --unsigned postgres install --database postgres://127.0.0.1/shop \\
      --table orders --lock 'orders/{id}' --client app
  The settings with the origin of each:
    fenced-store config show --config /etc/fencepost/fenced-store.toml
Exit codes: 0 ended by a signal, 1 could not start, 64 bad settings.";

/// Subcommand in place of serving.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Check that the guard with these settings is ready: exit code 0, otherwise 1.
    Health,
    /// Check or show the settings. Flags of the guard stand before this word.
    #[command(subcommand)]
    Config(ConfigAction),
    /// Install, remove or show the SQL pack of a PostgreSQL database. Flags of the guard stand
    /// before this word.
    #[command(subcommand)]
    Postgres(PackAction),
}

impl Config {
    /// Checks the flags together and reads the key file.
    ///
    /// # Errors
    /// [`SettingsError`] with every problem, a line each.
    pub fn settings(self) -> Result<Settings, SettingsError> {
        let mut problems = Vec::new();
        let backend = keep(self.backend(), &mut problems);
        let fail_points = self.store.redis_options().fail_points;
        let is_proxy = self.proxy.is_given();
        let exposure = keep(self.exposure(), &mut problems);
        let store = self.store.store.as_ref();
        let listener = self.service.listener;
        let redis_port = self.redis.settings(store, exposure.clone(), listener, self.keys.unsigned);
        let redis_port = keep(redis_port, &mut problems);
        let floor = self.store.floor;
        let postgres =
            self.postgres.settings(floor, exposure.clone(), listener, self.mode, fail_points);
        let postgres_port = keep(postgres, &mut problems).flatten();
        problems.extend(self.store.unusable_marks_from());
        let keys = keep(self.keys.keys(), &mut problems);
        let access = keep(self.access.open(), &mut problems);
        let report = keep(self.report.options(&self.proxy.election.leader_server), &mut problems);
        let rules = Rules::new(self.rule).map_err(|error| error.to_string());
        let rules = keep(rules, &mut problems).map(|rules| rules.with_default(self.default_rule));
        problems.extend(rules.iter().flat_map(|rules| unusable_rules(rules, is_proxy)));
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
                redis: self.store.redis_options(),
                marks_from: self.store.marks_from,
                mode: self.mode,
                namespace: self.namespace,
                keys,
                key_flags: self.keys,
                rules,
                allow_unfenced_reads: self.allow_unfenced_reads,
                max_object_bytes: self.max_object_bytes,
                max_body_bytes_in_all: self.max_body_bytes_in_all,
                listener,
                host_names: self.service.host_names(),
                collector: self.service.otlp_endpoint,
                redis_port,
                postgres_port: postgres_port.map(|port| port.with_lock_servers(report.clone())),
                access,
                report,
            }),
            _ => Err(SettingsError(problems)),
        }
    }

    fn backend(&self) -> Result<Backend, String> {
        if self.postgres.is_given() {
            return match (self.store.url()?, self.proxy.is_given()) {
                (None, false) => Ok(Backend::Postgres),
                (Some(store @ StoreUrl::Postgres(_)), false) => Ok(Backend::Store(Box::new(store))),
                _ => {
                    Err("--postgres-listen excludes --proxy-listen, and any --store but the same \
                          database: a lock has one mark; run another guard with locks of its own"
                        .to_owned())
                }
            };
        }
        if !self.proxy.is_given() {
            let text = "--store is missing: set where objects are kept: memory:, embedded:DIR, \
                        redis://HOST:PORT or postgres://USER@HOST:PORT/DATABASE (or set \
                        --proxy-listen and --upstream)";
            return self
                .store
                .url()?
                .map(|url| Backend::Store(Box::new(url)))
                .ok_or_else(|| text.to_owned());
        }
        if self.store.store.is_some() {
            let text = "--store and --proxy-listen exclude each other: a lock has one mark; run \
                        two guards with locks of their own";
            return Err(text.to_owned());
        }
        let login = self.store.login.login()?;
        let upstream = self.proxy.upstream(&login, &self.report)?;
        // Requests are forwarded with their fencing token and their clients' credentials.
        self.report.peers.refuse_plain("--upstream", &upstream.url)?;
        Ok(Backend::Proxy(Box::new(upstream)))
    }

    fn exposure(&self) -> Result<Exposure, String> {
        let redis_plain = self.redis.redis_plaintext.then_some("--redis-plaintext");
        let addresses = [
            ("--listen", Some(self.listen), true, None),
            ("--proxy-listen", self.proxy.proxy_listen, false, None),
            ("--postgres-listen", self.postgres.postgres_listen, false, None),
            ("--redis-listen", self.redis.redis_listen, false, redis_plain),
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
        self.service.tls.exposure(&addresses, safeguards)
    }
}

/// Returns the rules that cannot have an effect.
fn unusable_rules(rules: &Rules, is_proxy: bool) -> Vec<String> {
    let methods = rules.with_methods().filter(|_| !is_proxy).map(|rule| {
        format!(
            "rule \"{rule}\" names methods, which only the reverse proxy (--proxy-listen) compares"
        )
    });
    let unreachable = rules.unreachable().map(|rule| {
        format!(
            "rule \"{rule}\" never decides: the rules before it match all that it matches; put it \
             before them, or delete it"
        )
    });
    methods.into_iter().chain(unreachable).collect()
}

#[cfg(test)]
mod tests;
