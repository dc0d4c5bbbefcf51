//! lock-server and its Redis over TLS, and everything that can be wrong with it.

use std::path::Path;

use fence_protocol::Code;
use fence_tests::certificates::{Certificates, TlsRedis};
use fence_tests::event_stream::EventStream;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::ports;
use fence_tests::process::{Output, Process, command};
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::{until, until_true};
use serde_json::json;

fn setup(redis: &TlsRedis) -> Setup {
    redis.flags().iter().fold(Setup::lock_server(&redis.url()), |setup, flag| setup.arg(flag))
}

/// Ports of the connections that are not this test's.
async fn ports_in_use(redis: &Redis) -> Vec<String> {
    let list: String = redis.run(&["CLIENT", "LIST"]).await;
    let others = list.lines().filter(|line| !line.contains("cmd=client"));
    let port = |line: &str| line.split("laddr=").nth(1)?.split(' ').next().map(str::to_owned);
    others.filter_map(port).collect()
}

/// Waits until lock servers have opened this many connections, and checks that all of them are TLS.
async fn only_tls_ports_are_used(redis: &TlsRedis, count: usize) {
    let ports = until("the connections of the servers", || async {
        let ports = ports_in_use(&redis.redis).await;
        (ports.len() >= count).then_some(ports)
    })
    .await;
    assert!(ports.iter().all(|port| *port == redis.address()), "{ports:?}");
}

/// Commands, waiters, events and a restart: every connection is TLS.
#[tokio::test]
async fn everything_travels_over_tls() {
    let mut redis = TlsRedis::start().await;
    let fresh = ["init", "--fresh", "--store", &redis.url()];
    let flags = redis.flags();
    let flags: Vec<&str> = fresh.into_iter().chain(flags.iter().map(String::as_str)).collect();
    let said = fence_tests::process::run("lock-server", &flags).await;
    assert_eq!(said.code, 0, "{said:?}");
    let setup = setup(&redis).args(&["--after-loss", "grant"]);
    let one = setup.start().await;
    let two = setup.start().await;
    let mut stream = EventStream::open(&two.base, "", "").await;
    let held = one.locks().grant("a", 60_000).await;
    assert_eq!(held.token.get(), 1);
    stream.next().await;
    let waits = two.locks();
    let waiting = tokio::spawn(async move { waits.acquire("a", json!({"wait_ms": 20_000})).await });
    until_true("the waiter to have its place", || async {
        one.locks().show("a").await.queue_length == 1
    })
    .await;
    // Two servers' commands, events and subscriptions.
    only_tls_ports_are_used(&redis, 8).await;
    one.locks().release("a", held.lease_id).await.expect(200);
    let next = waiting.await.unwrap().lease();
    assert!(next.token > held.token);

    redis.redis.start_again().await;
    until_true("the servers to be back", || async {
        let reply = two.locks().acquire("b", json!({})).await;
        reply.status == 200 && reply.lease().token > next.token
    })
    .await;
}

/// A name instead of an address, and no certificate of the client where Redis wants none.
#[tokio::test]
async fn the_name_of_the_url_is_verified() {
    let redis = TlsRedis::with(Certificates::new(), &[("tls-auth-clients", "no")]).await;
    let port = redis.address().split_once(':').unwrap().1.to_owned();
    let ca = redis.certificates.text("ca.pem");
    let setup = |host: &str| {
        Setup::lock_server(&format!("rediss://{host}:{port}")).args(&["--store-ca", &ca])
    };
    setup("localhost").start().await.locks().grant("a", 60_000).await;
    let other = Certificates::for_names(&["redis.example"]);
    let redis = TlsRedis::with(other, &[("tls-auth-clients", "no")]).await;
    let said = refusal(
        Setup::lock_server(&redis.url()).args(&["--store-ca", &redis.certificates.text("ca.pem")]),
    )
    .await;
    assert!(said.contains("its certificate is for redis.example, not for 127.0.0.1"), "{said}");
}

async fn refusal(setup: Setup) -> String {
    setup.refused().await.stderr
}

