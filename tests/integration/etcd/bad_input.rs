//! A setup that cannot work is reported in one sentence, and loses nothing.

use std::convert::Infallible;

use bytes::Bytes;
use fence_protocol::Code;
use fence_tests::etcd_certificates::EtcdCertificates;
use fence_tests::etcd_server::{Etcd, EtcdCluster};
use fence_tests::key_file::lease_id;
use fence_tests::process::Output;
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until_true};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::{LONG_MS, answered, lock_server, patient, setup, until_ready};

/// It ends with 1 without having listened, and says why in one sentence that holds these words.
async fn refused(setup: Setup, words: &[&str]) {
    let output: Output = setup.refused().await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stdout.is_empty(), "it said that it listens: {}", output.stdout);
    let message = output.stderr.lines().last().unwrap_or_default();
    for word in words {
        assert!(message.contains(word), "no {word:?} in\n{}", output.stderr);
    }
}

fn password(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_no_etcd_is_reported() {
    let guard = Setup::fenced_store("memory:").start().await;
    refused(setup(&format!("etcd://{}", guard.address())), &[&guard.address(), "etcd"]).await;
    let redis = Redis::start().await;
    refused(setup(&format!("etcd://{}", redis.address())), &[&redis.address(), "etcd"]).await;
    let unused = format!("127.0.0.1:{}", fence_tests::ports::unused());
    refused(setup(&format!("etcd://{unused}")), &[&unused]).await;
}

/// The status of an etcd of version 3.3.27, as gRPC carries it.
fn old_status() -> Response<impl Body<Data = Bytes, Error = Infallible>> {
    let message = Full::new(Bytes::from_static(b"\0\0\0\0\x08\x12\x063.3.27"));
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), 0.into())]);
    let mut response = Response::new(message.with_trailers(async { Some(Ok(trailers)) }));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// No etcd so old is installed anywhere, so its words are all that is here of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_is_too_old_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let _answering = AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let old = service_fn(|_| async { Ok::<_, Infallible>(old_status()) });
            let server = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), old));
        }
    }));
    refused(patient(&format!("etcd://{address}")), &[&address, "3.3.27", "3.4"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_knows_another_user_is_reported() {
    let etcd = Etcd::start().await;
    etcd.enable_auth("locks", "secret", "fencepost/").await;
    let right = password("secret\n");
    let wrong = password("guess");
    refused(patient(&etcd.url()), &[&etcd.address(), "--store-user"]).await;
    let url = format!("etcd://locks@{}", etcd.address());
    let as_user = |file| patient(&url).args(&["--store-password-file", path(file)]);
    refused(as_user(&wrong), &[&etcd.address(), "locks", "password"]).await;
    let stranger = patient(&format!("etcd://stranger@{}", etcd.address()));
    let stranger = stranger.args(&["--store-password-file", path(&right)]);
    refused(stranger, &[&etcd.address(), "stranger"]).await;
    let elsewhere = as_user(&right).args(&["--namespace", "default"]);
    let server = elsewhere.start().await;
    let lease = server.locks().grant("a", LONG_MS).await;
    server.locks().release("a", lease.lease_id).await.expect(200);
}

/// The user may log in, and may not touch our keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_rights_is_reported() {
    let etcd = Etcd::start().await;
    etcd.enable_auth("locks", "secret", "other-service/").await;
    let file = password("secret");
    let url = format!("etcd://locks@{}", etcd.address());
    let setup = patient(&url).args(&["--store-password-file", path(&file)]);
    refused(setup, &[&etcd.address(), "locks", "fencepost/"]).await;
}

/// etcd forgets its tokens when it is started again, and they run out; the server logs in anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_ran_out_is_renewed() {
    let mut etcd = Etcd::with(&["--auth-token-ttl=1"]).await;
    etcd.enable_auth("locks", "secret", "fencepost/").await;
    let file = password("secret");
    let url = format!("etcd://locks@{}", etcd.address());
    let server = patient(&url).args(&["--store-password-file", path(&file)]).start().await;
    let locks = server.locks();
    let held = locks.grant("a", LONG_MS).await;
    etcd.start_again().await;
    until_ready(&server).await;
    until_true("a renewal", || async { locks.renew("a", held.lease_id).await.status == 200 }).await;
    let own = locks.clone();
    let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    let waiting = tokio::spawn(async move { own.acquire("a", ask).await });
    locks.queue_of("a", 1).await;
    // Longer than an unused token lives.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    locks.let_go("a", held.lease_id).await;
    assert!(soon("the waiter", waiting).await.unwrap().lease().token > held.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_do_not_match_are_reported() {
    let own = EtcdCertificates::new();
    let other = EtcdCertificates::new();
    let etcd = Etcd::with_tls(&own).await;
    let with = |authority: &EtcdCertificates, client: Option<&EtcdCertificates>| {
        let mut setup = patient(&etcd.url()).args(&["--store-ca", &authority.file("ca.pem")]);
        if let Some(client) = client {
            setup = setup.args(&["--store-cert", &client.file("client.pem")]);
            setup = setup.args(&["--store-key", &client.file("client.key")]);
        }
        setup
    };
    refused(with(&other, Some(&own)), &[&etcd.address(), "certificate"]).await;
    refused(with(&own, Some(&other)), &[&etcd.address(), "certificate"]).await;
    refused(with(&own, None), &[&etcd.address(), "certificate"]).await;
    let plain = format!("etcd://{}", etcd.address());
    refused(setup(&plain), &[&etcd.address()]).await;
    let server = with(&own, Some(&own)).start().await;
    let held = server.locks().grant("a", LONG_MS).await;
    let own = server.locks();
    let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    let waiting = tokio::spawn(async move { own.acquire("a", ask).await });
    server.locks().queue_of("a", 1).await;
    server.locks().release("a", held.lease_id).await.expect(200);
    soon("the waiter", waiting).await.unwrap().lease();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_where_etcd_speaks_none_is_reported() {
    let etcd = Etcd::start().await;
    let certificates = EtcdCertificates::new();
    let url = format!("etcds://{}", etcd.address());
    let setup = setup(&url).args(&["--store-ca", &certificates.file("ca.pem")]);
    refused(setup, &[&etcd.address()]).await;
}

/// A full etcd refuses to grow. Held leases stay until they expire; once the operator has made
/// room, all requests succeed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_is_reported_and_loses_nothing() {
    let etcd = Etcd::with(&["--quota-backend-bytes=1048576"]).await;
    let server = lock_server(&etcd).await;
    let locks = server.locks();
    let held = locks.grant("held", LONG_MS).await;
    etcd.fill().await;
    let problem = soon("an answer", locks.acquire("more", json!({"ttl_ms": LONG_MS}))).await;
    let problem = problem.problem(Code::StoreUnavailable);
    assert!(problem.detail.contains("NOSPACE"), "{problem:?}");
    assert_eq!(locks.show("held").await.holder.unwrap().lease_id, held.lease_id);
    let refused_renewal = soon("an answer", locks.renew("held", held.lease_id)).await;
    // etcd says so of what it has done, too; the last commit of the server says which it was.
    assert!(refused_renewal.problem(Code::StoreUnavailable).detail.contains("NOSPACE"));
    refused(patient(&etcd.url()), &[&etcd.address(), "NOSPACE"]).await;
    make_room(&etcd).await;
    let more = json!({"ttl_ms": LONG_MS, "lease_id": lease_id()});
    until_true("a grant", || async {
        let reply = locks.acquire("more", more.clone()).await;
        reply.status == 200 && reply.lease().token > held.token
    })
    .await;
    let renewed = answered(|| locks.renew("held", held.lease_id)).await.lease();
    assert_eq!(renewed.token, held.token);
}

/// Compacts and defragments as etcd's documentation advises the operator of a full etcd.
pub(super) async fn make_room(etcd: &Etcd) {
    let ballast = json!({"key": "YmFsbGFzdA=="});
    etcd.call("/v3/kv/deleterange", &ballast).await;
    let revision = etcd.revision().await.to_string();
    etcd.call("/v3/kv/compaction", &json!({"revision": revision, "physical": true})).await;
    etcd.call("/v3/maintenance/defragment", &json!({})).await;
    let status = etcd.call("/v3/maintenance/status", &json!({})).await;
    let member = &status["header"]["member_id"];
    let alarm = json!({"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member});
    etcd.call("/v3/maintenance/alarm", &alarm).await;
}

/// One node of three is no cluster: it cannot say anything for sure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_a_leader_is_reported() {
    let mut cluster = EtcdCluster::start(3).await;
    cluster.node_mut(1).kill();
    cluster.node_mut(2).kill();
    until_true("no leader", || async { !cluster.node(0).health().await }).await;
    refused(setup(&cluster.url()), &["leader", &cluster.node(0).address()]).await;
}

/// Records of 0.1 lie under other keys and say other things: they are refused and not misread, and
/// their tokens are not gone below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_0_1_are_refused_at_start() {
    let etcd = Etcd::start().await;
    let meta = json!({"format": 1, "offset": 7, "cluster_id": 8, "raft_index": 9, "nonce": "a"});
    etcd.put("fencepost/default/meta", &meta.to_string()).await;
    etcd.put("fencepost/default/h/held", "{}").await;
    let words = ["lock-server 0.1", "etcdctl del --prefix fencepost/default/"];
    refused(patient(&etcd.url()), &words).await;
    assert_eq!(etcd.range("fencepost/").await.len(), 2, "something was changed");
    etcd.by_hand(&["del", "--prefix", "fencepost/default/"]).await;
    let server = lock_server(&etcd).await;
    server.locks().grant("held", LONG_MS).await;
}

/// One record that cannot be read keeps its own lock shut, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_shuts_its_lock_alone() {
    let etcd = Etcd::start().await;
    let server = lock_server(&etcd).await;
    let locks = server.locks();
    for damaged in ["", "damaged", "a text that is longer than what stands before a value {}"] {
        etcd.put("fencepost/default/l/shut", damaged).await;
        let problem = locks.acquire("shut", json!({"ttl_ms": LONG_MS})).await;
        let problem = problem.problem(Code::StoreUnavailable);
        assert!(problem.detail.contains("cannot be read"), "{problem:?}");
        locks.grant("open", LONG_MS).await;
        locks.release("open", locks.show("open").await.holder.unwrap().lease_id).await.expect(200);
    }
    etcd.by_hand(&["del", "fencepost/default/l/shut"]).await;
    locks.grant("shut", LONG_MS).await;
}

/// A password on the command line would be read by everybody who lists the processes.
#[tokio::test]
async fn a_password_in_the_url_is_refused_and_not_repeated() {
    let output = setup("etcd://user:hunter2@127.0.0.1:2379").refused().await;
    assert_eq!(output.code, 64, "{output:?}");
    assert!(output.stderr.contains("--store-password-file"), "{}", output.stderr);
    assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
}
