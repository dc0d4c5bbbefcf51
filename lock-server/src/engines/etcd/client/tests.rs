//! The outcome where several members do not agree, or are none of etcd's.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::engines::etcd::wire::{StatusRequest, TxnReply};

const PATH: Path = "/etcdserverpb.KV/Txn";
const REFUSES: Said = Said::Status(5, "etcdserver: requested lease not found");
const IS_FULL: Said = Said::Status(8, "etcdserver: mvcc: database space exceeded");

/// Reply of a member to every request.
#[derive(Clone, Copy)]
enum Said {
    /// An empty message, which is one of any kind.
    Empty,
    /// A status of gRPC and its message.
    Status(u16, &'static str),
    /// Another status of HTTP.
    Http(u16),
    /// It takes requests and does not reply.
    Silence,
    /// As [`Empty`](Self::Empty), and it closes the connection after it.
    Once,
}

/// A member, for as long as it is kept.
struct Fake {
    address: String,
    connections: Arc<AtomicU64>,
    _accepting: AbortOnDropHandle<()>,
}

#[expect(clippy::disallowed_methods, reason = "a server of this test alone")]
async fn member(said: Said) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connections = Arc::new(AtomicU64::new(0));
    let count = connections.clone();
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let server = http2::Builder::new(TokioExecutor::new());
                let replied = Arc::new(Notify::new());
                let notify = replied.clone();
                let replying = service_fn(move |_| {
                    let notify = notify.clone();
                    async move {
                        let reply = reply(said).await;
                        notify.notify_one();
                        reply
                    }
                });
                let mut serving =
                    std::pin::pin!(server.serve_connection(TokioIo::new(stream), replying));
                if matches!(said, Said::Once) {
                    // It closes once the request that it has is replied to.
                    tokio::select! {
                        _ = serving.as_mut() => return,
                        () = replied.notified() => {}
                    }
                    serving.as_mut().graceful_shutdown();
                }
                let _ = serving.await;
            });
        }
    });
    Fake { address, connections, _accepting: AbortOnDropHandle::new(accepting) }
}

type ReplyBody = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn reply(said: Said) -> Result<Response<ReplyBody>, Infallible> {
    let (status, code, message) = match said {
        Said::Empty | Said::Once => (200, 0, ""),
        Said::Status(code, message) => (200, code, message),
        Said::Http(status) => (status, 0, ""),
        Said::Silence => std::future::pending().await,
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.into());
    trailers.insert("grpc-message", HeaderValue::from_static(message));
    let body = Full::new(Bytes::from_static(&[0; 5]));
    let body = body.with_trailers(async move { Some(Ok(trailers)) }).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    Ok(response)
}

fn client(members: &[&Fake]) -> EtcdClient {
    let addresses: Vec<&str> = members.iter().map(|member| &*member.address).collect();
    let target = format!("etcd://{}", addresses.join(",")).parse().unwrap();
    let connect = Duration::from_secs(5);
    let reply = Duration::from_secs(2);
    EtcdClient::new(&target, &StoreLogin::default(), connect, reply).unwrap()
}

async fn request(client: &EtcdClient, effect: Effect) -> Result<TxnReply, CallError> {
    client.call(PATH, &StatusRequest {}, effect).await
}

#[tokio::test]
async fn what_one_member_refuses_another_may_have_done() {
    let silent = member(Said::Silence).await;
    let refusing = member(REFUSES).await;
    let gone = client(&[&silent, &refusing]);
    let outcome = request(&gone, Effect::Compared).await;
    assert!(matches!(&outcome, Err(CallError::Unknown(why)) if why.contains("lease not found")));
    // The next request does not wait for the silent one again.
    assert_eq!(gone.current(), 1);
    assert!(request(&gone, Effect::Compared).await.unwrap_err().is_no_lease());
    let harmless = request(&client(&[&silent, &refusing]), Effect::Harmless).await;
    assert!(harmless.unwrap_err().is_no_lease());
}

/// etcd says so of what it did, too, where the quota was passed meanwhile.
#[tokio::test]
async fn a_full_etcd_may_have_done_what_it_refuses() {
    let silent = member(Said::Silence).await;
    let full = member(IS_FULL).await;
    let outcome = request(&client(&[&full]), Effect::Compared).await;
    assert!(matches!(&outcome, Err(CallError::Full(why)) if why.contains("NOSPACE")));
    let outcome = request(&client(&[&silent, &full]), Effect::Compared).await;
    assert!(matches!(&outcome, Err(CallError::Unknown(why)) if why.contains("NOSPACE")));
    let harmless = request(&client(&[&silent, &full]), Effect::Harmless).await;
    assert!(matches!(harmless, Err(CallError::Down(why)) if why.contains("NOSPACE")));
}

#[tokio::test]
async fn a_connection_is_kept_until_a_reply_is_late() {
    let well = member(Said::Empty).await;
    let silent = member(Said::Silence).await;
    let client = client(&[&well, &silent]);
    for _ in 0..3 {
        request(&client, Effect::Compared).await.unwrap();
    }
    assert_eq!(well.connections.load(Ordering::Relaxed), 1);
    client.current.store(1, Ordering::Relaxed);
    request(&client, Effect::Harmless).await.unwrap();
    client.current.store(1, Ordering::Relaxed);
    request(&client, Effect::Harmless).await.unwrap();
    assert_eq!(silent.connections.load(Ordering::Relaxed), 2);
}

/// A request that a closed connection did not take is sent on another one.
#[tokio::test]
async fn a_connection_that_a_member_closes_loses_nothing() {
    let closing = member(Said::Once).await;
    let client = client(&[&closing]);
    for _ in 0..2 {
        request(&client, Effect::Compared).await.unwrap();
        client.members[0].until_closed().await;
    }
    assert_eq!(closing.connections.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_reply_that_is_none_of_etcds_leaves_it_open() {
    let gone = member(Said::Http(404)).await;
    let broken = member(Said::Http(502)).await;
    let outcome = request(&client(&[&gone]), Effect::Compared).await;
    assert!(matches!(outcome, Err(CallError::Down(why)) if why.contains("is it an etcd?")));
    let outcome = request(&client(&[&broken]), Effect::Compared).await;
    assert!(matches!(outcome, Err(CallError::Unknown(why)) if why.contains("502")));
}