/// A certificate that does not match, and a port that does not speak TLS, are one sentence.
#[tokio::test]
async fn what_does_not_match_is_one_sentence() {
    let redis = TlsRedis::start().await;
    let others = Certificates::new();
    let own = |name: &str| redis.certificates.text(name);
    let [url, plain_port] = [redis.url(), format!("rediss://{}", redis.redis.address())];
    let tls_port = format!("redis://{}", redis.address());
    let ca = own("ca.pem");
    let cert = own("client.pem");
    let key = own("client.key");
    let (other_ca, other_cert, other_key) =
        (others.text("ca.pem"), others.text("client.pem"), others.text("client.key"));
    let client = |cert: &str, key: &str| {
        ["--store-cert", cert, "--store-key", key].map(str::to_owned).to_vec()
    };
    let trust = |ca: &str| vec!["--store-ca".to_owned(), ca.to_owned()];
    for (url, flags, reason) in [
        (&url, vec![], "signed by a CA that this system does not know; name the file of that CA"),
        (&url, trust(&other_ca), "is not signed by the CA of --store-ca"),
        (&url, trust(&ca), "for want of a client certificate"),
        (
            &url,
            [trust(&ca), client(&other_cert, &other_key)].concat(),
            "does not accept the certif",
        ),
        (&plain_port, [trust(&ca), client(&cert, &key)].concat(), "write redis://"),
        (&tls_port, vec![], "write rediss://"),
    ] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let Output { code, stderr, .. } = Setup::lock_server(url).args(&flags).refused().await;
        let said: Vec<&str> = stderr.lines().filter(|line| line.contains("cannot start")).collect();
        assert_eq!((code, said.len()), (1, 1), "{stderr}");
        assert!(said[0].contains(reason), "{url} {flags:?}: {stderr}");
        eprintln!("{}", said[0]);
    }
}

