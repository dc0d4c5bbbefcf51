//! The API over the memory store, in process.

use axum::body::Body;
use fence_protocol::wire::fence::{FencePage, FenceReply};
use fence_protocol::{FENCING_GUARANTEE, FENCING_MARK, FENCING_TOKEN, Problem};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use service_kit::Kit;
use service_kit::http::ApiRouter;

use crate::app;
use crate::settings::{Backend, Settings};
use crate::stores::open::StoreUrl;

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn code(&self) -> String {
        let problem: Problem = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem.status, self.status.as_u16());
        problem.code.to_string()
    }
}

async fn router() -> ApiRouter {
    let mut settings = Settings::new(Backend::Store(Box::new(StoreUrl::Memory)), None);
    settings.max_object_bytes = 1000;
    app::build(settings, &Kit::new("test")).await.unwrap().router
}

async fn send(
    router: &ApiRouter,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body.into()).unwrap();
    let response = TowerToHyperService::new(router.clone()).call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    // These two are replied before the routes.
    if !matches!(head.status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::PAYLOAD_TOO_LARGE) {
        assert_eq!(head.headers[FENCING_GUARANTEE], "atomic");
    }
    Answer { status: head.status, headers: head.headers, body }
}

fn token(number: u64, lock: &str) -> String {
    format!("{number};lock=\"{lock}\";lease=\"00000000-0000-4000-8000-{number:012}\"")
}

#[tokio::test]
async fn bytes_types_and_conditions_survive() {
    let router = router().await;
    let own = token(34, "a/b");
    let fence = (FENCING_TOKEN, own.as_str());
    let bytes: Vec<u8> = (0..=255).collect();
    let typed = ("content-type", "image/x-test");
    let put = send(&router, Method::PUT, "/v1/objects/a%2Fb", &[fence, typed], bytes.clone()).await;
    assert_eq!(put.status, StatusCode::CREATED);
    assert_eq!(put.headers[FENCING_MARK], "34");
    let etag = put.headers["etag"].to_str().unwrap().to_owned();
    let got = send(&router, Method::GET, "/v1/objects/a/b", &[fence], "").await;
    assert_eq!((got.status, got.body), (StatusCode::OK, bytes.clone()));
    assert_eq!(got.headers["content-type"], "image/x-test");
    assert_eq!(got.headers["etag"], etag.as_str());
    let again = send(&router, Method::PUT, "/v1/objects/a/b", &[fence], bytes).await;
    assert_eq!(again.status, StatusCode::NO_CONTENT);
    assert_ne!(again.headers["etag"], etag.as_str(), "equal bytes, another version");
    let old = ("if-match", etag.as_str());
    let lost = send(&router, Method::PUT, "/v1/objects/a/b", &[fence, old], "x").await;
    assert_eq!((lost.status.as_u16(), lost.code().as_str()), (412, "precondition-failed"));
    let unchanged = ("if-none-match", again.headers["etag"].to_str().unwrap());
    let got = send(&router, Method::GET, "/v1/objects/a/b", &[fence, unchanged], "").await;
    assert_eq!(got.status, StatusCode::NOT_MODIFIED);
    let head = send(&router, Method::HEAD, "/v1/objects/a/b", &[fence], "").await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
}

#[tokio::test]
async fn a_refusal_says_what_it_met_and_is_remembered() {
    let router = router().await;
    let old = token(33, "a");
    let new = token(34, "a");
    let put = |fence: String, who: &'static str| {
        let router = router.clone();
        async move {
            let headers = [(FENCING_TOKEN, fence.as_str()), ("fence-owner", who)];
            send(&router, Method::PUT, "/v1/objects/a", &headers, "x").await
        }
    };
    assert_eq!(put(old.clone(), "first").await.status, StatusCode::CREATED);
    let seal = send(&router, Method::POST, "/v1/fences/a/seal", &[(FENCING_TOKEN, &new)], "").await;
    assert_eq!(seal.body, b"{\"lock\":\"a\",\"mark\":34}");
    let stale = put(old, "first").await;
    assert_eq!(stale.code(), "stale-token");
    assert_eq!(stale.headers[FENCING_MARK], "34");
    let problem: Problem = serde_json::from_slice(&stale.body).unwrap();
    assert_eq!(problem.extension::<u64>("presented"), Some(33));
    assert_eq!(problem.extension::<u64>("mark"), Some(34));
    assert_eq!(problem.extension::<String>("outcome").unwrap(), "not-applied");
    let twin = new.replace("000000000034", "000000000035");
    assert_eq!(put(twin, "second").await.code(), "token-collision");
    let shown = send(&router, Method::GET, "/v1/fences/a", &[], "").await;
    let shown: FenceReply = serde_json::from_slice(&shown.body).unwrap();
    assert_eq!(shown.refused_total, 2);
    let last = &shown.last_refusals[0];
    assert_eq!((last.code.as_str(), last.token.get()), ("token-collision", 34));
    assert_eq!(last.owner.as_ref().unwrap().as_str(), "second");
    let page = send(&router, Method::GET, "/v1/fences?limit=1", &[], "").await;
    let page: FencePage = serde_json::from_slice(&page.body).unwrap();
    assert_eq!((page.fences.len(), page.fences[0].refused_total), (1, 2));
}

