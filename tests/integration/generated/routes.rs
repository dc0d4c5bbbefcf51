//! The routes with their further statuses, from the OpenAPI documents: docs/reference/http-api.md.

use serde_json::Value;

use super::Table;

/// Statuses that the page gives for every route above the list.
const COMMON: [&str; 7] = ["200", "400", "413", "415", "429", "503", "504"];

/// As [`COMMON`], and those of operations that a token guards.
const COMMON_OF_GUARD: [&str; 10] =
    ["200", "400", "401", "403", "409", "412", "428", "429", "503", "504"];

pub(super) fn tables() -> Vec<Table> {
    let lock_server = include_str!("../../../lock-server/src/api/openapi.json");
    let guard = include_str!("../../../fenced-store/src/doors/objects/openapi.json");
    vec![
        Table::new("lock-server routes", routes(lock_server, &COMMON)),
        Table::new("fenced-store routes", routes(guard, &COMMON_OF_GUARD)),
    ]
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
