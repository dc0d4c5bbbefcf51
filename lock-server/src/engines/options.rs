//! Options of every engine, from the settings of the server.

use std::time::Duration;

use fence_protocol::Namespace;
use redis_link::LinkOptions;
use service_kit::login::StoreLogin;

use super::loss::LossOptions;
use super::redis::ReplicaOptions;
use super::redis::key_prefix::KeyPrefix;
use crate::guards::GuardOptions;
use crate::store::Limits;

/// Options of every store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Tenant.
    pub namespace: Namespace,
    /// Prefix of the keys, in Redis.
    pub key_prefix: KeyPrefix,
    /// Login of this server at a store behind a network; the URL of a Redis already contains it,
    /// see [`with_login`](super::open::StoreUrl::with_login).
    pub login: StoreLogin,
    /// Bounds.
    pub limits: Limits,
    /// Guards whose highest mark is read.
    pub guards: GuardOptions,
    /// Longest wait for the guards before an empty folder is begun.
    pub start_timeout: Duration,
    /// Connection behaviour, for stores behind a network.
    pub link: LinkOptions,
    /// Time for which a silent server still counts as alive, for stores that servers share.
    pub liveness: Duration,
    /// Grants after leases may have been lost, for stores that may lose some.
    pub loss: LossOptions,
    /// Replicas that must have a grant before it is acknowledged, for Redis.
    pub replicas: ReplicaOptions,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            namespace: Namespace::default(),
            key_prefix: KeyPrefix::default(),
            login: StoreLogin::default(),
            limits: Limits::default(),
            guards: GuardOptions::default(),
            start_timeout: Duration::ZERO,
            link: LinkOptions::default(),
            liveness: Duration::from_secs(3),
            loss: LossOptions::default(),
            replicas: ReplicaOptions::default(),
        }
    }
}
