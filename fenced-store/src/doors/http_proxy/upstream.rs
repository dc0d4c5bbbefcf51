//! Settings of the reverse proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fence_protocol::{Invalid, LockName, Owner, Ttl};
use http::StatusCode;
use redis_link::RedisTarget;
use service_kit::tls::{ServerUrl, TlsOptions, TlsSettingNames};

use super::path_key::PathKey;
use crate::https::{Https, UpstreamHttp};
use crate::lock_servers::LockServers;

/// Settings of the reverse proxy.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Address of the proxy.
    pub listen: SocketAddr,
    /// Datastore, from the settings alone; redirects are not followed.
    pub url: ServerUrl,
    /// Version of HTTP towards the datastore.
    pub http: UpstreamHttp,
    /// Certificates, for a datastore over TLS.
    pub https: Https,
    /// Time for which the datastore may still act on a request whose connection broke.
    pub max_request_lifetime: Duration,
    /// Place of durable marks and open lanes.
    pub state: LaneState,
    /// Time limit of a reply.
    pub timeout: Duration,
    /// Longest rest after which a connection is used again; zero for a new one each time.
    pub idle: Duration,
    /// Statuses that leave the outcome of a write unknown, beside those of gateways.
    pub unknown_statuses: Vec<StatusCode>,
    /// Time limit of waiting for lower requests.
    pub drain_wait: Duration,
    /// Folder of the probe that must show that writes can be conditional; `None` if they are not.
    pub etag_probe: Option<PathKey>,
}

/// Settings of an election.
#[derive(Clone, Debug)]
pub struct ElectionOptions {
    /// Redis that keeps the lanes.
    pub redis: RedisTarget,
    /// Lock whose holder leads; it also names the shared lanes.
    pub lock: LockName,
    /// Lock servers of the namespace.
    pub servers: LockServers,
    /// Time to live of the leader's lease.
    pub ttl: Ttl,
    /// Name of this guard, for the clients of the others.
    pub name: Owner,
}

/// Returns `true` for the replies of a gateway that does not know what became of a request: it may
/// still be on its way behind it. 520 to 527 are a content delivery network's.
pub(super) fn is_unknown(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502 | 504 | 520..=527)
}

/// Reads a status for [`Upstream::unknown_statuses`].
///
/// # Errors
/// A sentence, unless it is from 400 to 599.
pub fn error_status(text: &str) -> Result<StatusCode, String> {
    let status = text.parse::<u16>().ok().filter(|status| (400..600).contains(status));
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    status.ok_or_else(|| "write a status from 400 to 599, such as 503".to_owned())
}

/// Longest time for which the upstream may leave bytes unacknowledged, where a standby may take
/// over.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(5);

impl Upstream {
    /// Time after which the kernel ends a connection whose bytes the upstream does not acknowledge:
    /// later than this after the end of a term, nothing of it arrives.
    pub(super) fn unacknowledged(&self) -> Duration {
        self.timeout.min(UNACKNOWLEDGED_MAX)
    }
}

/// Place of the lanes' durable state.
#[derive(Clone, Debug)]
pub enum LaneState {
    /// Folder of this guard alone.
    Folder(PathBuf),
    /// A Redis that several guards share, of which the elected one serves.
    Shared(Box<ElectionOptions>),
}

/// Flags for a datastore over TLS.
#[derive(Clone, Debug, Default, Args)]
pub struct UpstreamTlsFlags {
    /// CA (PEM) that signs the upstream's certificate [default: the system's]. For https://.
    #[arg(long, value_name = "FILE")]
    pub upstream_ca: Option<PathBuf>,
    /// Certificate (PEM) for an upstream that requires one.
    #[arg(long, value_name = "FILE")]
    pub upstream_cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE")]
    pub upstream_key: Option<PathBuf>,
}

impl UpstreamTlsFlags {
    /// Reads the files for the datastore at `url`.
    ///
    /// # Errors
    /// A sentence that names the flag, if a file cannot be used or the address is not `https://`.
    pub fn https(&self, url: &ServerUrl) -> Result<Https, String> {
        let names = TlsSettingNames {
            ca: "--upstream-ca",
            certificate: "--upstream-cert",
            key: "--upstream-key",
        };
        let Self { upstream_ca: ca, upstream_cert: certificate, upstream_key: key } = self;
        let tls = TlsOptions::read(names, ca.as_deref(), certificate.as_deref(), key.as_deref())?;
        if !tls.is_default() && !url.is_https() {
            return Err("--upstream-ca, --upstream-cert and --upstream-key are for TLS, and \
                        --upstream begins with http://; write https://, or leave them out"
                .to_owned());
        }
        Https::new(tls, url.is_https())
    }
}

/// Parses an address `http://HOST:PORT` or `https://HOST:PORT`, without path or credentials.
///
/// # Errors
/// A sentence, without credentials.
pub fn upstream_url(text: &str) -> Result<ServerUrl, String> {
    let url: ServerUrl = text.parse()?;
    if url.has_path() {
        return Err(format!("{url} must have no path: requests bring theirs"));
    }
    Ok(url)
}

/// Parses a folder of the upstream, with or without slashes around it.
///
/// # Errors
/// [`Invalid`] if it is no path that the proxy forwards.
pub fn probe_folder(text: &str) -> Result<PathKey, Invalid> {
    PathKey::from_path(text.trim_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_origin_is_an_upstream() {
        assert_eq!(upstream_url("http://127.0.0.1:9000/").unwrap().base(), "http://127.0.0.1:9000");
        assert!(upstream_url("https://store.example").unwrap().is_https());
        for bad in ["", "127.0.0.1:9", "ftp://a", "http://", "http://a/b", "http://a?b"] {
            assert!(upstream_url(bad).is_err(), "{bad}");
        }
    }
}
