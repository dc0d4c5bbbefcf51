//! Asking a server, with bounds.

use std::time::{Duration, UNIX_EPOCH};

use fence_client::{BearerToken, TlsOptions};
use reqwest::header::{AUTHORIZATION, DATE};
use service_kit::tls::ServerUrl;

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

    fn causes(&self, base: &str, error: reqwest::Error) -> String {
        let url = base.parse::<ServerUrl>();
        let tls = url.ok().and_then(|url| self.tls.explain(&error, url.host()));
        tls.unwrap_or_else(|| error.without_url().to_string())
    }
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) text: String,
    /// The server's clock, in milliseconds since 1970.
    pub(super) wall_ms: Option<u64>,
}

pub(super) async fn get(http: &Http, base: &str, path: &str) -> Result<Answer, String> {
    let request = http.client.get(format!("{base}{path}")).send();
    let mut response = request.await.map_err(|error| http.causes(base, error))?;
    let status = response.status().as_u16();
    let date = response.headers().get(DATE).and_then(|value| value.to_str().ok());
    let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
    let since_1970 = date.and_then(|date| date.duration_since(UNIX_EPOCH).ok());
    let wall_ms = since_1970.and_then(|since| u64::try_from(since.as_millis()).ok());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| error.to_string())? {
        body.extend_from_slice(&chunk);
        if body.len() > TEXT_BYTES_MAX {
            return Err(format!("{path} answers more than {TEXT_BYTES_MAX} bytes"));
        }
    }
    Ok(Answer { status, text: String::from_utf8_lossy(&body).into_owned(), wall_ms })
}
