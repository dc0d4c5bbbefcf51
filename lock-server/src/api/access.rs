//! Rights that requests need.

use access_control::{Need, RequestTarget, Verb};
use axum::extract::Query;
use axum::http::Method;
use serde::Deserialize;

use crate::ui;

/// Returns the right that a request needs. A route that is not named here is refused.
pub(crate) fn need(target: &RequestTarget<'_>) -> Need {
    let lock = || target.param("lock").as_bytes().to_vec();
    let whole = Vec::new;
    match (target.method, target.route) {
        (&Method::GET, "/v1/locks") => Need::Under(Verb::Read, target.prefix()),
        (&Method::GET, "/v1/events") => match watched(target) {
            Some(lock) => Need::Name(Verb::Read, lock.into_bytes()),
            None => Need::Under(Verb::Read, target.prefix()),
        },
        (&Method::GET, "/v1/guards") => match watched(target) {
            Some(lock) => Need::Name(Verb::Read, lock.into_bytes()),
            None => Need::Under(Verb::Read, whole()),
        },
        (&Method::GET, "/v1/principal") => Need::Known,
        // The pages have no data; what they show, they request as any client does.
        (&Method::GET, page) if ui::is_page(page) => Need::Public,
        // The body names the locks; the handler checks each.
        (&Method::POST, "/v1/acquire") => Need::Somewhere(Verb::Acquire),
        // Guards ask for it.
        (&Method::POST, "/v1/floor") => Need::Under(Verb::Report, whole()),
        (&Method::POST, "/v1/refusals") => Need::Somewhere(Verb::Report),
        (&Method::GET, "/v1/locks/{lock}") => Need::Name(Verb::Read, lock()),
        (
            &Method::POST,
            "/v1/locks/{lock}/acquire" | "/v1/locks/{lock}/renew" | "/v1/locks/{lock}/release",
        ) => Need::Name(Verb::Acquire, lock()),
        // An UNLOCK without a body revokes: the handler checks that right.
        (method, "/v1/terraform/{lock}")
            if ["LOCK", "POST", "PUT", "UNLOCK", "DELETE"].contains(&method.as_str()) =>
        {
            Need::Name(Verb::Acquire, lock())
        }
        (&Method::POST, "/v1/locks/{lock}/revoke") => Need::Name(Verb::Revoke, lock()),
        // A session has no name, but a principal, which the handler checks; its locks are checked
        // when they are acquired.
        (&Method::GET, "/v1/sessions") => Need::Under(Verb::Read, whole()),
        (&Method::GET, "/v1/sessions/{id}") => Need::Somewhere(Verb::Read),
        (&Method::POST, "/v1/sessions" | "/v1/sessions/{id}/heartbeat")
        | (&Method::DELETE, "/v1/sessions/{id}") => Need::Somewhere(Verb::Acquire),
        (&Method::POST, "/v1/sessions/{id}/block") => Need::Under(Verb::Block, whole()),
        _ => Need::Unmapped,
    }
}

/// Lock that the query names. If the query is malformed, the handler refuses it later.
fn watched(target: &RequestTarget<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct Watch {
        lock: Option<String>,
    }
    let watch = Query::<Watch>::try_from_uri(target.uri);
    watch.ok().and_then(|Query(watch)| watch.lock)
}

#[cfg(test)]
mod tests {
    use axum::http::Uri;
    use serde_json::Value;

    use super::*;

    fn needed(method: &str, route: &str, query: &str) -> Need {
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap();
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        let params = [("lock".to_owned(), "orders/42".to_owned())];
        need(&RequestTarget::new(&method, route, &uri, &params))
    }

    /// Every operation that is documented needs a right, a known caller, or nothing.
    #[test]
    fn every_operation_is_mapped() {
        let document: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        for (path, operations) in document["paths"].as_object().unwrap() {
            if !path.starts_with("/v1/") {
                continue;
            }
            for method in ["get", "put", "post", "delete", "patch"] {
                if operations.get(method).is_some() {
                    assert_ne!(needed(method, path, ""), Need::Unmapped, "{method} {path}");
                }
            }
        }
    }

    #[test]
    fn administration_is_apart() {
        let lock = || b"orders/42".to_vec();
        for (method, route, query, expected) in [
            ("post", "/v1/locks/{lock}/acquire", "", Need::Name(Verb::Acquire, lock())),
            ("post", "/v1/acquire", "", Need::Somewhere(Verb::Acquire)),
            ("post", "/v1/locks/{lock}/revoke", "", Need::Name(Verb::Revoke, lock())),
            ("get", "/v1/locks/{lock}", "", Need::Name(Verb::Read, lock())),
            ("get", "/v1/locks", "", Need::Under(Verb::Read, Vec::new())),
            ("get", "/v1/locks", "prefix=a%2F", Need::Under(Verb::Read, b"a/".to_vec())),
            ("get", "/v1/locks", "prefix=a&prefix=", Need::Under(Verb::Read, Vec::new())),
            ("get", "/v1/events", "prefix=a%2F", Need::Under(Verb::Read, b"a/".to_vec())),
            ("get", "/v1/events", "lock=a%2Fb", Need::Name(Verb::Read, b"a/b".to_vec())),
            ("get", "/v1/events", "lock=a&lock=b", Need::Under(Verb::Read, Vec::new())),
            ("get", "/v1/events", "", Need::Under(Verb::Read, Vec::new())),
            ("get", "/v1/guards", "lock=a%2Fb", Need::Name(Verb::Read, b"a/b".to_vec())),
            ("get", "/v1/guards", "prefix=a", Need::Under(Verb::Read, Vec::new())),
            ("get", "/ui/console.js", "", Need::Public),
            ("get", "/uix", "", Need::Unmapped),
            ("post", "/ui", "", Need::Unmapped),
            ("post", "/v1/sessions/{id}/block", "", Need::Under(Verb::Block, Vec::new())),
            ("delete", "/v1/locks/{lock}", "", Need::Unmapped),
            ("post", "/v1/new", "", Need::Unmapped),
        ] {
            assert_eq!(needed(method, route, query), expected, "{method} {route} {query}");
        }
    }
}
