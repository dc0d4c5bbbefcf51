//! Plain services behind nginx and HAProxy, which end TLS as docs/operating/tls.md says.

use fence_client::{Client, TlsOptions};
use fence_tests::certificates::Certificates;
use fence_tests::process::Process;
use fence_tests::servers::{Server, Setup};
use fence_tests::tls_proxy::{Terminator, TlsProxy};
use fence_tests::wait::until_true;
use rustix::process::Signal;

use super::{fails, fence, trusting};

/// Both services behind proxies of one kind.
struct Site {
    certificates: Certificates,
    locks: Server,
    _guard: Server,
    before_locks: TlsProxy,
    before_guard: TlsProxy,
}

impl Site {
    async fn new(kind: Terminator) -> Self {
        let certificates = Certificates::new();
        let names = ["--host-name", "locks.example"];
        let locks = Setup::lock_server("memory:").args(&names).start().await;
        let guard = Setup::fenced_store("memory:").args(&names).start().await;
        let before_locks = TlsProxy::start(kind, &certificates, &locks.base).await;
        let before_guard = TlsProxy::start(kind, &certificates, &guard.base).await;
        Self { certificates, locks, _guard: guard, before_locks, before_guard }
    }

    /// `fence`, set up by variables alone.
    fn fence(&self, args: &[&str]) -> Process {
        let ca = self.certificates.text("ca.pem");
        let env = [
            ("FENCE_SERVER", self.before_locks.base.as_str()),
            ("FENCE_GUARD", self.before_guard.base.as_str()),
            ("FENCE_CA_FILE", &ca),
        ];
        fence(args, &env)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_under_a_lock_writes_an_object_behind_nginx() {
    run_writes(Terminator::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_under_a_lock_writes_an_object_behind_haproxy() {
    run_writes(Terminator::Haproxy).await;
}

/// The inner `fence` has the settings of the outer one, which has them as flags.
async fn run_writes(kind: Terminator) {
    let site = Site::new(kind).await;
    let program = fence_tests::binaries::path("fence");
    let write = "echo paid | \"$0\" object put orders/42 && \"$0\" object get orders/42";
    let [flag, ca] = trusting(&site.certificates);
    let servers = ["--server", &site.before_locks.base, "--guard", &site.before_guard.base];
    let command = ["--", "sh", "-c", write, program.to_str().unwrap()];
    let args = [&["run", "--lock", "orders/42", &flag, &ca][..], &servers, &command].concat();
    let output = fence(&args, &[]).ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.ends_with("paid\n"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_the_lock_and_one_that_leaves_leaves_the_queue_behind_nginx() {
    wait_and_leave(Terminator::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_the_lock_and_one_that_leaves_leaves_the_queue_behind_haproxy() {
    wait_and_leave(Terminator::Haproxy).await;
}

async fn wait_and_leave(kind: Terminator) {
    let site = Site::new(kind).await;
    let locks = site.locks.locks();
    let watch = site.fence(&["lock", "watch", "a", "--output", "json"]);
    // Events come through the proxy at once: it keeps none back.
    let shows = async |text: &str| {
        until_true(&format!("{text} to be shown"), || async { watch.stdout().contains(text) })
            .await;
    };
    shows("\"ready\"").await;
    let held = locks.grant("a", 60_000).await;
    shows(&held.lease_id.to_string()).await;
    let acquire = ["lock", "acquire", "a", "--wait", "60s", "--ttl", "60s"];
    let mut leaves = site.fence(&acquire);
    locks.queue_of("a", 1).await;
    leaves.kill();
    locks.queue_of("a", 0).await;
    let mut waits = site.fence(&acquire);
    locks.queue_of("a", 1).await;
    locks.release("a", held.lease_id).await.expect(200);
    let output = waits.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    watch.signal(Signal::INT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_goes_through_a_proxy_by_its_name_alone() {
    let certificates = Certificates::new();
    let server = Setup::lock_server("memory:").start().await;
    let proxy = TlsProxy::start(Terminator::Nginx, &certificates, &server.base).await;
    // The name that the proxy passes on is not one of this server.
    let flags = trusting(&certificates);
    let args = ["lock", "show", "a", "--server", &proxy.base, &flags[0], &flags[1]];
    fails(&args, 64, &["locks.example", "--host-name"]).await;
    let site = Site::new(Terminator::Nginx).await;
    let tls = TlsOptions::default().with_ca(&site.certificates.file("ca.pem")).unwrap();
    let builder = Client::builder().lock_server(&site.before_locks.base);
    let client = builder.fenced_store(&site.before_guard.base).tls(tls).build().unwrap();
    let lease = client.lock("a").acquire().await.unwrap();
    client.objects().put(&lease, "a", "x").await.unwrap();
    lease.release().await.unwrap();
}