#[tokio::test]
async fn bad_requests_are_refused_and_change_nothing() {
    let router = router().await;
    let own = token(34, "a");
    let fence = (FENCING_TOKEN, own.as_str());
    let big = "x".repeat(1001);
    let stream = || {
        let piece = bytes::Bytes::from("x".repeat(600));
        let pieces: Vec<Result<_, std::io::Error>> = vec![Ok(piece.clone()), Ok(piece)];
        Body::from_stream(futures_util::stream::iter(pieces))
    };
    let length = ("content-length", "1001");
    for (method, path, headers, body, expected) in [
        (Method::PUT, "/v1/objects/a", vec![fence, length], Body::from(big), "payload-too-large"),
        (Method::PUT, "/v1/objects/a", vec![fence], stream(), "payload-too-large"),
        (Method::PUT, "/v1/objects/a", vec![], Body::empty(), "token-required"),
        (Method::GET, "/v1/objects/a", vec![], Body::empty(), "token-required"),
        (Method::PUT, "/v1/objects/b", vec![fence], Body::empty(), "wrong-lock"),
        (Method::PUT, "/v1/objects/a/%2e%2e/a", vec![fence], Body::empty(), "invalid-request"),
        (
            Method::PUT,
            "/v1/objects/a",
            vec![fence, ("if-match", "x")],
            Body::empty(),
            "invalid-request",
        ),
        (
            Method::PUT,
            "/v1/objects/a",
            vec![fence, ("fence-owner", "")],
            Body::empty(),
            "invalid-request",
        ),
        (Method::POST, "/v1/objects/a", vec![fence], Body::empty(), "method-not-allowed"),
        (Method::POST, "/v1/fences/a", vec![fence], Body::empty(), "not-found"),
        (Method::POST, "/v1/fences/b/seal", vec![fence], Body::empty(), "wrong-lock"),
        (Method::GET, "/v1/fences?limit=0", vec![], Body::empty(), "invalid-request"),
        (Method::GET, "/v1/fences?after=a//b", vec![], Body::empty(), "invalid-request"),
        (Method::GET, "/v1/fences?what=1", vec![], Body::empty(), "invalid-request"),
    ] {
        let answer = send(&router, method, path, &headers, body).await;
        assert_eq!(answer.code(), expected, "{path}");
    }
    let shown = send(&router, Method::GET, "/v1/fences/a", &[], "").await;
    let shown: FenceReply = serde_json::from_slice(&shown.body).unwrap();
    assert_eq!(shown.mark, None, "nothing was raised");
}

/// A connection with an unread body cannot be used again, and the reply must close it.
#[tokio::test]
async fn a_reply_closes_a_connection_with_an_unread_body() {
    let router = router().await;
    let own = token(34, "a");
    let stale = token(33, "a");
    let put = async |headers: &[(&str, &str)]| {
        let answer = send(&router, Method::PUT, "/v1/objects/a", headers, "body").await;
        (answer.status.as_u16(), answer.headers.contains_key("connection"))
    };
    assert_eq!(put(&[]).await, (428, true));
    assert_eq!(put(&[(FENCING_TOKEN, &own)]).await, (201, false));
    assert_eq!(put(&[(FENCING_TOKEN, &stale)]).await, (412, false));
}
