//! `--redis-password-file`: nothing is served to a client that has presented neither the password
//! nor a fencing credential.

use std::path::PathBuf;

use fence_tests::key_file::{KeyFile, lease_id, text};
use fence_tests::redis_cluster::RedisCluster;
use fence_tests::redis_server::Redis;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;

use super::{Port, port, setup};

/// A guard that asks for a password, and what it knows.
struct Asking {
    guard: Port,
    keys: KeyFile,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Asking {
    async fn before(url: &str) -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        let keys = KeyFile::new("k1", 1);
        let setup = setup(url).keys(&keys.path()).args(&["--rule", "open:**=@open"]);
        let guard = port(&setup.args(&["--redis-password-file", text(&file)])).await;
        Self { guard, keys, file, _folder: folder }
    }

    async fn client(&self) -> RespClient {
        RespClient::connect(&self.guard.address).await
    }

    fn credential(&self, token: u64) -> String {
        self.keys.sign(token, "orders/1", lease_id())
    }
}

/// Asserts that commands need a login, before one Redis and before a cluster alike.
async fn commands_want_a_login(asking: &Asking) {
    let mut client = asking.client().await;
    for line in [
        "GET open:a",
        "SET open:a 1",
        "PING",
        "INFO",
        "CLIENT ID",
        "CLIENT SETNAME x",
        "SELECT 0",
        "SUBSCRIBE news",
        "MULTI",
        "EVAL return 0",
        "NOSUCH",
        "FENCE SHOW",
        "FENCE CLEAR",
        "FENCE HELP",
        "HELLO",
        "HELLO 3",
        "HELLO 3 SETNAME x",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        client.call(&words).await.expect_error("NOAUTH");
    }
    let forged = KeyFile::new("k1", 2).sign(5, "orders/1", lease_id());
    for (words, error) in [
        (&["AUTH", "hunter"][..], "WRONGPASS"),
        (&["AUTH", ""], "WRONGPASS"),
        (&["AUTH", "default", "hunter2\n"], "WRONGPASS"),
        (&["HELLO", "3", "AUTH", "default", "Hunter2"], "WRONGPASS"),
        (&["AUTH", &forged], "WRONGTOKEN"),
        (&["FENCE", "SET", &forged], "WRONGTOKEN"),
        (&["FENCE", &forged, "GET", "open:a"], "WRONGTOKEN"),
        (&["FENCE", "hunter2", "GET", "open:a"], "WRONGTOKEN"),
    ] {
        client.call(words).await.expect_error(error);
        client.call(&["GET", "open:a"]).await.expect_error("NOAUTH");
    }
    assert_eq!(client.call(&["QUIT"]).await, Resp::simple("OK"));
}

async fn the_password_opens_what_needs_no_token(asking: &Asking) {
    for words in [
        &["AUTH", "hunter2"][..],
        &["AUTH", "default", "hunter2"],
        &["HELLO", "2", "AUTH", "default", "hunter2"],
    ] {
        let mut client = asking.client().await;
        let reply = client.call(words).await;
        assert!(reply.error().is_none(), "{words:?}: {reply:?}");
        assert_eq!(client.call(&["SET", "open:a", "1"]).await, Resp::simple("OK"));
        client.call(&["SET", "orders:1:a", "1"]).await.expect_error("NOTOKEN");
        assert_eq!(client.call(&["RESET"]).await, Resp::simple("RESET"));
        client.call(&["GET", "open:a"]).await.expect_error("NOAUTH");
    }
    let credential = asking.credential(5);
    for words in [&["AUTH", &credential][..], &["FENCE", "SET", &credential]] {
        let mut client = asking.client().await;
        assert_eq!(client.call(words).await, Resp::simple("OK"));
        for key in ["orders:1:a", "open:a"] {
            assert_eq!(client.call(&["SET", key, "1"]).await, Resp::simple("OK"));
        }
        // The password in its place gives the token back.
        assert_eq!(client.call(&["AUTH", "hunter2"]).await, Resp::simple("OK"));
        client.call(&["SET", "orders:1:a", "1"]).await.expect_error("NOTOKEN");
        assert_eq!(client.call(&["GET", "open:a"]).await, Resp::bulk("1"));
    }
    // For one command.
    let mut client = asking.client().await;
    let once = client.call(&["FENCE", &credential, "SET", "orders:1:a", "1"]).await;
    assert_eq!(once, Resp::simple("OK"));
    client.call(&["GET", "open:a"]).await.expect_error("NOAUTH");
}

