//! Filters of headers, in both directions.

use fence_protocol::{Code, FENCING_GUARANTEE, FENCING_MARK, FENCING_TOKEN};
use http::header::{CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use service_kit::problem::Reject;

use super::second_name;
use crate::rules::is_safe;

/// Headers of one connection (RFC 9110 section 7.6.1), and their old relatives.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers of most requests, none of which names another resource: they need no search.
const COMMON: [&str; 8] = [
    "host",
    "accept",
    "user-agent",
    "content-type",
    "fencing-token",
    "authorization",
    "content-length",
    "accept-encoding",
];

/// Headers that some upstreams prefer to `Host`: with them a request could select another virtual
/// host. The upstream has one name, from the configuration.
const HOST_ALIASES: [&str; 5] =
    ["forwarded", "x-forwarded-host", "x-forwarded-server", "x-host", "x-original-host"];

/// Refuses a request whose headers could name another resource or method than its request line: the
/// guard has checked the lock of that one only.
///
/// # Errors
/// 400, with the header's name.
pub(super) fn check_request(headers: &HeaderMap) -> Result<(), Reject> {
    if headers.contains_key(UPGRADE) {
        return refuse("the proxy does not forward upgrades; send no Upgrade header".to_owned());
    }
    // What it lists does not reach the upstream: these were checked as if they did, or are the
    // guard's own.
    for name in [FENCING_TOKEN, "depth", "if-match", "if-none-match"] {
        if listed(headers).any(|listed| listed == name) {
            return refuse(format!("the Connection header must not list {name}"));
        }
    }
    for name in headers.keys().map(HeaderName::as_str).filter(|name| !COMMON.contains(name)) {
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return refuse(format!(
                "header {name} is refused: many servers read an underscore, and some every sign, as \
                 a hyphen, so that it would be a second spelling of another header; use letters, \
                 digits and hyphens"
            ));
        }
        if second_name::is_one(name) {
            return refuse(format!(
                "header {name} is refused: it can name another resource or method than the request \
                 line, and the guard checks the lock of that one"
            ));
        }
    }
    Ok(())
}

/// Refuses a body where servers differ in whether they read it: one that does not would take it for
/// the connection's next request, which nothing has checked.
///
/// # Errors
/// 400.
pub(super) fn check_body(method: &Method, is_empty: bool) -> Result<(), Reject> {
    if is_empty || !is_safe(method) {
        return Ok(());
    }
    refuse(format!("{method} has no body here; send what needs one by POST"))
}

fn refuse(detail: String) -> Result<(), Reject> {
    Err(Reject::new(Code::InvalidRequest, detail))
}

/// Removes headers that must not reach the upstream. The token itself passes: it is useless to a
/// client that cannot reach the guard, and the upstream may log or check it.
pub(super) fn clean_request(headers: &mut HeaderMap) {
    let is_empty = headers.get(CONTENT_LENGTH).is_some_and(|length| length == "0");
    // The body was received whole, and gets a new length.
    remove_with_hop_by_hop(headers, |name| {
        matches!(name, "host" | "expect" | "content-length") || HOST_ALIASES.contains(&name)
    });
    // The HTTP client states no length of its own for an empty body.
    if is_empty {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
}

/// Removes headers that must not reach the client; mark and guarantee are the guard's own.
pub(super) fn clean_response(headers: &mut HeaderMap) {
    remove_with_hop_by_hop(headers, |name| [FENCING_MARK, FENCING_GUARANTEE].contains(&name));
}

/// Removes the headers of the connection, and others. A look at the few that are there is faster
/// than a search for each that could be.
fn remove_with_hop_by_hop(headers: &mut HeaderMap, is_unwanted: impl Fn(&str) -> bool) {
    if headers.contains_key(CONNECTION) {
        let listed: Vec<String> = listed(headers).collect();
        for name in listed {
            headers.remove(name.as_str());
        }
    }
    let is_unwanted = |name: &str| HOP_BY_HOP.contains(&name) || is_unwanted(name);
    while let Some(name) = headers.keys().find(|name| is_unwanted(name.as_str())).cloned() {
        headers.remove(name);
    }
}

/// Returns the names that the Connection header lists, in lower case.
fn listed(headers: &HeaderMap) -> impl Iterator<Item = String> {
    headers.get_all(CONNECTION).iter().flat_map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        names
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn what_belongs_to_the_connection_stays_there() {
        let mut request = headers(&[
            ("connection", "close, X-Private"),
            ("connection", "x-other"),
            ("x-private", "1"),
            ("x-other", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("host", "guard"),
            ("content-length", "3"),
            ("forwarded", "host=other"),
            ("x-forwarded-host", "other"),
            ("x-forwarded-for", "192.0.2.1"),
            ("accept", "*/*"),
            ("fencing-token", "34"),
        ]);
        clean_request(&mut request);
        let mut left: Vec<&str> = request.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "fencing-token", "x-forwarded-for"]);
    }

    #[test]
    fn the_upstream_cannot_speak_for_the_guard() {
        let mut reply =
            headers(&[("fencing-mark", "1"), ("etag", "\"a\""), ("connection", "close")]);
        clean_response(&mut reply);
        assert_eq!(reply.len(), 1);
    }

    #[test]
    fn common_headers_name_no_other_resource() {
        for name in COMMON {
            assert!(!name.contains('_') && !second_name::is_one(name), "{name}");
        }
    }

    #[test]
    fn tricks_are_refused() {
        for bad in [
            &[("connection", "Fencing-Token")][..],
            &[("connection", "close"), ("connection", "x, fencing-token")],
            &[("connection", "close, Depth"), ("depth", "0")],
            &[("upgrade", "websocket"), ("connection", "upgrade")],
            &[("x-http-method-override", "DELETE")],
            &[("x_original_url", "/other")],
            &[("x!original!url", "/other")],
            &[("x.http.method.override", "DELETE")],
            &[("x-original-http-method", "DELETE")],
            &[("x-waws-unencoded-url", "/other")],
            &[("fencing_token", "34")],
        ] {
            assert!(check_request(&headers(bad)).is_err(), "{bad:?}");
        }
        assert!(check_request(&headers(&[("connection", "keep-alive")])).is_ok());
    }

    #[test]
    fn a_read_has_no_body() {
        assert!(check_body(&Method::PUT, false).is_ok() && check_body(&Method::GET, true).is_ok());
        assert!(check_body(&Method::GET, false).is_err());
    }
}