/// Files are judged before anything is connected: nothing listens at the port.
#[tokio::test]
async fn files_are_judged_at_start() {
    let made = Certificates::new();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cert = made.text("client.pem");
    let key = made.text("client.key");
    let ca = made.text("ca.pem");
    let garbled =
        write("garbled", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let [text, empty] = [write("text", "hunter2\nhunter3"), write("empty", "")];
    let folder_name = folder.path().to_str().unwrap().to_owned();
    let other_key = Certificates::new().text("server.key");
    let kept = write("other.key", &std::fs::read_to_string(made.file("server.key")).unwrap());
    assert!(!Path::new(&other_key).exists(), "it went with its folder");
    for (flags, reason) in [
        (vec!["--store-ca", "/nonexistent/ca"], "--store-ca: /nonexistent/ca cannot be read"),
        (vec!["--store-ca", &folder_name], "cannot be read"),
        (vec!["--store-ca", &garbled], "holds a certificate that cannot be read"),
        (vec!["--store-ca", &text], "holds no certificate"),
        (vec!["--store-ca", &key], "holds no certificate"),
        (vec!["--store-cert", &cert], "--store-cert needs its private key"),
        (vec!["--store-key", &key], "--store-key is the key of a certificate"),
        (vec!["--store-cert", &cert, "--store-key", &ca], "holds no private key"),
        (vec!["--store-cert", &cert, "--store-key", &kept], "does not go with"),
        (vec!["--store-cert", &cert, "--store-key", &other_key], "cannot be read"),
        (vec!["--store-password-file", "/nonexistent/p"], "/nonexistent/p cannot be read"),
        (vec!["--store-password-file", &text], "has several lines"),
        (vec!["--store-password-file", &empty], "is empty"),
        (vec!["--sentinel-password-file", &cert], "has several lines"),
    ] {
        let said = Setup::lock_server("rediss://127.0.0.1:1").args(&flags).refused().await;
        assert_eq!(said.code, 64, "{flags:?}: {said:?}");
        assert!(said.stderr.contains(reason), "{flags:?}: {said:?}");
        assert!(!said.stderr.contains("hunter2"), "{said:?}");
    }
    let said = Setup::lock_server("redis://127.0.0.1:1").args(&["--store-ca", &ca]).refused().await;
    assert!(said.code == 64 && said.stderr.contains("write rediss:// in --store"), "{said:?}");
}

/// A variable that was given the key itself does not put it into a log.
#[tokio::test]
async fn a_key_in_place_of_its_file_is_not_repeated() {
    let made = Certificates::new();
    let setup = Setup::lock_server("rediss://127.0.0.1:1")
        .env("LOCK_SERVER_STORE_KEY_FILE", &made.text("client.key"))
        .env("LOCK_SERVER_STORE_CERT", &made.text("client.pem"));
    let said = setup.refused().await;
    assert!(said.code == 64 && said.stderr.contains("name the file"), "{said:?}");
    assert!(!said.stderr.contains("BEGIN"), "{said:?}");
}

/// Sentinels with a password of their own lead to a Redis with another, all over TLS.
#[tokio::test]
async fn sentinels_are_asked_over_tls() {
    let redis = TlsRedis::with(Certificates::new(), &[("tls-replication", "yes")]).await;
    let _: () =
        redis.redis.run(&["ACL", "SETUSER", "app", "on", ">app-s3cret", "~*", "&*", "+@all"]).await;
    let folder = tempfile::tempdir().unwrap();
    let port = ports::unused();
    let own = |name: &str| redis.certificates.text(name);
    let redis_port = redis.address().split_once(':').unwrap().1.to_owned();
    let config = format!(
        "port 0\ntls-port {port}\nbind 127.0.0.1\ndir {dir}\ntls-replication yes\n\
         tls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\nrequirepass sentinel-s3cret\n\
         sentinel monitor m 127.0.0.1 {redis_port} 1\n",
        own("server.pem"),
        own("server.key"),
        own("ca.pem"),
        dir = folder.path().display()
    );
    let file = folder.path().join("sentinel.conf");
    std::fs::write(&file, config).unwrap();
    let mut sentinel = command("redis-server");
    sentinel.arg(&file).arg("--sentinel");
    let _sentinel = Process::spawn("redis-sentinel", sentinel);
    let password = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let url = format!("rediss-sentinel://app@127.0.0.1:{port}/m");
    let flags = redis.flags();
    let setup = flags.iter().fold(Setup::lock_server(&url), |setup, flag| setup.arg(flag));
    let setup = setup.args(&["--store-password-file", &password("app", "app-s3cret")]);
    let asked = ["--sentinel-password-file", &password("sentinel", "sentinel-s3cret")];
    until_true("the sentinel to answer", || async {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    })
    .await;
    let server = setup.clone().args(&asked).start().await;
    server.locks().grant("a", 60_000).await;
    only_tls_ports_are_used(&redis, 4).await;
    let said = setup.refused().await;
    assert!(
        said.stderr.contains("WRONGPASS"),
        "the login of Redis is not the sentinel's: {said:?}"
    );
    assert!(!said.stderr.contains("s3cret"), "{said:?}");
}

/// The nodes of a cluster name each other's TLS ports.
#[tokio::test]
async fn a_cluster_is_reached_over_tls() {
    let bus = ports::unused().to_string();
    let options =
        [("cluster-enabled", "yes"), ("cluster-port", bus.as_str()), ("tls-cluster", "yes")];
    let redis = TlsRedis::with(Certificates::new(), &options).await;
    let _: () = redis.redis.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    until_true("the cluster to be up", || async {
        redis.redis.run::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
    })
    .await;
    let url = format!("rediss-cluster://{}", redis.address());
    let flags = redis.flags();
    let setup = flags.iter().fold(Setup::lock_server(&url), |setup, flag| setup.arg(flag));
    let server = setup.start().await;
    server.locks().grant("a", 60_000).await;
    only_tls_ports_are_used(&redis, 4).await;
}

/// The guard's objects, and its word about the port that cannot.
#[tokio::test]
async fn a_guard_keeps_objects_over_tls() {
    let redis = TlsRedis::start().await;
    let setup = Setup::fenced_store(&redis.url());
    let setup = redis.flags().iter().fold(setup, |setup, flag| setup.arg(flag));
    let server = setup.start().await;
    let guard = server.guard();
    guard.put("a", &unsigned(34, "a", lease_id()), "new").await.expect(201);
    guard.put("a", &unsigned(33, "a", lease_id()), "late").await.problem(Code::StaleToken);
    let ports = ports_in_use(&redis.redis).await;
    assert!(!ports.is_empty() && ports.iter().all(|port| *port == redis.address()), "{ports:?}");
    let said = setup.args(&["--redis-listen", "127.0.0.1:0"]).refused().await;
    assert!(said.code == 64 && said.stderr.contains("--store is rediss://"), "{said:?}");
    let said = Setup::fenced_store("memory:").args(&["--store-user", "a"]).refused().await;
    assert!(said.code == 64 && said.stderr.contains("behind a network"), "{said:?}");
}
