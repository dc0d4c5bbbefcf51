//! Ways in which a request can name another resource than its path.
//!
//! The guard checks the lock of the path. An upstream that takes a second resource from the method,
//! a header or a query parameter would read or write it without its lock, so such requests are
//! refused. The guard cannot see names in a body: rules deny those paths.

use std::borrow::Cow;

use fence_protocol::Code;
use http::{HeaderMap, Method};
use percent_encoding::percent_decode_str;
use service_kit::problem::Reject;

use crate::rules::METHODS;

/// Names of headers, whole.
const NAMES: [&str; 15] = [
    "content-location",
    "destination",
    "destination-account",
    "if",
    "overwrite",
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-http-method",
    "x-script-name",
    "x-symlink-target-account",
    "x-waws-unencoded-url",
    "script-name",
];

/// Parts of headers' names: `x-amz-copy-source`, `x-amz-copy-source-range`, `x-ms-copy-source`,
/// `x-http-method-override`, `x-rewrite-url`, `x-accel-redirect`, …
const PARTS: [&str; 19] = [
    "copy-from",
    "copy-source",
    "method-override",
    "move-source",
    "object-manifest",
    "original-http-method",
    "original-method",
    "original-path",
    "original-uri",
    "original-url",
    "path-override",
    "override-url",
    "rename-source",
    "request-uri",
    "reproxy-url",
    "rewrite",
    "send-file",
    "sendfile",
    "symlink-target",
];

/// Returns `true` if a header or query parameter of this name, in lower case, can name another
/// resource or method than the request line.
pub(super) fn is_one(name: &str) -> bool {
    NAMES.contains(&name)
        || name.starts_with("x-accel-")
        || PARTS.iter().any(|part| name.contains(part))
}

/// Refuses methods that can concern another resource than the path's.
///
/// # Errors
/// 405, with the method.
pub(super) fn check_method(method: &Method) -> Result<(), Reject> {
    if METHODS.contains(&method.as_str()) {
        return Ok(());
    }
    let detail = format!(
        "the proxy does not forward {method}: it accepts only methods that concern one resource"
    );
    let hint = format!(
        "Use one of {}; read and write the two resources of a COPY or MOVE with the token of each.",
        METHODS.join(", ")
    );
    Err(Reject::new(Code::MethodNotAllowed, detail).hint(hint).allow(METHODS.join(", ")))
}

/// Refuses WebDAV's methods for a whole tree: the guard checks the lock of its root only. Without a
/// `Depth` of 0 they concern the members too (RFC 4918 sections 9.1 and 9.10.3).
///
/// # Errors
/// 400, with the method.
pub(super) fn check_depth(method: &Method, headers: &HeaderMap) -> Result<(), Reject> {
    if !matches!(method.as_str(), "PROPFIND" | "LOCK") {
        return Ok(());
    }
    let mut depths = headers.get_all("depth").iter();
    if depths.next().is_some_and(|depth| depth == "0") && depths.next().is_none() {
        return Ok(());
    }
    let detail = format!(
        "{method} needs the header Depth: 0: the guard checks the lock of the path and not of its \
         members"
    );
    Err(Reject::new(Code::InvalidRequest, detail))
}

/// Refuses query parameters that mirror such a header, which object stores accept in signed URLs,
/// and `_method`.
///
/// # Errors
/// 400, with the parameter's name.
pub(super) fn check_query(query: Option<&str>) -> Result<(), Reject> {
    let parameters = query.unwrap_or_default().split(['&', ';']);
    for parameter in parameters {
        let name = parameter.split('=').next().unwrap_or_default();
        // PHP has no other place for what cannot be in the name of a variable.
        let name = decoded(&name.replace('+', " ")).trim_start().to_ascii_lowercase();
        let name = name.replace(['_', '.', ' ', '['], "-");
        // Short words such as "if" and "destination" are an application's own parameters.
        if name == "-method" || (name.starts_with("x-") && is_one(&name)) {
            let detail = format!(
                "query parameter {name} is refused: it can name another resource or method than the \
                 request line, and the guard checks the lock of that one"
            );
            return Err(Reject::new(Code::InvalidRequest, detail));
        }
    }
    Ok(())
}

fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_trees_need_a_depth_of_zero() {
        let check = |method: &str, depths: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for depth in depths {
                headers.append("depth", http::HeaderValue::from_static(depth));
            }
            check_depth(&method.parse().unwrap(), &headers).is_ok()
        };
        assert!(check("PROPFIND", &["0"]) && check("LOCK", &["0"]) && check("GET", &[]));
        for depths in [&[][..], &["1"], &["infinity"], &["0", "infinity"]] {
            assert!(!check("PROPFIND", depths) && !check("LOCK", depths), "{depths:?}");
        }
    }

    #[test]
    fn second_names_are_recognised() {
        for name in [
            "destination",
            "x-original-url",
            "x-original-method",
            "x-rewrite-url",
            "x-amz-copy-source",
            "x-amz-copy-source-if-match",
            "x-amz-rename-source",
            "x-ms-copy-source",
            "x-ms-rename-source",
            "x-goog-copy-source",
            "x-copy-from",
            "x-object-manifest",
            "x-http-method-override",
            "x-method-override",
            "x-accel-redirect",
            "x-sendfile",
            "x-lighttpd-send-file",
            "x-forwarded-prefix",
            "content-location",
            "if",
        ] {
            assert!(is_one(name), "{name}");
        }
        for name in [
            "accept",
            "authorization",
            "if-match",
            "if-none-match",
            "range",
            "x-forwarded-for",
            "x-amz-date",
            "x-amz-meta-colour",
            "x-request-id",
            "origin",
            "cookie",
        ] {
            assert!(!is_one(name), "{name}");
        }
    }

    #[test]
    fn methods_of_one_resource_pass() {
        for (method, passes) in [
            ("PUT", true),
            ("PROPFIND", true),
            ("MOVE", false),
            ("COPY", false),
            ("BIND", false),
            ("TRACE", false),
            ("CONNECT", false),
            ("PUBLISH", false),
            ("put", false),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(check_method(&method).is_ok(), passes, "{method}");
        }
    }

    #[test]
    fn parameters_that_mirror_a_header_are_refused() {
        for bad in [
            "X-Amz-Copy-Source=%2Fother",
            "a=1&x%2damz%2Dcopy-source=b",
            "a;x_amz_copy_source=b",
            "_method=DELETE",
            ".method=DELETE",
            "+_method=DELETE",
            "%20[method=DELETE",
        ] {
            assert!(check_query(Some(bad)).is_err(), "{bad}");
        }
        for good in ["", "part=1&if=2", "destination=paris", "X-Amz-Date=1&X-Amz-Signature=2"] {
            assert!(check_query(Some(good)).is_ok(), "{good}");
        }
        assert!(check_query(None).is_ok());
    }
}
