//! Certificate files that change under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fence_tests::api::Locks;
use fence_tests::certificates::Certificates;
use fence_tests::wait::until_true;
use serde_json::json;

use super::{api, lock_server, metric, readiness};

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
const EXPIRES: &str = "tls_certificate_expires_timestamp_seconds";

/// Connections that were open stay, and every new one is served, while the certificate is replaced
/// three times and is unusable once.
#[tokio::test]
async fn a_reload_drops_no_connection() {
    let made = Certificates::new();
    let server = lock_server(&made).start().await;
    let old = api(&server, &made, None);
    let first = metric(&old, EXPIRES).await;
    let done = Arc::new(AtomicBool::new(false));
    let requests = Arc::new(AtomicUsize::new(0));
    let work = |keeps_alive: bool, number: usize| {
        let idle = if keeps_alive { 1 } else { 0 };
        let client = made.https(None).pool_max_idle_per_host(idle).build().unwrap();
        let locks = Locks(fence_tests::api::Api::with(&server.base, client));
        let done = Arc::clone(&done);
        let requests = Arc::clone(&requests);
        tokio::spawn(async move {
            let lock = format!("load/{number}");
            while !done.load(Ordering::Relaxed) {
                let reply = locks.try_acquire(&lock, json!({})).await.expect("a reply");
                let lease = reply.lease();
                locks.release(&lock, lease.lease_id).await.expect(200);
                requests.fetch_add(2, Ordering::Relaxed);
            }
        })
    };
    let workers: Vec<_> = (0..4).map(|number| work(number % 2 == 0, number)).collect();
    let more_requests = async |what: &str| {
        let before = requests.load(Ordering::Relaxed);
        until_true(what, || async { requests.load(Ordering::Relaxed) > before + 20 }).await;
    };
    more_requests("requests under the first certificate").await;
    for days in [100, 200] {
        made.issue_for("server", &NAMES, days);
        let expected = first + (days - 365) * 86_400;
        until_true("the certificate to be in force", || async {
            (metric(&old, EXPIRES).await - expected).abs() < 3_600
        })
        .await;
        more_requests("requests under a new certificate").await;
    }
    made.write("server.pem", "garbled");
    until_true("a warning", || async {
        readiness(&old).await.contains("server.pem holds no certificate")
    })
    .await;
    more_requests("requests under the last good certificate").await;
    made.issue("server", &NAMES);
    until_true("the warning to end", || async { readiness(&old).await.contains("[+]tls ok") })
        .await;
    more_requests("requests under the last certificate").await;
    done.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
}
