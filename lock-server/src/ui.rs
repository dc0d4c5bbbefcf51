//! The console at `/ui` and the API reference at `/docs`: files of this binary.
//!
//! They have no data: the page requests it from the API, with the bearer token that the operator
//! enters. The choices are in docs/decisions/0063-console.md.

use std::future::ready;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fence_protocol::Code;
use service_kit::problem::Reject;

/// Path that people type.
const ROOT: &str = "/";
/// Paths that a link on another site may open.
pub(crate) const PAGES: [&str; 3] = [ROOT, "/ui", "/docs"];

/// Only files of this origin are loaded and requested, no page frames these, and a text can never
/// become markup or code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// Path, content type and content.
static FILES: [(&str, &str, &str); 21] = [
    ("/ui/", HTML, include_str!("ui/index.html")),
    ("/ui/style.css", STYLE, include_str!("ui/style.css")),
    ("/ui/icon.svg", PICTURE, include_str!("ui/icon.svg")),
    ("/ui/console.js", SCRIPT, include_str!("ui/console.js")),
    ("/ui/api.js", SCRIPT, include_str!("ui/api.js")),
    ("/ui/dom.js", SCRIPT, include_str!("ui/dom.js")),
    ("/ui/dialog.js", SCRIPT, include_str!("ui/dialog.js")),
    ("/ui/locks.js", SCRIPT, include_str!("ui/locks.js")),
    ("/ui/filters.js", SCRIPT, include_str!("ui/filters.js")),
    ("/ui/lock.js", SCRIPT, include_str!("ui/lock.js")),
    ("/ui/story.js", SCRIPT, include_str!("ui/story.js")),
    ("/ui/timeline.js", SCRIPT, include_str!("ui/timeline.js")),
    ("/ui/sessions.js", SCRIPT, include_str!("ui/sessions.js")),
    ("/ui/guards.js", SCRIPT, include_str!("ui/guards.js")),
    ("/ui/service.js", SCRIPT, include_str!("ui/service.js")),
    ("/docs/", HTML, include_str!("ui/reference.html")),
    ("/docs/reference.js", SCRIPT, include_str!("ui/reference.js")),
    ("/docs/curl.js", SCRIPT, include_str!("ui/curl.js")),
    ("/docs/guarantees.html", HTML, include_str!("ui/guarantees.html")),
    ("/docs/guarantees.js", SCRIPT, include_str!("ui/guarantees.js")),
    ("/docs/guarantees.md", TEXT, include_str!("../../docs/reference/guarantees.md")),
];

/// Routes of the files, and of the paths without their last slash.
pub(crate) fn router() -> Router {
    let with_slash = |to: &'static str| {
        // Relative, so that a front proxy may put a path before it.
        get(move || ready((StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, to)])))
    };
    let router = Router::new().route("/ui", with_slash("ui/")).route("/docs", with_slash("docs/"));
    let router = router.route(ROOT, get(root));
    FILES.iter().fold(router, |router, (path, content_type, text)| {
        router.route(path, get(move || ready(file(content_type, text))))
    })
}

/// Leads a browser to the console; for any other client there is nothing.
async fn root(headers: HeaderMap) -> Result<Response, Reject> {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let is_browser =
        accepted.filter_map(|value| value.to_str().ok()).any(|v| v.contains("text/html"));
    if !is_browser {
        return Err(Reject::new(Code::NotFound, "there is nothing at GET /"));
    }
    let headers = [(header::LOCATION, "ui/"), (header::VARY, "accept")];
    Ok((StatusCode::TEMPORARY_REDIRECT, headers).into_response())
}

/// True if a route is one of this module's.
pub(crate) fn is_page(route: &str) -> bool {
    PAGES.contains(&route) || FILES.iter().any(|(path, ..)| *path == route)
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // An upgraded server must not be shown by scripts of the last one.
        (header::CACHE_CONTROL, "no-cache"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let mut response = (headers, text).into_response();
    let own = HeaderValue::from_static("same-origin");
    response.headers_mut().insert("cross-origin-resource-policy", own.clone());
    response.headers_mut().insert("cross-origin-opener-policy", own);
    response
}
