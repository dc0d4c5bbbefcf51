//! Flags, variables (`LOCK_SERVER_…`) and configuration keys, and what they add up to.

mod lock_delay;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use access_control::secret::authorization;
use access_control::{AccessFlags, Gate};
use clap::{Parser, Subcommand};
use fence_protocol::{Keyring, Namespace, Ttl, duration};
use redis_link::LinkOptions;
use service_kit::config::report::ConfigAction;
use service_kit::config::{SettingsError, keep};
use service_kit::flags::{KeyFlags, PeerFlags, ServiceFlags, StoreLoginFlags};
use service_kit::limit;
use service_kit::listener::{Exposure, HttpThreads, ListenAddr, Safeguards, listen_addr};
use service_kit::login::StoreLogin;
use service_kit::tls::ServerUrl;

pub use self::lock_delay::LockDelay;
use crate::engines::loss::LossOptions;
use crate::engines::open::StoreUrl;
use crate::engines::options::StoreOptions;
use crate::engines::redis::ReplicaOptions;
use crate::engines::redis::key_prefix::KeyPrefix;
use crate::events::EventOptions;
use crate::grants::after_grant::SealMode;
use crate::guards::revoke::Unsealed;
use crate::guards::{GUARDS_MAX, GuardOptions};
use crate::prefixes::{Prefixed, Prefixes};
use crate::store::Limits;

/// The prefix of the environment's variables.
pub const PREFIX: &str = "LOCK_SERVER";

/// The lock server of Fencepost: leases over HTTP, each with a token that strictly rises.
///
/// Every flag is also a key of the configuration file and a variable: --token-key-file is
/// token-key-file and LOCK_SERVER_TOKEN_KEY_FILE. A flag beats a variable, which beats the file.
#[derive(Clone, Debug, Parser)]
#[command(name = "lock-server", version, after_help = EXAMPLES)]
pub struct Config {
    /// Subcommand in place of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Address of the API; port 0 lets the system choose. One beyond loopback needs TLS, an access
    /// file and signed tokens. localhost:7420 is 127.0.0.1, and :7420 every IPv4 address.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7420", value_parser = listen_addr)]
    pub listen: SocketAddr,
    /// Store of the leases. It is memory:, embedded:DIR, redis://HOST:PORT,
    /// redis-sentinel://HOST:PORT,…/MASTER, redis-cluster://HOST:PORT,…,
    /// redis-quorum:redis://A,redis://B,redis://C (3 or 5 independent Redis), etcd://HOST:PORT,… or
    /// postgres://USER@HOST:PORT,…/DATABASE.
    #[arg(long, value_name = "URL", global = true)]
    pub store: Option<StoreUrl>,
    /// Login at the store.
    #[command(flatten)]
    pub login: StoreLoginFlags,
    /// Text before {fence:NAMESPACE}: in every key in Redis. As in app1:, where its users are
    /// confined to keys of their own.
    #[arg(long, value_name = "TEXT", global = true)]
    pub key_prefix: Option<KeyPrefix>,
    /// Namespace of the locks and of their token counter.
    #[arg(long, value_name = "NAME", default_value = "default", global = true)]
    pub namespace: Namespace,
    /// A guard of this namespace, http(s)://HOST:PORT; repeatable. Guards are asked for their
    /// highest mark at start and before a new lineage begins, and tokens are issued above it.
    #[arg(long, value_name = "URL", global = true)]
    pub guard: Vec<ServerUrl>,
    /// Longest wait for a --guard that does not reply while the data folder is empty. Then the
    /// server ends, because the guard may have seen tokens. Other stores are served meanwhile.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub start_timeout: Duration,
    /// Bearer token for guards with an access file. It needs the rights "read *" and, for seals,
    /// "write *" there.
    #[arg(long, value_name = "FILE", global = true)]
    pub guard_auth_file: Option<PathBuf>,
    /// HTTPS to guards.
    #[command(flatten)]
    pub peers: PeerFlags,
    /// PREFIX=required, lazy or off: whether guards are sealed when a lock is granted; repeatable.
    /// PREFIX begins the lock's name (* for all). With required the guards are sealed before the
    /// client has its reply, with lazy afterwards. The longest prefix wins. Exclusive leases alone
    /// are sealed.
    #[arg(long, value_name = "PREFIX=MODE")]
    pub seal: Vec<Prefixed<SealMode>>,
    /// A revocation that cannot seal every guard: report or refuse. With report it is done, and the
    /// reply names the guard.
    #[arg(long, value_name = "WHAT", default_value = "report")]
    pub revoke_unsealed: Unsealed,
    /// PREFIX=DURATION, at most 5m: delay of the next grant after a lease that expired; repeatable.
    /// PREFIX begins the lock's name (* for all); the longest wins. A session that ended counts
    /// too. For datastores without a guard.
    #[arg(long, value_name = "PREFIX=DURATION")]
    pub lock_delay: Vec<Prefixed<LockDelay>>,
    /// Flags of the token key file.
    #[command(flatten)]
    pub keys: KeyFlags,
    /// Access control.
    #[command(flatten)]
    pub access: AccessFlags,

