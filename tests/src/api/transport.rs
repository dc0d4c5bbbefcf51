//! Ways of a request to a server: over a socket, or straight into a router of this process.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use service_kit::http::ApiRouter;
use tower::ServiceExt as _;

/// The body of a reply as it comes.
pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, String>;

/// Time-out of a reply, on the clock of the test. A waiter stays through an outage of etcd, which
/// lasts 25 s on a quiet machine.
pub(super) const REPLY_MAX: Duration = Duration::from_secs(90);

#[derive(Clone, Debug)]
pub(super) enum Transport {
    /// A connection pool.
    Http(reqwest::Client),
    /// The router of a server. Dropping the future of a request is a client that hangs up.
    InProcess(ApiRouter),
}

impl Transport {
    /// Sends a request to the server at `base`; an error where no head of a reply came back.
    pub(super) async fn send(
        &self,
        base: &str,
        method: &Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Response<ReplyBody>, String> {
        match self {
            Self::Http(client) => {
                let mut request = client.request(method.clone(), format!("{base}{path}"));
                for (name, value) in headers {
                    request = request.header(*name, *value);
                }
                let reply = request.body(body).send().await.map_err(text)?;
                let reply: Response<reqwest::Body> = reply.into();
                Ok(reply.map(|body| body.map_err(text).boxed_unsync()))
            }
            Self::InProcess(router) => {
                let mut request = Request::builder().method(method).uri(path);
                for (name, value) in headers {
                    request = request.header(*name, *value);
                }
                let mut request = request.body(Body::from(body)).map_err(text)?;
                let host = http::HeaderValue::from_static("localhost");
                request.headers_mut().entry(header::HOST).or_insert(host);
                let reply = tokio::time::timeout(REPLY_MAX, router.clone().oneshot(request));
                let reply = reply.await.map_err(text)?.map_err(text)?;
                Ok(reply.map(|body| body.map_err(text).boxed_unsync()))
            }
        }
    }
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}
