//! The routes with their further statuses, from the OpenAPI documents: docs/reference/http-api.md.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Table;

/// Statuses that the page gives for every route above the list.
const COMMON: [&str; 7] = ["200", "400", "413", "415", "429", "503", "504"];

/// As [`COMMON`], and those of operations that a token guards.
const COMMON_OF_GUARD: [&str; 10] =
    ["200", "400", "401", "403", "409", "412", "428", "429", "503", "504"];

const LOCK_SERVER: &str = include_str!("../../../lock-server/src/api/openapi.json");
const GUARD: &str = include_str!("../../../fenced-store/src/doors/objects/openapi.json");

pub(super) fn tables() -> Vec<Table> {
    vec![
        Table::new("lock-server routes", routes(LOCK_SERVER, &COMMON)),
        Table::new("fenced-store routes", routes(GUARD, &COMMON_OF_GUARD)),
    ]
}

#[test]
fn openapi_has_every_route_and_no_other() {
    let lock_server = include_str!("../../../lock-server/src/api.rs");
    let guard = include_str!("../../../fenced-store/src/doors/objects/router.rs");
    assert_eq!(paths(LOCK_SERVER), routed(lock_server, &[]));
    // A route with a wildcard includes the paths behind the lock's name; one has no others.
    let mut guard = routed(guard, &["/v1/fences/{lock}/seal", "/v1/lanes/{lock}/quarantine"]);
    guard.remove("/v1/lanes/{lock}");
    assert_eq!(paths(GUARD), guard);
}

fn paths(document: &str) -> BTreeSet<String> {
    let document: Value = serde_json::from_str(document).unwrap();
    document["paths"].as_object().unwrap().keys().cloned().collect()
}

/// The paths that a router's source routes, those that service-kit adds, and `others`.
fn routed(source: &str, others: &[&str]) -> BTreeSet<String> {
    let paths = source.split(".route(\"").skip(1).filter_map(|rest| rest.split_once('"'));
    // The wildcard of a router is a parameter like any other in the document.
    let paths = paths.map(|(path, _)| path.replace("{*", "{"));
    let operational = ["/livez", "/readyz", "/version", "/metrics"];
    paths.chain(operational.iter().chain(others).map(ToString::to_string)).collect()
}

fn routes(document: &str, common: &[&str]) -> String {
    let document: Value = serde_json::from_str(document).unwrap();
    let mut rows = String::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let own = path.starts_with("/v1/").then(|| operations.as_object().unwrap());
        for (method, operation) in own.into_iter().flatten() {
            let Some(responses) = operation["responses"].as_object() else { continue };
            let further: Vec<_> =
                responses.keys().filter(|status| !common.contains(&status.as_str())).collect();
            let further: String = further.iter().map(|status| format!(" {status}")).collect();
            let method = method.to_uppercase();
            let colon = if further.is_empty() { "" } else { ":" };
            rows += &format!("- `{method} {path}`{colon}{further}\n");
        }
    }
    rows
}
