//! The HTTP client for guards.

use axum::http::{HeaderValue, header};

/// Longest reply that is read, in bytes; expected replies have a few hundred.
const REPLY_BYTES_MAX: usize = 64 * 1024;
/// Shorter than the guard's own idle timeout (75 s), so that a pooled connection is not one that it
/// is just closing.
const POOL_IDLE: std::time::Duration = std::time::Duration::from_secs(45);

/// Builds a client that follows neither redirects nor proxies.
pub(crate) fn client(auth: Option<&HeaderValue>) -> Result<reqwest::Client, String> {
    let auth = auth.map(|value| (header::AUTHORIZATION, value.clone()));
    service_kit::tls::install_crypto();
    reqwest::Client::builder()
        .user_agent(concat!("lock-server/", env!("CARGO_PKG_VERSION")))
        .default_headers(auth.into_iter().collect())
        .no_proxy()
        .tcp_nodelay(true)
        .pool_idle_timeout(POOL_IDLE)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| error.to_string())
}

/// The body of a reply, where it is not too long.
pub(crate) async fn body(mut reply: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = reply.chunk().await.map_err(causes)? {
        body.extend_from_slice(&chunk);
        if body.len() > REPLY_BYTES_MAX {
            return Err(format!("its reply has more than {REPLY_BYTES_MAX} bytes"));
        }
    }
    Ok(body)
}

/// An error with what caused it last, which says most.
pub(crate) fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut last: &dyn std::error::Error = &error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
