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
}
