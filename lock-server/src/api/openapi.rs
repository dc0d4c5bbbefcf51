//! `GET /openapi.json`: the API described for programs.

use axum::http::header;
use axum::response::IntoResponse;

const DOCUMENT: &str = include_str!("openapi.json");

/// The document, as it is in the source.
pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    /// Every route that the router is given, and no other.
    #[test]
    fn describes_every_route() {
        let source = include_str!("../api.rs");
        let mut routes: Vec<&str> = source
            .split(".route(\"")
            .skip(1)
            .filter_map(|rest| rest.split_once('"').map(|(path, _)| path))
            .chain(["/livez", "/readyz", "/version", "/metrics"])
            .collect();
        routes.sort_unstable();
        let document = document();
        let mut paths: Vec<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(paths, routes);
    }

    /// Every reference leads somewhere.
    #[test]
    fn references_resolve() {
        fn visit(value: &Value, document: &Value) {
            match value {
                Value::Object(members) => {
                    if let Some(Value::String(reference)) = members.get("$ref") {
                        let pointer = reference.trim_start_matches('#');
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    members.values().for_each(|member| visit(member, document));
                }
                Value::Array(items) => items.iter().for_each(|item| visit(item, document)),
                _ => {}
            }
        }
        let document = document();
        visit(&document, &document);
    }

    /// The bounds that are written here are the ones that the types keep.
    #[test]
    fn bounds_are_those_of_the_types() {
        let document = document();
        let schema = |pointer: &str| document.pointer(pointer).cloned().unwrap();
        assert_eq!(schema("/components/schemas/Token/maximum"), fence_protocol::Token::MAX);
        let wait = "/components/schemas/AcquireRequest/properties/wait_ms/maximum";
        assert_eq!(schema(wait), fence_protocol::wire::lock::MAX_WAIT_MS);
        let ttl = "/components/schemas/AcquireRequest/properties/ttl_ms";
        assert_eq!(schema(&format!("{ttl}/maximum")), fence_protocol::Ttl::MAX_MS);
        assert_eq!(schema(&format!("{ttl}/default")), fence_protocol::Ttl::DEFAULT.ms());
        let size = schema("/components/schemas/PermitSize/maximum");
        assert_eq!(size, fence_protocol::wire::lock::PERMITS_MAX);
        let locks = schema("/components/schemas/AcquireAllRequest/properties/locks/maxItems");
        assert_eq!(locks, fence_protocol::wire::lock::LOCKS_PER_ACQUIRE_MAX);
    }
}
