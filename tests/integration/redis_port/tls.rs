//! `rediss://`: the port over TLS, with certificates of a test.

use fence_tests::api::Api;
use fence_tests::certificates::Certificates;
use fence_tests::process::Output;
use fence_tests::redis_cluster::RedisCluster;
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::servers::Setup;
use fence_tests::tls_client::TlsClient;
use fence_tests::wait::{soon, until_true};

use super::{Port, port, setup};

mod ends;
mod handshakes;
mod records;

/// A guard with TLS before one Redis, and certificates.
struct Secured {
    redis: Redis,
    certificates: Certificates,
    guard: Port,
    tls: TlsClient,
}

/// `setup` with the server's certificate.
fn tls_setup(url: &str, certificates: &Certificates) -> Setup {
    let [certificate, key] = ["server.pem", "server.key"].map(|name| certificates.text(name));
    setup(url).args(&["--tls-cert", &certificate, "--tls-key", &key])
}

impl Secured {
    async fn start() -> Self {
        Self::with(&[]).await
    }

    async fn with(args: &[&str]) -> Self {
        let redis = Redis::with(&[("appendonly", "no")]).await;
        let certificates = Certificates::new();
        let guard = port(&tls_setup(&redis.url(), &certificates).args(args)).await;
        let tls = TlsClient::anonymous(&certificates);
        Self { redis, certificates, guard, tls }
    }

    async fn connect(&self) -> RespClient {
        let connected = RespClient::try_tls(&self.guard.address, &self.tls).await;
        connected.expect("a connection over TLS")
    }

    async fn fenced(&self, grant: &Grant) -> RespClient {
        let mut client = self.connect().await;
        client.authenticate(&grant.credential).await;
        client
    }

    async fn assert_served(&self) {
        assert_eq!(self.connect().await.call(&["PING"]).await, Resp::simple("PONG"));
    }
}

/// Returns `true` if the server has announced the end; a connection may also just end.
async fn is_announced_end(client: &mut RespClient) -> bool {
    let error = soon("the end", client.next()).await.expect_err("no reply");
    error.kind() == std::io::ErrorKind::UnexpectedEof && error.get_ref().is_none()
}

#[tokio::test]
async fn commands_of_every_kind_are_served() {
    let port = Secured::start().await;
    let grant = Grant::new(1, "1");
    let a = grant.key("a");
    let n = grant.key("n");
    let mut client = port.fenced(&grant).await;
    assert_eq!(client.call(&["SET", &a, "1"]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["GET", &a]).await, Resp::bulk("1"));
    let words: [&[&str]; 4] = [&["MULTI"], &["INCR", &n], &["INCR", &n], &["EXEC"]];
    let replies = client.pipeline(&words).await;
    assert_eq!(replies[3].items(), [Resp::Integer(1), Resp::Integer(2)]);
    let eval = ["EVAL", "return redis.call('GET', KEYS[1])", "1", &a];
    assert_eq!(client.call(&eval).await, Resp::bulk("1"));
    let mut subscriber = port.fenced(&grant).await;
    assert_eq!(subscriber.call(&["SUBSCRIBE", "news"]).await.items()[2], Resp::Integer(1));
    assert_eq!(client.call(&["PUBLISH", "news", "x"]).await, Resp::Integer(1));
    assert_eq!(subscriber.reply().await.items()[2], Resp::bulk("x"));
    let mut blocked = port.fenced(&grant).await;
    blocked.send(&["BLPOP", &grant.key("list"), "0"]).await;
    client.call(&["RPUSH", &grant.key("list"), "y"]).await;
    assert_eq!(blocked.reply().await.items()[1], Resp::bulk("y"));
}

/// Both ways, on a shared connection to Redis and on one of the client's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_values_pass() {
    let port = Secured::start().await;
    let grant = Grant::new(1, "1");
    let value: String = (0..8 << 20).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
    let mut client = port.fenced(&grant).await;
    for key in ["shared", "own"] {
        let key = grant.key(key);
        assert_eq!(client.call(&["SET", &key, &value]).await, Resp::simple("OK"));
        let direct: String = port.redis.run(&["GET", &key]).await;
        assert!(direct == value, "another value was written");
        let got = client.call(&["GET", &key]).await;
        assert!(got == Resp::bulk(&value), "another value came back");
        client.pipeline(&[&["MULTI"], &["EXEC"]]).await;
    }
}

/// The replies come while the commands are still sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_pipelines_are_answered_in_order() {
    const COMMANDS: i64 = 10_000;
    let port = Secured::start().await;
    let grant = Grant::new(1, "1");
    let client = port.fenced(&grant).await;
    let (mut writer, mut reader) = client.split();
    let bytes = request(&["INCR", &grant.key("n")]).repeat(COMMANDS as usize);
    let writing = tokio::spawn(async move { writer.write_all(&bytes).await.map(|()| writer) });
    for number in 1..=COMMANDS {
        let reply = soon("a reply", reader.next()).await.expect("a reply");
        assert_eq!(reply, Resp::Integer(number));
    }
    writing.await.expect("a writer").expect("a connection");
}

