//! Plain HTTP to a store, with a token or without one.

use fence_client::protocol::{FENCING_TOKEN, Problem};
use reqwest::{Method, Response};

use crate::demo::orders::Answer;
use crate::process::PATIENCE;
use fence_terminal::exit::Failure;

/// A store over HTTP. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::demo) struct Objects {
    http: reqwest::Client,
    base: String,
}

impl Objects {
    /// A store whose objects' addresses begin with `base`.
    pub(in crate::demo) fn new(base: String) -> Result<Self, Failure> {
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build();
        let http = http.map_err(|error| Failure::internal(error.to_string()))?;
        Ok(Self { http, base })
    }

    pub(in crate::demo) fn url(&self, key: &str) -> String {
        format!("{}{key}", self.base)
    }

    pub(in crate::demo) async fn get(
        &self,
        key: &str,
        token: Option<&str>,
    ) -> Result<Answer, String> {
        self.send(Method::GET, key, token, None).await
    }

    pub(in crate::demo) async fn put(
        &self,
        key: &str,
        token: Option<&str>,
        body: String,
    ) -> Result<Answer, String> {
        self.send(Method::PUT, key, token, Some(body)).await
    }

    async fn send(
        &self,
        method: Method,
        key: &str,
        token: Option<&str>,
        body: Option<String>,
    ) -> Result<Answer, String> {
        let mut request = self.http.request(method, self.url(key));
        if let Some(token) = token {
            request = request.header(FENCING_TOKEN, token);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await.map_err(|error| format!("no reply: {error}"))?;
        read(response).await
    }
}

async fn read(response: Response) -> Result<Answer, String> {
    let status = response.status().as_u16();
    let body = response.bytes().await.map_err(|error| format!("no whole reply: {error}"))?;
    Ok(answer(status, &body))
}

/// A reply's body is the document, or the problem.
pub(super) fn answer(status: u16, body: &[u8]) -> Answer {
    let problem: Option<Problem> =
        if status >= 400 { serde_json::from_slice(body).ok() } else { None };
    let document = if status < 300 { serde_json::from_slice(body).ok() } else { None };
    Answer { status: Some(status), document, problem, error: None, done: None }
}