    /// Shortest time to live of a lease.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration::parse_positive)]
    pub ttl_min: Duration,
    /// Longest time to live of a lease.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration::parse_positive)]
    pub ttl_max: Duration,
    /// Retention of the ids of ended leases, after their lock became idle.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse_positive)]
    pub ended_retention: Duration,
    /// Waiters for one lock.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub max_waiters_per_lock: usize,
    /// Shared leases of one lock, at most 1024.
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = shared_per_lock)]
    pub max_shared_per_lock: usize,
    /// Waiters of this process.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub max_waiters: usize,
    /// Locks held or remembered (memory and embedded).
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = limit::parse)]
    pub max_locks: usize,
    /// Sessions live or remembered.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub max_sessions: usize,
    /// Leases and waiting requests of one session.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = limit::parse)]
    pub max_session_leases: usize,
    /// Time for a reply of Redis, PostgreSQL or an etcd member, then the outcome is unknown.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse_positive)]
    pub store_timeout: Duration,
    /// Time for which a silent lock server counts as alive to the others. They share a Redis,
    /// PostgreSQL or etcd; its death can delay the waiters behind its own by this.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration::parse_positive)]
    pub liveness: Duration,
    /// Leases that may be lost or cut short.
    #[command(flatten)]
    pub loss: LossOptions,
    /// Replicas to wait for.
    #[command(flatten)]
    pub replicas: ReplicaOptions,

    /// Events remembered and read.
    #[command(flatten)]
    pub events: EventOptions,

    /// No console at /ui and no API reference at /docs.
    #[arg(long)]
    pub no_ui: bool,
    /// Threads that serve HTTP, at most 256 [default: by cores]. The default is one for every two
    /// cores (with `--store memory:` for each), at most 8.
    #[arg(long, value_name = "N", value_parser = http_threads)]
    pub http_threads: Option<NonZeroUsize>,
    /// Listeners, names, log and spans.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Subcommand in place of serving.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Prepare a namespace in Redis, a quorum, etcd or PostgreSQL that has never issued a token.
    Init {
        /// State that the namespace is new, so that its tokens begin at 1 (etcd: at its revision).
        /// Without this, an empty store may have lost its data, and tokens begin at the clock
        /// floor. Every node of a quorum must reply.
        #[arg(long, required = true)]
        fresh: bool,
    },
    /// Check or show the settings. Flags of the server stand before this word.
    #[command(subcommand)]
    Config(ConfigAction),
    /// Check that the server with these settings is ready: exit code 0, otherwise 1.
    Health,
}

/// A record is read and written as a whole, so the number of leases of a lock is bounded.
fn shared_per_lock(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1_024) => Ok(count),
        _ => Err(format!("{text:?} is out of range: 1 to 1024")),
    }
}

/// Every store but memory needs as much processor time as HTTP does.
fn default_threads(store: &StoreUrl) -> NonZeroUsize {
    let cores_each = if matches!(store, StoreUrl::Memory) { 1 } else { 2 };
    HttpThreads::default_count(NonZeroUsize::new(cores_each).unwrap_or(NonZeroUsize::MIN))
}

fn http_threads(text: &str) -> Result<NonZeroUsize, String> {
    let count: Option<NonZeroUsize> = text.parse().ok();
    let count = count.filter(|count| count.get() <= HttpThreads::MAX);
    count.ok_or_else(|| format!("{text:?} is out of range: 1 to {}", HttpThreads::MAX))
}

