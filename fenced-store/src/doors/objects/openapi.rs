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
    use serde_json::Value;

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
}