#[tokio::test]
async fn a_login_is_asked_for() {
    let redis = Redis::start().await;
    let asking = Asking::before(&redis.url()).await;
    commands_want_a_login(&asking).await;
    the_password_opens_what_needs_no_token(&asking).await;
    assert_eq!(redis.run::<i64>(&["EXISTS", "open:a"]).await, 1);
}

#[tokio::test]
async fn a_login_is_asked_for_before_a_cluster() {
    let cluster = RedisCluster::start().await;
    let asking = Asking::before(&cluster.url()).await;
    commands_want_a_login(&asking).await;
    the_password_opens_what_needs_no_token(&asking).await;
}

/// As in Redis, a client that has not logged in sends little.
#[tokio::test]
async fn a_client_has_small_limits_before_its_login() {
    let redis = Redis::start().await;
    let asking = Asking::before(&redis.url()).await;
    let many = ["DEL", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut client = asking.client().await;
    client.send_raw(&request(&many)).await;
    assert!(client.reply().await.expect_error("ERR").contains("unauthenticated"), "{many:?}");
    let mut client = asking.client().await;
    client.call(&["AUTH", "hunter2"]).await;
    client.call(&many).await.expect_error("NOTOKEN");
}

/// A stale credential is genuine, and does not log its client in.
#[tokio::test]
async fn a_refused_token_is_no_login() {
    let redis = Redis::start().await;
    let asking = Asking::before(&redis.url()).await;
    let old = asking.credential(5);
    let new = asking.credential(6);
    RespClient::fenced(&asking.guard.address, &new).await;
    let mut client = asking.client().await;
    client.call(&["AUTH", &old]).await.expect_error("FENCED");
    client.call(&["GET", "open:a"]).await.expect_error("NOAUTH");
}

#[tokio::test]
async fn another_password_is_taken_over() {
    let redis = Redis::start().await;
    let asking = Asking::before(&redis.url()).await;
    let mut before = asking.client().await;
    before.call(&["AUTH", "hunter2"]).await;
    let logs_in = async |password: &str| {
        asking.client().await.call(&["AUTH", password]).await == Resp::simple("OK")
    };
    std::fs::write(&asking.file, "a b\n").unwrap();
    until_true("the new password to be in force", async || logs_in("a b").await).await;
    assert!(!logs_in("hunter2").await);
    assert_eq!(before.call(&["SET", "open:a", "1"]).await, Resp::simple("OK"), "it has logged in");
    std::fs::remove_file(&asking.file).unwrap();
    let guard = asking.guard.server.guard();
    until_true("readiness to warn", async || {
        let ready = guard.0.get("/readyz?verbose").await.expect(200);
        String::from_utf8_lossy(&ready.body).contains("[!]redis-password-file")
    })
    .await;
    assert!(logs_in("a b").await && !logs_in("").await);
}

/// A client of the time before, with the password of Redis, learns what to do; it is not repeated.
#[tokio::test]
async fn a_password_without_a_file_is_explained() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let mut client = RespClient::connect(&guard.address).await;
    for words in [&["AUTH", "hunter2"][..], &["HELLO", "3", "AUTH", "default", "hunter2"]] {
        let reply = client.call(words).await;
        let line = reply.expect_error("WRONGTOKEN");
        assert!(line.contains("--redis-password-file") && !line.contains("hunter2"), "{line}");
    }
    let line = client.call(&["AUTH", "fc1_nonsense"]).await;
    assert!(!line.expect_error("WRONGTOKEN").contains("--redis-password-file"), "{line:?}");
}

/// If any program could make a credential, it would replace the password.
#[tokio::test]
async fn a_password_needs_signed_tokens() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "hunter2\n").unwrap();
    let args = ["--redis-listen", "127.0.0.1:0", "--redis-password-file", text(&file)];
    let refused = Setup::fenced_store("redis://127.0.0.1:1").args(&args).refused().await;
    assert!(refused.stderr.contains("--token-key-file"), "{refused:?}");
    assert_eq!(refused.code, 64);
}
