//! Rights that requests need.

use access_control::{Need, RequestTarget, Verb};
use fence_protocol::{Invalid, LockName};
use http::Method;

use super::request;
use crate::rules::{Protection, Rules};

/// Returns the right that a request needs; a route missing here is refused to all. The right to an
/// object is the right to the lock that protects it, or else to its key.
pub(crate) fn need(rules: &Rules, target: &RequestTarget<'_>) -> Need {
    match (target.method, target.route) {
        (&Method::GET, "/v1/objects/{*key}" | "/v1/terraform-states/{*key}") => {
            object(rules, target, Verb::Read)
        }
        (&Method::PUT | &Method::DELETE, "/v1/objects/{*key}")
        | (&Method::POST | &Method::PUT, "/v1/terraform-states/{*key}") => {
            object(rules, target, Verb::Write)
        }
        (&Method::GET, "/v1/fences") => Need::Under(Verb::Read, target.prefix()),
        (&Method::GET, "/v1/fences/{*lock}") => lock(target, "", Verb::Read),
        (&Method::POST, "/v1/fences/{*lock}") => lock(target, "/seal", Verb::Write),
        (&Method::GET, "/v1/stores") => Need::Under(Verb::Read, Vec::new()),
        (&Method::GET, "/v1/lanes") => Need::Under(Verb::Read, target.prefix()),
        (&Method::POST, "/v1/lanes/{*lock}") => {
            named(request::lane(target.uri, "/quarantine"), Verb::Quarantine)
        }
        (&Method::POST, "/v1/floor") => Need::Under(Verb::Floor, Vec::new()),
        _ => Need::Unmapped,
    }
}

/// Returns the right to an object. The handler refuses an invalid key, or one that no rule can
/// resolve; until then it needs the right to all names.
fn object(rules: &Rules, target: &RequestTarget<'_>, verb: Verb) -> Need {
    let Ok(key) = request::key(target.uri) else { return Need::Under(verb, Vec::new()) };
    match rules.protection(&key) {
        Ok(Protection::Lock { lock, .. }) => Need::Name(verb, lock.as_str().into()),
        Ok(Protection::Open | Protection::Deny) => Need::Name(verb, key.as_str().into()),
        Err(_) => Need::Under(verb, Vec::new()),
    }
}

fn lock(target: &RequestTarget<'_>, suffix: &str, verb: Verb) -> Need {
    named(request::lock(target.uri, suffix), verb)
}

/// Returns the right to a lock. The handler refuses a path that names none.
fn named(lock: Result<Option<LockName>, Invalid>, verb: Verb) -> Need {
    match lock {
        Ok(Some(lock)) => Need::Name(verb, lock.as_str().into()),
        _ => Need::Under(verb, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use serde_json::Value;

    use super::*;

    fn needed(method: &str, route: &str, uri: &str) -> Need {
        let rules = ["orders/{id}/**=orders/{id}", "public/**=@open", "secret/**=@deny"];
        let rules = Rules::new(rules.iter().map(|rule| rule.parse().unwrap()).collect()).unwrap();
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap();
        let uri: Uri = uri.parse().unwrap();
        need(&rules, &RequestTarget::new(&method, route, &uri, &[]))
    }

    /// Every documented operation needs a right, a known caller, or nothing.
    #[test]
    fn every_operation_is_mapped() {
        let document: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        let mut seen = 0;
        for (path, operations) in document["paths"].as_object().unwrap() {
            let route = match path.as_str() {
                path if path.starts_with("/v1/objects/") => "/v1/objects/{*key}",
                path if path.starts_with("/v1/lanes/") => "/v1/lanes/{*lock}",
                path if path.starts_with("/v1/fences/") => "/v1/fences/{*lock}",
                path if path.starts_with("/v1/terraform-states/") => "/v1/terraform-states/{*key}",
                path if path.starts_with("/v1/") => path,
                _ => continue,
            };
            for method in ["get", "put", "post", "delete", "patch"] {
                if operations.get(method).is_some() {
                    seen += 1;
                    assert_ne!(needed(method, route, path), Need::Unmapped, "{method} {path}");
                }
            }
        }
        assert!(seen >= 8, "{seen} operations");
    }

    #[test]
    fn objects_belong_to_the_lock_that_protects_them() {
        let name = |verb, name: &str| Need::Name(verb, name.into());
        let all = |verb| Need::Under(verb, Vec::new());
        for (method, uri, expected) in [
            ("get", "/v1/objects/orders/42/total", name(Verb::Read, "orders/42")),
            ("put", "/v1/objects/orders%2F42%2Ftotal", name(Verb::Write, "orders/42")),
            ("delete", "/v1/objects/jobs/a", name(Verb::Write, "jobs/a")),
            ("put", "/v1/objects/public/a", name(Verb::Write, "public/a")),
            ("get", "/v1/objects/secret/a", name(Verb::Read, "secret/a")),
            ("put", "/v1/objects/a/../b", all(Verb::Write)),
            ("put", "/v1/objects/a/%2e%2e/b", all(Verb::Write)),
            ("post", "/v1/objects/a", Need::Unmapped),
        ] {
            assert_eq!(needed(method, "/v1/objects/{*key}", uri), expected, "{method} {uri}");
        }
        for (method, uri, expected) in [
            ("post", "/v1/fences/orders/42/seal", name(Verb::Write, "orders/42")),
            ("post", "/v1/fences/orders/42", all(Verb::Write)),
            ("get", "/v1/fences/orders/42", name(Verb::Read, "orders/42")),
            ("get", "/v1/fences/orders/42/seal", name(Verb::Read, "orders/42/seal")),
        ] {
            assert_eq!(needed(method, "/v1/fences/{*lock}", uri), expected, "{method} {uri}");
        }
        let quarantine = |uri| needed("post", "/v1/lanes/{*lock}", uri);
        assert_eq!(quarantine("/v1/lanes/a/b/quarantine"), name(Verb::Quarantine, "a/b"));
        assert_eq!(quarantine("/v1/lanes/a/b"), all(Verb::Quarantine));
        assert_eq!(needed("post", "/v1/floor", "/v1/floor"), all(Verb::Floor));
        assert_eq!(
            needed("get", "/v1/fences", "/v1/fences?prefix=a/"),
            Need::Under(Verb::Read, b"a/".into())
        );
    }
}
