//! Requests of HTTP/2 in the form of HTTP/1, for the checks that both share.

use axum::http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use h2::RecvStream;

use super::body::{Demand, RequestBody};

/// Checks a request beyond what the library does, and gives it the headers that a request of HTTP/1
/// would have.
///
/// # Errors
/// 400 or 431.
pub(super) fn checked(
    request: Request<RecvStream>,
    max_headers: usize,
) -> Result<(Request<RequestBody>, Demand), StatusCode> {
    let (mut head, body) = request.into_parts();
    if head.headers.len() > max_headers {
        return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    if !is_path(&head.method, head.uri.path()) {
        return Err(StatusCode::BAD_REQUEST);
    }
    if let Some(authority) = head.uri.authority() {
        if authority.as_str().contains('@') {
            return Err(StatusCode::BAD_REQUEST);
        }
        // The router compares it with a Host that is there.
        if !head.headers.contains_key(HOST) {
            let host = HeaderValue::try_from(authority.as_str());
            head.headers.insert(HOST, host.map_err(|_| StatusCode::BAD_REQUEST)?);
        }
    }
    join_cookies(&mut head.headers);
    let length = head.headers.get(CONTENT_LENGTH).map(HeaderValue::to_str);
    let length = length.and_then(|text| text.ok()?.parse().ok());
    let expects = head.headers.get(EXPECT).map(HeaderValue::as_bytes);
    let demand =
        Demand::new(expects.is_some_and(|text| text.eq_ignore_ascii_case(b"100-continue")));
    let body = RequestBody::new(body, length, demand.clone());
    Ok((Request::from_parts(head, body), demand))
}

/// CONNECT has no path, and the router refuses it.
fn is_path(method: &Method, path: &str) -> bool {
    path.starts_with('/')
        || (path == "*" && method == Method::OPTIONS)
        || (path.is_empty() && method == Method::CONNECT)
}

/// Joins cookies that came in a field each, which HTTP/1 does not know (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_become_one_field() {
        let mut headers = HeaderMap::new();
        join_cookies(&mut headers);
        assert!(headers.is_empty());
        for crumb in ["a=1", "b=2", "c=3; d=4"] {
            headers.append(COOKIE, HeaderValue::from_static(crumb));
        }
        join_cookies(&mut headers);
        let joined: Vec<_> = headers.get_all(COOKIE).iter().collect();
        assert_eq!(joined, ["a=1; b=2; c=3; d=4"]);
    }

    #[test]
    fn a_path_begins_with_a_slash() {
        for good in ["/", "/a", "//a"] {
            assert!(is_path(&Method::PUT, good), "{good}");
        }
        for bad in ["", "a", "*", "http://a/b"] {
            assert!(!is_path(&Method::PUT, bad), "{bad}");
        }
        assert!(is_path(&Method::OPTIONS, "*") && is_path(&Method::CONNECT, ""));
    }
}
