//! Address of an HTTP server.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;
use http::uri::Authority;

/// Address of an HTTP server: `http://` or `https://`, a host, and perhaps a port and a path before
/// the API's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// The whole address, without a slash at its end.
    base: String,
    authority: Authority,
    is_https: bool,
}

impl ServerUrl {
    /// The address without a slash at its end.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Host and port.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The host, which a certificate must name; an IPv6 address has brackets.
    pub fn host(&self) -> &str {
        self.authority.host()
    }

    /// `https` or `http`.
    pub fn scheme(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }

    /// `true` if requests go over TLS.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// `true` if there is a path after host and port.
    pub fn has_path(&self) -> bool {
        // Behind the slashes of the scheme the authority ends where a path begins.
        self.base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'))
    }

    /// Refuses an address at which others could read tokens on the way: plain HTTP to a host that
    /// is not this machine. A bearer token is one, and so is a fencing token, which grants carry:
    /// until a higher one is admitted, it allows writes.
    ///
    /// # Errors
    /// A sentence that names `setting`, by which a user accepts that.
    pub fn refuse_plain(&self, setting: &str) -> Result<(), String> {
        if self.is_https || is_loopback(self.host()) {
            return Ok(());
        }
        Err(format!(
            "{self} is plain HTTP to another machine, so bearer and fencing tokens could be read \
             on the way; write https://, or accept that with {setting}"
        ))
    }
}

/// `true` for `localhost` and loopback addresses. Other names may resolve to any machine.
fn is_loopback(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address = bare.parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = |rule: &str| {
            // What stands before the host may be a password.
            let shown = match text.rsplit_once('@') {
                Some((_, host)) => format!("***@{host}"),
                None => text.to_owned(),
            };
            Err(format!("server address {shown:?} {rule}, for example https://fence.example:7420"))
        };
        let Ok(uri) = text.parse::<Uri>() else { return refuse("is not a URL") };
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return refuse("must begin with http:// or https://"),
        };
        let Some(authority) = uri.authority().filter(|named| !named.host().is_empty()) else {
            return refuse("must name a host");
        };
        if authority.as_str().contains('@') || uri.query().is_some() || text.contains('#') {
            return refuse("must have neither credentials nor a query");
        }
        let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        if !port.is_empty() && authority.port_u16().is_none() {
            return refuse("must have a port from 1 to 65535");
        }
        let base = text.trim_end_matches('/').to_owned();
        Ok(Self { base, authority: authority.clone(), is_https })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ServerUrl {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_checked_where_they_are_given() {
        for (text, base, host, has_path) in [
            ("http://127.0.0.1:7420/", "http://127.0.0.1:7420", "127.0.0.1", false),
            ("http://proxy/fence/", "http://proxy/fence", "proxy", true),
            ("https://[::1]:7420", "https://[::1]:7420", "[::1]", false),
            ("https://a", "https://a", "a", false),
            ("https://a/a", "https://a/a", "a", true),
        ] {
            let url = url(text);
            assert_eq!((url.base(), url.host(), url.has_path()), (base, host, has_path));
            assert_eq!(url.to_string().parse(), Ok(url.clone()));
            assert_eq!(url.is_https(), text.starts_with("https"));
        }
        for (bad, reason) in [
            ("", "not a URL"),
            ("127.0.0.1:7420", "must begin with http:// or https://"),
            ("redis://a", "must begin with http:// or https://"),
            ("http:///x", "not a URL"),
            ("http://u:hunter2@a", "neither credentials"),
            ("http://a?b=c", "nor a query"),
            ("http://a#b", "nor a query"),
            ("http://a:70000", "must have a port"),
            ("http://a:", "must have a port"),
        ] {
            let error = bad.parse::<ServerUrl>().unwrap_err();
            assert!(error.contains(reason), "{bad}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn plain_http_is_for_this_machine() {
        for private in [
            "http://localhost:7420",
            "http://LOCALHOST",
            "http://127.0.0.2:1/x",
            "http://[::1]:7420",
            "https://10.0.0.5",
            "https://fence.example",
        ] {
            assert_eq!(url(private).refuse_plain("--insecure-http"), Ok(()), "{private}");
        }
        for open in [
            "http://10.0.0.5:7420",
            "http://0.0.0.0",
            "http://127.0.0.1.example",
            "http://localhost.example",
            "http://localhost.",
            "http://127.1",
            "http://[::ffff:127.0.0.1]",
        ] {
            let error = url(open).refuse_plain("--insecure-http").unwrap_err();
            assert!(error.starts_with(open) && error.contains("--insecure-http"), "{error}");
        }
    }
}
