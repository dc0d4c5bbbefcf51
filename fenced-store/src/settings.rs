//! What a guard is made of: values that were checked, wherever they came from.

use std::net::{Ipv4Addr, SocketAddr};

use access_control::Gate;
use fence_protocol::wire::fence::Mode;
use fence_protocol::{Keyring, Namespace};
use service_kit::http::HostNames;
use service_kit::listener::ListenOptions;

use crate::doors::http_proxy::Upstream;
use crate::doors::redis::PortSettings;
use crate::report::ReportOptions;
use crate::rules::Rules;
use crate::store::StoreUrl;
use crate::store::redis::RedisOptions;

/// What the guard stands before.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A store that checks and writes in one step, with the objects API.
    Store(StoreUrl),
    /// Any HTTP datastore, behind a reverse proxy that drains.
    Proxy(Upstream),
}

/// All settings of a guard. [`crate::config::Config::settings`] makes them from flags, and
/// [`Settings::new`] for whoever hosts a guard in a process of its own.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the API is served; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// What the guard stands before.
    pub backend: Backend,
    /// Whether what the fence refuses is refused.
    pub mode: Mode,
    /// The namespace that tokens must belong to.
    pub namespace: Namespace,
    /// The keys that tokens are verified with; `None` takes unsigned ones.
    pub keys: Option<Keyring>,
    /// Which lock protects which resource.
    pub rules: Rules,
    /// Whether reads of protected objects pass without a token.
    pub allow_unfenced_reads: bool,
    /// The largest object, in bytes.
    pub max_object_bytes: usize,
    /// What all bodies that are being received may take together, in bytes.
    pub max_body_bytes_in_all: usize,
    /// Who may do what, and what is written of it.
    pub access: Gate,
    /// The limits of the listeners.
    pub listener: ListenOptions,
    /// The names that the guard is reached by.
    pub host_names: HostNames,
    /// How the Redis behind the guard is treated.
    pub redis: RedisOptions,
    /// The port for Redis' own protocol; only before a Redis.
    pub redis_port: Option<PortSettings>,
    /// The lock servers that are told what is refused.
    pub report: Option<ReportOptions>,
}

impl Settings {
    /// The defaults on a port of the system's choice: signed tokens of namespace `default` that
    /// are verified with `keys`, each key its own lock.
    pub fn new(backend: Backend, keys: Option<Keyring>) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            backend,
            mode: Mode::Enforce,
            namespace: Namespace::default(),
            keys,
            rules: Rules::default(),
            allow_unfenced_reads: false,
            max_object_bytes: 16 << 20,
            max_body_bytes_in_all: 256 << 20,
            access: Gate::default(),
            listener: ListenOptions::default(),
            host_names: HostNames::default(),
            redis: RedisOptions::default(),
            redis_port: None,
            report: None,
        }
    }
}
