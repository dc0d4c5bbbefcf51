//! Asking a server, with bounds.

use std::time::{Duration, UNIX_EPOCH};

use fence_client::{BearerToken, TlsOptions};
use reqwest::header::{AUTHORIZATION, DATE};
use service_kit::tls::ServerUrl;

use super::unreached::{Reachability, reachability};
use fence_terminal::exit::Failure;

const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest reply that is read, in bytes.
const TEXT_BYTES_MAX: usize = 256 * 1024;

/// HTTP client of the checks.
pub(super) struct Http {
    client: reqwest::Client,
    tls: TlsOptions,
}

impl Http {
    pub(super) fn new(auth: Option<&BearerToken>, tls: TlsOptions) -> Result<Self, Failure> {
        let auth = auth.map(|token| (AUTHORIZATION, token.header()));
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .default_headers(auth.into_iter().collect())
            .tls_backend_preconfigured(tls.client_config(true).map_err(Failure::usage)?)
            .build()
            .map_err(|error| Failure::internal(error.to_string()))?;
        Ok(Self { client, tls })
    }

    /// The rest of a sentence about the server at `base`, which sent no reply: the cause, and what
    /// to do.
    async fn explain(&self, base: &str, error: &reqwest::Error) -> String {
        let url = base.parse::<ServerUrl>().ok();
        let tls = url.as_ref().and_then(|url| self.tls.explain(error, url.host()));
        if let Some(why) = tls {
            return format!("cannot be reached ({why})");
        }
        let cause = root_cause(error);
        if error.is_timeout() {
            let address = url.as_ref().map(address).unwrap_or_default();
            return silence(reachability(&address, TIMEOUT).await);
        }
        if error.is_connect() {
            return format!("cannot be reached ({cause}); start it, or check the address");
        }
        let text = format!("sends no HTTP reply ({cause}); check the address");
        match url.is_some_and(|url| url.is_https()) {
            true => text,
            false => format!("{text}, and write https:// if it speaks TLS"),
        }
    }
}

/// The rest of a sentence about a server that did not reply in time.
fn silence(reachability: Reachability) -> String {
    match reachability {
        Reachability::Open => format!(
            "does not reply within {} s, though connections are accepted: it is paused or \
             overloaded; look at its process and its log",
            TIMEOUT.as_secs()
        ),
        Reachability::Closed(why) | Reachability::Untried(why) => format!(
            "cannot be reached ({why}); check the address, and that no firewall drops the packets"
        ),
    }
}

/// `host:port`.
fn address(url: &ServerUrl) -> String {
    let default_port = if url.is_https() { 443 } else { 80 };
    format!("{}:{}", url.host(), url.authority().port_u16().unwrap_or(default_port))
}

/// Text of the innermost cause: those around it say only that a request was sent.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) text: String,
    /// The server's clock, in milliseconds since 1970.
    pub(super) wall_ms: Option<u64>,
}

/// Gets `path` of the server at `base`.
///
/// # Errors
/// The rest of a sentence about the server: the cause, and what to do.
pub(super) async fn get(http: &Http, base: &str, path: &str) -> Result<Answer, String> {
    let mut response = match http.client.get(format!("{base}{path}")).send().await {
        Ok(response) => response,
        Err(error) => return Err(http.explain(base, &error).await),
    };
    let status = response.status().as_u16();
    let date = response.headers().get(DATE).and_then(|value| value.to_str().ok());
    let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
    let since_1970 = date.and_then(|date| date.duration_since(UNIX_EPOCH).ok());
    let wall_ms = since_1970.and_then(|since| u64::try_from(since.as_millis()).ok());
    let mut body = Vec::new();
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) => return Err(http.explain(base, &error).await),
        };
        body.extend_from_slice(&chunk);
        if body.len() > TEXT_BYTES_MAX {
            return Err(format!("answers {path} by more than {TEXT_BYTES_MAX} bytes"));
        }
    }
    Ok(Answer { status, text: String::from_utf8_lossy(&body).into_owned(), wall_ms })
}
