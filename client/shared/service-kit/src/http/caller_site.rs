//! Requests that a web page may have caused.
//!
//! A browser on this machine sends requests to loopback addresses for any page that it shows, and
//! some of them without asking the server first. Such requests are refused by what every browser
//! says of them: `Origin` and `Sec-Fetch-Site`. A page whose own name was bound to this address
//! (DNS rebinding) is same-origin for its browser, so the name in `Host` must be one of this
//! server's.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use fence_protocol::{Code, Invalid};

use super::is_page;
use crate::problem::{Reject, shown};
use crate::tls::ClientNames;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Headers whose second occurrence is an error: readers differ in which one they take.
static SINGLE: [HeaderName; 7] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::ORIGIN,
    SEC_FETCH_SITE,
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("fence-owner"),
];

/// A name that this server is reached by: letters, digits, dots and hyphens, without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl FromStr for HostName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if (1..=253).contains(&text.len()) && text.bytes().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(Invalid::new(
            "host name",
            text,
            "must be a name such as locks.internal, without a port",
        ))
    }
}

/// The names that this server is reached by, beside addresses and `localhost`. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct HostNames(Arc<[HostName]>);

impl FromIterator<HostName> for HostNames {
    fn from_iter<I: IntoIterator<Item = HostName>>(names: I) -> Self {
        Self(names.into_iter().collect())
    }
}

impl HostNames {
    /// Refuses requests for other hosts, and those that a browser sends for a page of another
    /// origin, unless they open one of `pages`.
    ///
    /// # Errors
    /// 400 without exactly one host, 421 for a host that is not this server's, 403 for another
    /// origin.
    pub(super) fn check(&self, request: &Request, pages: &[&str]) -> Result<(), Reject> {
        let headers = request.headers();
        if headers.len() > headers.keys_len() {
            check_single(headers)?;
        }
        // Without a host no page is this server's own.
        let Some(host) = host(request)? else { return check_origin(request, "", false) };
        // In TLS the client has verified the host's name: a page of another one gets an error.
        if !self.contains(host) && !is_in_tls(request) {
            let detail = format!("the host \"{}\" is none of this server's", shown(host));
            return Err(Reject::new(Code::MisdirectedRequest, detail));
        }
        check_origin(request, host, is_opened(request, pages))
    }

    /// True if `host`, which may end in a port, is an address, `localhost` or one of the names.
    fn contains(&self, host: &str) -> bool {
        if let Some(rest) = host.strip_prefix('[') {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return address.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || is_port(port));
        }
        let name = match host.rfind(':') {
            Some(at) if is_port(&host[at..]) => &host[..at],
            Some(_) => return false,
            None => host,
        };
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<Ipv4Addr>().is_ok()
            || self.0.iter().any(|own| own.0.eq_ignore_ascii_case(name))
    }
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.is_empty() || port.parse::<u16>().is_ok())
}

fn check_single(headers: &HeaderMap) -> Result<(), Reject> {
    let repeated = SINGLE.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some());
    repeated
        .map_or(Ok(()), |name| Err(invalid(format!("the request has more than one {name} header"))))
}

/// The host that the request is for. HTTP/1.0 knows no `Host`, and no browser speaks it.
fn host(request: &Request) -> Result<Option<&str>, Reject> {
    let stated = request.headers().get(header::HOST).map(HeaderValue::to_str).transpose();
    let stated = stated.map_err(|_| invalid("the Host header is not ASCII text".to_owned()))?;
    let target = request.uri().authority().map(axum::http::uri::Authority::as_str);
    match (stated, target) {
        (None, _) if request.version() >= Version::HTTP_11 => {
            Err(invalid("the request has no Host header, which HTTP/1.1 requires".to_owned()))
        }
        (Some(stated), Some(target)) if !stated.eq_ignore_ascii_case(target) => {
            let stated = shown(stated);
            let target = shown(target);
            Err(invalid(format!("the target names host \"{target}\", and Host \"{stated}\"")))
        }
        (stated, target) => Ok(stated.or(target)),
    }
}