const EXAMPLES: &str = "\
Examples:
  Leases on this disk, for a first try (no signatures):
    lock-server --store embedded:data --unsigned
  Leases in Redis, tokens signed:
    lock-server --store redis://127.0.0.1:6379 --token-key-file keys.txt
  Leases in etcd, as a user of it:
    lock-server --store etcds://locks@etcd1:2379,etcd2:2379,etcd3:2379 --store-ca ca.pem
      --store-password-file password.txt --token-key-file keys.txt
  Leases in PostgreSQL:
    lock-server --store 'postgres://locks@db:5432/app?sslmode=verify-full' --store-ca ca.pem
      --store-password-file password.txt --token-key-file keys.txt
  Leases in a quorum of three independent Redis, of which one may fail:
    lock-server --store redis-quorum:redis://a:6379,redis://b:6379,redis://c:6379
      --token-key-file keys.txt
  A Redis that is known to be new, so that tokens begin at 1:
    lock-server init --fresh --store redis://127.0.0.1:6379
  The settings with the origin of each:
    lock-server config show --config /etc/fencepost/lock-server.toml
Exit codes: 0 ended by a signal, 1 could not start, 64 bad settings.";

/// Checked settings: the flags, and what they add up to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Flags that are used as they are.
    pub flags: Config,
    /// TLS, and permission to listen beyond loopback.
    pub exposure: Exposure,
    /// Store of the leases, with the login.
    pub store: StoreUrl,
    /// Options of the store.
    pub store_options: StoreOptions,
    /// Keys that sign tokens; `None` leaves tokens unsigned.
    pub keys: Option<Keyring>,
    /// The times to live that a lease may have.
    pub ttl_range: (Ttl, Ttl),
    /// Mode of sealing guards at a grant, by lock prefix.
    pub seal: Prefixes<SealMode>,
    /// Lock-delay by lock prefix, in milliseconds.
    pub lock_delays: Prefixes<u64>,
    /// Access control and audit log.
    pub access: Gate,
    /// Number of threads that serve HTTP.
    pub http_threads: NonZeroUsize,
}

impl Config {
    /// Checks the flags together; reads the key file and the access file, opens the audit log.
    ///
    /// # Errors
    /// [`SettingsError`] with everything that is wrong, a line each.
    pub fn settings(self) -> Result<Settings, SettingsError> {
        let mut errors = Vec::new();
        let store = keep(self.store_and_login(), &mut errors);
        let keys = keep(self.keys.keys(), &mut errors);
        let ttl_range = keep(self.ttl_range(), &mut errors);
        let guards = keep(self.guards(), &mut errors);
        let access = keep(self.access.open(), &mut errors);
        let exposure = keep(self.exposure(), &mut errors);
        let prefixes = keep(self.seals(), &mut errors).zip(keep(self.lock_delays(), &mut errors));
        let (Some((store, login)), Some(keys), Some(ttl_range), Some(guards)) =
            (store, keys, ttl_range, guards)
        else {
            return Err(SettingsError(errors));
        };
        let (Some(access), Some(exposure), Some((seal, lock_delays))) =
            (access, exposure, prefixes)
        else {
            return Err(SettingsError(errors));
        };
        Ok(Settings {
            http_threads: self.http_threads.unwrap_or_else(|| default_threads(&store)),
            exposure,
            store,
            store_options: self.store_options(guards, login),
            keys,
            ttl_range,
            seal,
            lock_delays,
            access,
            flags: self,
        })
    }

    fn exposure(&self) -> Result<Exposure, String> {
        let listen = ListenAddr {
            flag: "--listen",
            addr: self.listen,
            uses_access_file: true,
            plain_by: None,
        };
        let safeguards = Safeguards {
            access_file: self.access.access_file.is_some(),
            signed_tokens: !self.keys.unsigned,
        };
        self.service.tls.exposure(&[listen], safeguards)
    }

