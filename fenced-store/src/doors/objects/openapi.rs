//! `GET /openapi.json`: the API's description for programs.

use axum::http::header;
use axum::response::IntoResponse;

const DOCUMENT: &str = include_str!("openapi.json");

/// Returns the committed document.
pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use fence_protocol::wire::fence::{FencePage, Guarantee, StoresReply, WriteOutcome};
    use serde_json::{Value, json};

    use super::*;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    /// The document has every route of the router, and no other.
    #[test]
    fn describes_every_route() {
        // The wildcard of the router is a parameter like any other in the document.
        let source = include_str!("router.rs").replace("{*", "{");
        let mut routes: Vec<&str> = source
            .split(".route(\"")
            .skip(1)
            .filter_map(|rest| rest.split_once('"').map(|(path, _)| path))
            // A wildcard includes the path behind the lock's name.
            .chain(["/v1/fences/{lock}/seal", "/livez", "/readyz", "/version", "/metrics"])
            .collect();
        routes.sort_unstable();
        let document = document();
        let mut paths: Vec<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(paths, routes);
    }

    /// Every reference resolves.
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

    /// The members of `value` are those of the schema `name`.
    fn assert_described(document: &Value, name: &str, value: &Value) {
        let schema = &document["components"]["schemas"][name];
        let properties = schema["properties"].as_object().unwrap();
        let members = value.as_object().unwrap();
        for member in members.keys() {
            assert!(properties.contains_key(member), "{name} does not describe {member}");
        }
        for required in schema["required"].as_array().unwrap() {
            assert!(members.contains_key(required.as_str().unwrap()), "{name} has no {required}");
        }
    }

    /// The words and members in the document are those of the types.
    #[test]
    fn schemas_are_those_of_the_types() {
        let document = document();
        let words = |pointer: &str| document.pointer(pointer).cloned().unwrap();
        assert_eq!(words("/components/schemas/Token/maximum"), fence_protocol::Token::MAX);
        let guarantees: Vec<_> = Guarantee::ALL.iter().map(|word| word.as_str()).collect();
        assert_eq!(words("/components/schemas/Guarantee/enum"), json!(guarantees));
        let outcomes = [WriteOutcome::Applied, WriteOutcome::NotApplied, WriteOutcome::Unknown];
        let pointer = "/components/schemas/Problem/properties/outcome/enum";
        assert_eq!(words(pointer), json!(outcomes));
        let stores = json!({
            "namespace": "default", "mode": "observe",
            "stores": [{
                "kind": "memory", "target": "memory:", "guarantee": "observe",
                "fronts": [{ "kind": "objects", "listen": "127.0.0.1:1" }],
                "store_guarantee": "atomic", "probe": "", "gaps": [],
            }],
            "would_refuse": [{ "rule": "default", "code": "stale-token", "total": 1 }],
        });
        let stores: StoresReply = serde_json::from_value(stores).unwrap();
        let stores = serde_json::to_value(stores).unwrap();
        assert_described(&document, "Stores", &stores);
        assert_described(&document, "Store", &stores["stores"][0]);
        assert_described(&document, "Front", &stores["stores"][0]["fronts"][0]);
        assert_described(&document, "WouldRefuse", &stores["would_refuse"][0]);
        let lease = "00000000-0000-4000-8000-000000000001";
        let page = json!({
            "fences": [{ "lock": "a", "mark": 1, "lease_id": lease, "refused_total": 0 }],
            "next_after": "a", "highest_mark": 1,
        });
        let page: FencePage = serde_json::from_value(page).unwrap();
        let page = serde_json::to_value(page).unwrap();
        assert_described(&document, "FencePage", &page);
        assert_described(&document, "FenceLine", &page["fences"][0]);
    }
}