/// The API of a guard with certificates speaks TLS; its Redis port need not.
#[tokio::test]
async fn the_port_stays_plain_by_option() {
    let port = Secured::with(&["--redis-plaintext"]).await;
    let mut plain = RespClient::connect(&port.guard.address).await;
    assert_eq!(plain.call(&["PING"]).await, Resp::simple("PONG"));
    let server = &port.guard.server;
    let api = Api::with(&server.base, port.certificates.https(None).build().expect("a client"));
    let shown = api.get("/readyz?verbose").await.expect(200).body;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.contains("speaks no TLS (--redis-plaintext)"), "{shown}");
    let refused: Output = setup(&port.redis.url()).args(&["--redis-plaintext"]).refused().await;
    assert!(refused.stderr.contains("--redis-plaintext"), "{refused:?}");
}

/// An old certificate is replaced without an effect on those that connected before.
#[tokio::test]
async fn a_new_certificate_keeps_connections() {
    let port = Secured::start().await;
    let grant = Grant::new(1, "1");
    let before = tokio::sync::Mutex::new(port.fenced(&grant).await);
    let new = Certificates::new();
    for name in ["server.pem", "server.key"] {
        std::fs::copy(new.file(name), port.certificates.file(name)).expect("a copy");
    }
    let trusts_new = TlsClient::anonymous(&new);
    until_true("the new certificate", || async {
        before.lock().await.call(&["INCR", &grant.key("n")]).await;
        RespClient::try_tls(&port.guard.address, &trusts_new).await.is_ok()
    })
    .await;
    let set = before.lock().await.call(&["SET", &grant.key("a"), "1"]).await;
    assert_eq!(set, Resp::simple("OK"));
    let late = RespClient::try_tls(&port.guard.address, &port.tls).await;
    late.expect_err("the old certificate is not shown any more");
}

/// A certificate opens the door alone: the token still decides.
#[tokio::test]
async fn mutual_tls_asks_for_certificate_and_token() {
    let certificates = Certificates::new();
    let ca = certificates.text("ca.pem");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let setup = tls_setup(&redis.url(), &certificates).args(&["--tls-client-ca", &ca]);
    let guard = port(&setup).await;
    let grant = Grant::new(1, "1");
    let try_call = async |tls: TlsClient, words: &[&str]| {
        RespClient::try_tls(&guard.address, &tls).await?.try_call(words).await
    };
    let own = TlsClient::identified(&certificates, &certificates);
    let reply = try_call(own.clone(), &["SET", &grant.key("a"), "1"]).await.expect("a reply");
    reply.expect_error("NOTOKEN");
    let reply = try_call(own, &["AUTH", "fence", &grant.credential]).await.expect("a reply");
    assert_eq!(reply, Resp::simple("OK"));
    let none = TlsClient::anonymous(&certificates);
    try_call(none, &["PING"]).await.expect_err("no certificate");
    let foreign = TlsClient::identified(&certificates, &Certificates::new());
    try_call(foreign, &["PING"]).await.expect_err("a certificate of another CA");
}

#[tokio::test]
async fn a_client_that_trusts_another_ca_ends_its_own_connection_alone() {
    let port = Secured::start().await;
    let mut before = port.connect().await;
    let wrong = TlsClient::anonymous(&Certificates::new());
    let error = RespClient::try_tls(&port.guard.address, &wrong).await.expect_err("another CA");
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    assert_eq!(before.call(&["PING"]).await, Resp::simple("PONG"));
    port.assert_served().await;
}

/// Large values, a long pipeline, and the end after FENCED, at the port's other form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_before_a_cluster_speaks_it_too() {
    let cluster = RedisCluster::start().await;
    let certificates = Certificates::new();
    let guard = port(&tls_setup(&cluster.url(), &certificates)).await;
    let tls = TlsClient::anonymous(&certificates);
    let fenced = async |grant: &Grant| {
        let mut client = RespClient::try_tls(&guard.address, &tls).await.expect("a connection");
        client.authenticate(&grant.credential).await;
        client
    };
    let old = Grant::new(10, "1");
    let mut client = fenced(&old).await;
    let value = "x".repeat(4 << 20);
    assert_eq!(client.call(&["SET", &old.key("a"), &value]).await, Resp::simple("OK"));
    assert!(client.call(&["GET", &old.key("a")]).await == Resp::bulk(&value), "another value");
    let incr = request(&["INCR", &old.key("n")]).repeat(2_000);
    client.send_raw(&incr).await;
    for number in 1..=2_000 {
        assert_eq!(client.reply().await, Resp::Integer(number));
    }
    let mut new = fenced(&Grant::new(20, "1")).await;
    assert_eq!(new.call(&["SET", &old.key("a"), "new"]).await, Resp::simple("OK"));
    for reply in client.pipeline(&[&["SET", &old.key("a"), "late"], &["PING"]]).await {
        reply.expect_error("FENCED");
    }
    assert!(is_announced_end(&mut client).await);
    assert_eq!(new.call(&["QUIT"]).await, Resp::simple("OK"));
    assert!(is_announced_end(&mut new).await);
    let mut plain = RespClient::connect(&guard.address).await;
    let reply = plain.call(&["PING"]).await;
    assert!(reply.expect_error("ERR").contains("speaks TLS"), "{reply:?}");
}
