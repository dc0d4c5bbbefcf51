//! Which datastore, and how patient to be with it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use fence_protocol::Invalid;
use http::Uri;
use http::uri::Authority;

/// The settings of the reverse proxy.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Where the proxy listens.
    pub listen: SocketAddr,
    /// The datastore. It comes from the settings alone; redirects are not followed.
    pub url: UpstreamUrl,
    /// For how long the datastore may still act on a request whose connection broke.
    pub max_request_lifetime: Duration,
    /// The folder for durable marks and intents.
    pub state: PathBuf,
    /// How long to wait for an answer.
    pub timeout: Duration,
    /// How long a request waits for lower ones.
    pub drain_wait: Duration,
}

/// `http://HOST:PORT`, nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl(Authority);

impl UpstreamUrl {
    /// Host and port.
    pub fn authority(&self) -> &Authority {
        &self.0
    }
}

impl FromStr for UpstreamUrl {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = || {
            let shown = service_kit::login::without_password(text);
            Invalid::new("upstream", shown, "must be like http://HOST:PORT, no more")
        };
        let uri: Uri = text.parse().map_err(|_| refuse())?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(authority)) if is_bare && !authority.as_str().contains('@') => {
                Ok(Self(authority.clone()))
            }
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_http_origin_is_an_upstream() {
        let url: UpstreamUrl = "http://127.0.0.1:9000/".parse().unwrap();
        assert_eq!(url.to_string(), "http://127.0.0.1:9000");
        for bad in
            ["", "127.0.0.1:9", "https://a", "http://", "http://a/b", "http://a?b", "http://u:p@a"]
        {
            assert!(bad.parse::<UpstreamUrl>().is_err(), "{bad}");
        }
        let error = "http://u:hunter2@a".parse::<UpstreamUrl>().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