    /// The store, with who this server is there; reads the files.
    ///
    /// # Errors
    /// A sentence where none is named, where a file cannot be used, and where the flags do not go
    /// with the store.
    pub fn store_and_login(&self) -> Result<(StoreUrl, StoreLogin), String> {
        let store = self.store.clone().ok_or_else(|| {
            "--store is missing: where are leases kept? memory:, embedded:DIR, \
             redis://HOST:PORT, etcd://HOST:PORT or postgres://HOST/DATABASE"
                .to_owned()
        })?;
        if self.key_prefix.is_some() && !matches!(store, StoreUrl::Redis(_) | StoreUrl::Quorum(_)) {
            return Err("--key-prefix is for keys in Redis; leave it out".to_owned());
        }
        match (self.replicas.count, &store) {
            (0, _) | (_, StoreUrl::Redis(_)) => {}
            (count, _) => {
                return Err(format!(
                    "--wait-replicas {count} waits for replicas of Redis, and this store has \
                     none; leave it out"
                ));
            }
        }
        let login = self.login.login()?;
        Ok((store.with_login(&login)?, login))
    }

    fn seals(&self) -> Result<Prefixes<SealMode>, String> {
        let seals = Prefixes::new(self.seal.clone()).map_err(|error| format!("--seal: {error}"))?;
        if self.guard.is_empty() && seals.values().any(|mode| mode != SealMode::Off) {
            return Err(
                "--seal seals guards, and --guard names none: name them, or leave it out; \
                        for datastores without a guard there is --lock-delay"
                    .to_owned(),
            );
        }
        Ok(seals)
    }

    fn lock_delays(&self) -> Result<Prefixes<u64>, String> {
        let in_ms = |delay: &Prefixed<LockDelay>| delay.clone().map(LockDelay::ms);
        let delays = Prefixes::new(self.lock_delay.iter().map(in_ms).collect());
        delays.map_err(|error| format!("--lock-delay: {error}"))
    }

    /// The guards, each once, and the credentials for them; reads the files.
    ///
    /// # Errors
    /// A sentence where there are too many, one is reached over plain HTTP, or a file cannot be
    /// used.
    pub fn guards(&self) -> Result<GuardOptions, String> {
        let mut urls: Vec<ServerUrl> = Vec::new();
        for url in &self.guard {
            if !urls.contains(url) {
                urls.push(url.clone());
            }
        }
        if urls.len() > GUARDS_MAX {
            let count = urls.len();
            return Err(format!(
                "--guard: {count} guards are named; at most {GUARDS_MAX} are asked"
            ));
        }
        let auth = self.guard_auth_file.as_deref().map(authorization).transpose();
        let auth = auth.map_err(|error| format!("--guard-auth-file {error}"))?;
        Ok(GuardOptions { auth, tls: self.peers.tls("--guard", &urls)?, urls })
    }

    pub(crate) fn store_options(&self, guards: GuardOptions, login: StoreLogin) -> StoreOptions {
        let retention = self.ended_retention.as_millis();
        StoreOptions {
            namespace: self.namespace.clone(),
            key_prefix: self.key_prefix.clone().unwrap_or_default(),
            login,
            limits: Limits {
                waiters_per_lock: self.max_waiters_per_lock,
                shared_per_lock: self.max_shared_per_lock,
                waiters: self.max_waiters,
                waiting: Limits::waiting_of(self.service.listener.max_connections),
                locks: self.max_locks,
                sessions: self.max_sessions,
                session_leases: self.max_session_leases,
                ended_retention_ms: u64::try_from(retention).unwrap_or(u64::MAX),
            },
            guards,
            start_timeout: self.start_timeout,
            link: LinkOptions { reply_timeout: self.store_timeout, ..LinkOptions::default() },
            liveness: self.liveness,
            loss: self.loss,
            replicas: self.replicas,
        }
    }

    fn ttl_range(&self) -> Result<(Ttl, Ttl), String> {
        let ttl = |name: &str, duration| {
            Ttl::try_from(duration).map_err(|_| {
                format!("--{name} {} must be from 1ms to 1day", duration::show(duration))
            })
        };
        let min = ttl("ttl-min", self.ttl_min)?;
        let max = ttl("ttl-max", self.ttl_max)?;
        if min > max {
            return Err(format!("--ttl-min ({min}) is above --ttl-max ({max})"));
        }
        Ok((min, max))
    }
}

#[cfg(test)]
mod tests;
