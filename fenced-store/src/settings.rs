//! Settings of a guard: checked values, from flags or from a host process.

use std::net::{Ipv4Addr, SocketAddr};

use access_control::Gate;
use fence_protocol::wire::fence::Mode;
use fence_protocol::{Keyring, Namespace};
use service_kit::flags::KeyFlags;
use service_kit::http::HostNames;
use service_kit::listener::{Exposure, ListenOptions};
use service_kit::otlp::CollectorUrl;

use crate::doors::http_proxy::Upstream;
use crate::doors::postgres;
use crate::doors::redis::PortSettings;
use crate::lock_servers::LockServers;
use crate::rules::Rules;
use crate::stores::open::StoreUrl;
use crate::stores::redis::RedisOptions;

/// Backend of the guard.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A store that checks and writes in one step, with the objects API.
    Store(Box<StoreUrl>),
    /// The database behind the PostgreSQL port. The guard stores no objects.
    Postgres,
    /// Any HTTP datastore, behind a reverse proxy that drains.
    Proxy(Box<Upstream>),
}

/// All settings of a guard. [`crate::config::Config::settings`] makes them from flags; a process
/// that hosts a guard makes them with [`Settings::new`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the API; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// TLS, and permission to listen beyond loopback.
    pub exposure: Exposure,
    /// Backend of the guard.
    pub backend: Backend,
    /// Earlier store of the same guard, whose marks are carried over before anything is served.
    pub marks_from: Option<StoreUrl>,
    /// `Enforce`, or `Observe` to let refused operations pass.
    pub mode: Mode,
    /// Namespace that tokens must belong to.
    pub namespace: Namespace,
    /// Keys that verify tokens; `None` admits unsigned tokens.
    pub keys: Option<Keyring>,
    /// File of the keys; none in a process that has made them itself.
    pub key_flags: KeyFlags,
    /// Locks that protect resources.
    pub rules: Rules,
    /// Allows reads of protected objects without a token.
    pub allow_unfenced_reads: bool,
    /// Largest object, in bytes.
    pub max_object_bytes: usize,
    /// Memory for all bodies being received together, in bytes.
    pub max_body_bytes_in_all: usize,
    /// Access control and its audit log.
    pub access: Gate,
    /// Limits of the listeners.
    pub listener: ListenOptions,
    /// Host names of the guard.
    pub host_names: HostNames,
    /// Collector of spans.
    pub collector: Option<CollectorUrl>,
    /// Connection options of the Redis behind the guard.
    pub redis: RedisOptions,
    /// Settings of the Redis port; only with a Redis as store.
    pub redis_port: Option<PortSettings>,
    /// Settings of the PostgreSQL port; beside a store only if that is the same database.
    pub postgres_port: Option<postgres::PortSettings>,
    /// Lock servers that are notified of refusals.
    pub report: Option<LockServers>,
}

impl Settings {
    /// Default settings on a port of the system's choice: each key its own lock, signed tokens of
    /// namespace `default`, verified with `keys`.
    pub fn new(backend: Backend, keys: Option<Keyring>) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            exposure: Exposure::default(),
            backend,
            marks_from: None,
            mode: Mode::Enforce,
            namespace: Namespace::default(),
            keys,
            key_flags: KeyFlags::default(),
            rules: Rules::default(),
            allow_unfenced_reads: false,
            max_object_bytes: 16 << 20,
            max_body_bytes_in_all: 256 << 20,
            access: Gate::default(),
            listener: ListenOptions::default(),
            host_names: HostNames::default(),
            collector: None,
            redis: RedisOptions::default(),
            redis_port: None,
            postgres_port: None,
            report: None,
        }
    }
}
