//! The Rust SDK over both servers as processes.

mod below_the_marks;
mod debug_output;
mod endless;
mod forgotten;
mod kinds;
mod lost_replies;
mod sessions;
mod takeover;
mod testing;
mod together;

use std::time::Duration;

use fence_client::{Client, ErrorKind, Lease};
use fence_tests::fault_proxy::FaultProxy;
use fence_tests::key_file::lease_id;
use fence_tests::servers::{DataDir, Server, Setup};

/// Longer than any test: its lease is live here whatever happens at the server, until the first
/// renewal.
const LONG: Duration = Duration::from_secs(120);

/// A lock server whose tokens begin at 1, a guard, and what is between the SDK and the guard.
struct Site {
    locks: Server,
    guard: Server,
    proxy: FaultProxy,
    _data: DataDir,
}

impl Site {
    async fn new() -> Self {
        let data = DataDir::new();
        let locks = Setup::lock_server(&data.store()).start().await;
        let guard = Setup::fenced_store("memory:").start().await;
        let proxy = FaultProxy::before(&guard.address()).await;
        Self { locks, guard, proxy, _data: data }
    }

    /// An SDK behind the proxy.
    fn client(&self) -> Client {
        let guard = format!("http://{}", self.proxy.address());
        Client::builder().lock_server(&self.locks.base).fenced_store(guard).build().unwrap()
    }

    async fn lease(&self, lock: &str) -> Lease {
        self.client().lock(lock).ttl(LONG).acquire().await.unwrap()
    }
}

/// Name and reason of a revocation are text, with the rules of the server.
#[tokio::test]
async fn a_revocation_takes_the_name_and_the_reason_as_text() {
    let site = Site::new().await;
    let lease = site.lease("a").await;
    let locks = site.client().locks().clone();
    for (lock, reason, shown) in
        [("", "x", "lock name"), ("a", "", "reason \"\""), ("a", "two\nlines", "reason \"two")]
    {
        let error = locks.revoke(lock, reason).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.problem().is_none() && error.to_string().contains(shown), "{error}");
    }
    let other = lease_id();
    let error = locks.revoke_lease("a", other, "INC-1").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LeaseLost { .. }), "{error}");
    locks.revoke("a".to_owned(), "INC-1234".to_owned()).await.unwrap();
    let error = lease.release().await.unwrap_err();
    assert!(error.to_string().contains("INC-1234"), "{error}");
}

#[tokio::test]
async fn one_try_and_whether_a_lock_is_held() {
    let site = Site::new().await;
    let ours = site.client();
    let theirs = site.client();
    let is_held = async || ours.lock("a").is_held().await.unwrap();
    assert!(!is_held().await);
    let lease = theirs.lock("a").ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(is_held().await);
    let again = ours.lock("a").ttl(LONG).wait(LONG).try_acquire().await.unwrap();
    assert!(again.is_none(), "it does not wait: {again:?}");
    lease.release().await.unwrap();
    assert!(ours.lock("a").ttl(LONG).try_acquire().await.unwrap().is_some());
}