/// True if the browser opens one of `pages` in a window, where the page that has the link neither
/// sees nor frames it.
fn is_opened(request: &Request, pages: &[&str]) -> bool {
    let has =
        |name: HeaderName, value: &str| request.headers().get(name).is_some_and(|own| own == value);
    request.method() == Method::GET
        && is_page(request.uri().path(), pages)
        && has(SEC_FETCH_MODE, "navigate")
        && has(SEC_FETCH_DEST, "document")
}

/// True if the request came over TLS to this server itself.
fn is_in_tls(request: &Request) -> bool {
    request.extensions().get::<ClientNames>().is_some()
}

fn check_origin(request: &Request, host: &str, is_opened: bool) -> Result<(), Reject> {
    let headers = request.headers();
    if let Some(origin) = headers.get(header::ORIGIN)
        && !is_own(origin, host, is_in_tls(request))
    {
        let origin = String::from_utf8_lossy(origin.as_bytes());
        return Err(cross_origin(format!("a page of origin \"{}\"", shown(&origin))));
    }
    match headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
        None | Some(b"none" | b"same-origin") => Ok(()),
        Some(_) if is_opened => Ok(()),
        Some(site) => {
            let site = String::from_utf8_lossy(site);
            Err(cross_origin(format!("a page elsewhere (Sec-Fetch-Site: {})", shown(&site))))
        }
    }
}

/// True if `origin` is `https://` and the host that the request was sent to. A plain listener takes
/// `http://` too: it cannot know whether a proxy before it speaks TLS. Under TLS a page of the
/// plain port of that host, which others can replace on the way, is another one.
fn is_own(origin: &HeaderValue, host: &str, is_in_tls: bool) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let plain = || origin.strip_prefix("http://").filter(|_| !is_in_tls);
    let own = origin.strip_prefix("https://").or_else(plain);
    own.is_some_and(|own| own.eq_ignore_ascii_case(host))
}

fn cross_origin(cause: String) -> Reject {
    Reject::new(Code::CrossOrigin, format!("a browser sent this request for {cause}"))
}

fn invalid(detail: String) -> Reject {
    Reject::new(Code::InvalidRequest, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> HostNames {
        ["locks.internal".parse().unwrap()].into_iter().collect()
    }

    #[test]
    fn hosts_are_addresses_and_own_names() {
        for own in [
            "127.0.0.1",
            "127.0.0.1:7420",
            "192.0.2.7:80",
            "[::1]",
            "[::1]:7420",
            "localhost",
            "LocalHost:7420",
            "locks.internal",
            "Locks.Internal:80",
            "localhost:",
        ] {
            assert!(names().contains(own), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "evil.example:7420",
            "localhost.evil.example",
            "127.0.0.1.evil",
            "x.locks.internal",
            "locks.internal.",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "::1",
            "[::1",
            "[evil]",
            "[::1]x",
            "localhost:x",
            "localhost:99999",
            "localhost:80:80",
            "user@localhost",
        ] {
            assert!(!names().contains(other), "{other}");
        }
    }

    #[test]
    fn an_origin_is_own_or_not() {
        for (origin, own) in [
            ("http://localhost:7420", true),
            ("https://LOCALHOST:7420", true),
            ("http://localhost:3000", false),
            ("http://localhost", false),
            ("http://127.0.0.1:7420", false),
            ("http://evil.example", false),
            ("null", false),
            ("", false),
            ("ftp://localhost:7420", false),
            ("http://localhost:7420.evil.example", false),
        ] {
            let origin = HeaderValue::from_static(origin);
            assert_eq!(is_own(&origin, "localhost:7420", false), own, "{origin:?}");
            let is_https = origin.as_bytes().starts_with(b"https:");
            assert_eq!(is_own(&origin, "localhost:7420", true), own && is_https, "{origin:?}");
        }
    }

    #[test]
    fn a_host_name_has_no_port() {
        assert!("locks.internal".parse::<HostName>().is_ok());
        for bad in ["", "a:80", "http://a", "a b", "*.a", &"a".repeat(254)] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }
}
