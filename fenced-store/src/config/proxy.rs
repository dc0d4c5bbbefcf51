//! Flags of the reverse proxy.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use fence_protocol::duration::{parse, parse_positive};
use http::StatusCode;
use service_kit::listener::listen_addr;
use service_kit::login::StoreLogin;
use service_kit::tls::ServerUrl;

use super::{ElectionFlags, ReportFlags};
use crate::doors::http_proxy::{
    PathKey, Upstream, UpstreamTlsFlags, error_status, probe_folder, upstream_url,
};
use crate::https::UpstreamHttp;

/// Reverse proxy before an HTTP datastore, in place of a store.
#[derive(Clone, Debug, Args)]
pub struct ProxyFlags {
    /// Address of the reverse proxy, with --upstream, --max-request-lifetime and --state; excludes
    /// --store.
    #[arg(long, value_name = "ADDR", value_parser = listen_addr)]
    pub proxy_listen: Option<SocketAddr>,
    /// Datastore of the proxy, http(s)://HOST:PORT.
    #[arg(long, value_name = "URL", value_parser = upstream_url)]
    pub upstream: Option<ServerUrl>,
    /// HTTPS to the datastore.
    #[command(flatten)]
    pub upstream_tls: UpstreamTlsFlags,
    /// Version of HTTP towards the datastore: h1, h2 (with http:// too), or auto, which lets a
    /// datastore of https:// choose. A connection of h2 that breaks leaves the outcome of all
    /// writes on it unknown.
    #[arg(long, value_name = "VERSION", default_value = "h1")]
    pub upstream_http: UpstreamHttp,
    /// Time for which the upstream may act on a request whose connection broke. You have to know
    /// it: the guarantee "bounded" is worth what this number is. No default.
    #[arg(long, value_name = "DURATION", value_parser = parse_positive)]
    pub max_request_lifetime: Option<Duration>,
    /// Durable state, and the election of a leader.
    #[command(flatten)]
    pub election: ElectionFlags,
    /// Time for the upstream's reply, then the outcome is unknown.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive)]
    pub upstream_timeout: Duration,
    /// Longest rest after which a connection to the upstream is used again; 0s makes a new one for
    /// each request. Keep it well below the upstream's own limit: a write that meets a connection
    /// being closed has an unknown outcome.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse)]
    pub upstream_idle: Duration,
    /// Statuses, with commas between them, that leave the outcome of a write unknown, beside 202,
    /// 502, 504 and 520 to 527. Envoy, for one, replies 503 after it has sent a request.
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = error_status)]
    pub upstream_unknown_status: Vec<StatusCode>,
    /// Longest wait of a request for lower ones, then 503.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive)]
    pub drain_wait: Duration,
    /// Folder of the upstream in which the guard may write a probe at its start. If that shows
    /// strong ETags that are never reused, and conditions that are checked, PUT and DELETE of
    /// protected paths carry If-Match or If-None-Match; otherwise the guard does not start.
    #[arg(long, value_name = "PATH", value_parser = probe_folder)]
    pub etag_probe: Option<PathKey>,
}

impl ProxyFlags {
    /// Returns `true` if any of the flags that make a proxy is given.
    pub(super) fn is_given(&self) -> bool {
        self.proxy_listen.is_some()
            || self.upstream.is_some()
            || self.election.state.is_some()
            || self.max_request_lifetime.is_some()
            || self.etag_probe.is_some()
    }

    /// Checks that nothing is missing, and reads the certificates.
    pub(super) fn upstream(
        &self,
        login: &StoreLogin,
        report: &ReportFlags,
    ) -> Result<Upstream, String> {
        let listen = self.proxy_listen;
        let url = self.upstream.clone();
        let lifetime = self.max_request_lifetime;
        let state = self.election.state(
            listen.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0))),
            login,
            &report.peers,
            &report.report_to,
        );
        let missing: Vec<&str> = [
            (listen.is_none(), "--proxy-listen is missing: set the address of the reverse proxy"),
            (url.is_none(), "--upstream is missing: set the datastore behind the proxy"),
            (
                lifetime.is_none(),
                "--max-request-lifetime is missing: set for how long the upstream may still act on a \
                 request whose connection broke. Only you can know; there is no default",
            ),
        ]
        .into_iter()
        .filter(|(is_missing, _)| *is_missing)
        .map(|(_, text)| text)
        .chain(state.as_ref().err().map(String::as_str))
        .collect();
        match (listen, url, lifetime, &state) {
            (Some(listen), Some(url), Some(max_request_lifetime), Ok(state)) => Ok(Upstream {
                listen,
                http: self.upstream_http,
                https: self.upstream_tls.https(&url)?,
                url,
                max_request_lifetime,
                state: state.clone(),
                timeout: self.upstream_timeout,
                idle: self.upstream_idle,
                unknown_statuses: self.upstream_unknown_status.clone(),
                drain_wait: self.drain_wait,
                etag_probe: self.etag_probe.clone(),
            }),
            _ => Err(missing.join("\n")),
        }
    }
}
