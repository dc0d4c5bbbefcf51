//! The HTTP client for guards.

use axum::http::{HeaderMap, header};
use reqwest::RequestBuilder;
use serde::de::DeserializeOwned;
use service_kit::tls::{ServerUrl, TlsOptions, reason};

use super::GuardOptions;

/// Longest reply that is read, in bytes; expected replies have a few hundred.
const REPLY_BYTES_MAX: usize = 64 * 1024;
/// Shorter than the guard's own idle timeout (75 s), so that a pooled connection is not one that it
/// is just closing.
const POOL_IDLE: std::time::Duration = std::time::Duration::from_secs(45);

/// A client that follows neither redirects nor proxies, and presents this server's credentials.
#[derive(Clone, Debug)]
pub(crate) struct GuardClient {
    http: reqwest::Client,
    tls: TlsOptions,
}

impl GuardClient {
    /// # Errors
    /// A sentence if the certificates cannot be used.
    pub(crate) fn new(guards: &GuardOptions) -> Result<Self, String> {
        let auth = guards.auth.iter().map(|value| (header::AUTHORIZATION, value.clone()));
        let is_https = guards.urls.iter().any(ServerUrl::is_https);
        let http = reqwest::Client::builder()
            .user_agent(concat!("lock-server/", env!("CARGO_PKG_VERSION")))
            .default_headers(auth.collect::<HeaderMap>())
            .no_proxy()
            .tcp_nodelay(true)
            .pool_idle_timeout(POOL_IDLE)
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(guards.tls.client_config(is_https)?)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { http, tls: guards.tls.clone() })
    }

    /// A request to `path`, which begins with a slash.
    pub(crate) fn get(&self, url: &ServerUrl, path: &str) -> RequestBuilder {
        self.http.get(format!("{url}{path}"))
    }

    /// As [`Self::get`].
    pub(crate) fn post(&self, url: &ServerUrl, path: &str) -> RequestBuilder {
        self.http.post(format!("{url}{path}"))
    }

    /// An error of a request to `url`, with what caused it last, which says most.
    pub(crate) fn causes(&self, url: &ServerUrl, error: reqwest::Error) -> String {
        reason(&self.tls, &error.without_url(), url.host())
    }
}

/// A guard's reply to GET, where it is 200 and a value of `T`.
///
/// # Errors
/// A sentence if it does not reply, refuses, or replies something else. There is no time-out.
pub(super) async fn get<T: DeserializeOwned>(
    client: &GuardClient,
    url: &ServerUrl,
    path: &str,
) -> Result<T, String> {
    let request = client.get(url, path).send();
    let reply = request.await.map_err(|error| client.causes(url, error))?;
    let status = reply.status().as_u16();
    if matches!(status, 401 | 403) {
        return Err(format!(
            "it replies {status} to {path}; name a bearer token with the right \"read *\" in its \
             access file by --guard-auth-file"
        ));
    }
    if status != 200 {
        return Err(format!("it replies {status} to {path}; is it a guard of this version?"));
    }
    let body = body(reply).await?;
    serde_json::from_slice(&body).map_err(|_| format!("its reply to {path} is not one of a guard"))
}

/// The body of a reply, where it is not too long.
pub(crate) async fn body(mut reply: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = reply.chunk().await.map_err(|error| error.to_string())? {
        body.extend_from_slice(&chunk);
        if body.len() > REPLY_BYTES_MAX {
            return Err(format!("its reply has more than {REPLY_BYTES_MAX} bytes"));
        }
    }
    Ok(body)
}
