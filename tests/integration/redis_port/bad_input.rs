//! Commands that a client may send by mistake or by malice. The reply is an error in the protocol's
//! own form; nothing is written; and no other client notices.

use fence_tests::key_file::{KeyFile, lease_id, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};

use super::{Port, port, ports, setup};

/// Another client of the same guard, which must notice nothing.
struct Witness {
    redis: Redis,
    port: Port,
    client: RespClient,
    grant: Grant,
    writes: i64,
}

impl Witness {
    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn with(args: &[&str]) -> Self {
        let redis = Redis::with(&[("appendonly", "no")]).await;
        let port = port(&setup(&redis.url()).args(args)).await;
        let grant = Grant::new(5, "witness");
        let client = RespClient::fenced(&port.address, &grant.credential).await;
        Self { redis, port, client, grant, writes: 0 }
    }

    async fn connect(&self) -> RespClient {
        RespClient::connect(&self.port.address).await
    }

    /// Asserts that its connection works, and that no other client wrote to its key.
    async fn check(&mut self, what: &str) {
        self.writes += 1;
        let reply = self.client.call(&["INCR", &self.grant.key("n")]).await;
        assert_eq!(reply, Resp::Integer(self.writes), "{what}");
        let keys: Vec<String> = self.redis.run(&["KEYS", "*"]).await;
        let own = |key: &&String| !key.starts_with("{fence:");
        let keys: Vec<&String> = keys.iter().filter(own).collect();
        assert_eq!(keys, ["orders:witness:n"], "{what}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_command() {
    let mut witness = Witness::new().await;
    let long_inline = vec![b'a'; 100 << 10];
    let cases: [(&[u8], &str); 14] = [
        (b"*abc\r\n", "invalid multibulk length"),
        (b"*1a\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*2147483648\r\n", "multibulk length"),
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (b"*1\r\n*1\r\n*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n$abc\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
        (b"*2\r\n$3\r\nGET\r\n$536870913\r\n", ""),
        (b"*2\r\n$3\r\nGET\r\n$536870912\r\nabc", ""),
        (b"SET orders:1:a \"x\r\n", "unbalanced quotes"),
        (&long_inline, "too big inline request"),
        (b"*3\r\n$3\r\nSET\r\n$100\r\n\xff\xfe\r\n$1\r\nx\r\n$1\r\n", ""),
    ];
    for (bytes, reason) in cases {
        let what = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let mut client = witness.connect().await;
        // It may be cut before all is written.
        let _ = client.try_send_raw(bytes).await;
        let _ = client.try_send_raw(&[b'z'; 200]).await;
        if let Ok(reply) = client.try_reply().await {
            let text = reply.expect_error("ERR");
            assert!(text.contains("Protocol error") && text.contains(reason), "{what}: {text}");
            assert!(client.try_reply().await.is_err(), "{what}: not closed");
        }
        witness.check(&what).await;
    }
}

#[tokio::test]
async fn odd_but_good_commands() {
    let witness = Witness::new().await;
    let mut client = witness.connect().await;
    client.send_raw(b"\r\n*0\r\n*-1\r\nPING\r\n  ping  'a b'  \r\n").await;
    assert_eq!(client.reply().await, Resp::simple("PONG"));
    assert_eq!(client.reply().await, Resp::bulk("a b"));
    for byte in request(&["PING", "slowly"]) {
        client.send_raw(&[byte]).await;
    }
    assert_eq!(client.reply().await, Resp::bulk("slowly"));
    let grant = Grant::new(7, "odd");
    let mut client = RespClient::fenced(&witness.port.address, &grant.credential).await;
    client.send_raw(b"SET orders:odd:a \"x\\x00\\r\\n y\"\r\n").await;
    assert_eq!(client.reply().await, Resp::simple("OK"));
    assert_eq!(client.call(&["GET", "orders:odd:a"]).await, Resp::bulk(b"x\0\r\n y"));
    let binary: Vec<u8> = (0..=255).collect();
    client.send_raw(&request(&[b"SET", &b"orders:odd:b"[..], &binary])).await;
    assert_eq!(client.reply().await, Resp::simple("OK"));
    assert_eq!(client.call(&["GET", "orders:odd:b"]).await, Resp::Bulk(binary));
    let empty = client.call(&["SET", "orders:odd:c", ""]).await;
    assert_eq!(empty, Resp::simple("OK"));
    assert_eq!(client.call(&["GET", "orders:odd:c"]).await, Resp::bulk(""));
}

#[tokio::test]
async fn half_messages_that_end_or_stay() {
    let mut witness = Witness::new().await;
    let whole = request(&["SET", "orders:1:a", "x"]);
    let grant = Grant::new(1, "1");
    let mut open = Vec::new();
    for cut in 1..whole.len() {
        let mut client = RespClient::fenced(&witness.port.address, &grant.credential).await;
        client.send_raw(&whole[..cut]).await;
        if cut % 2 == 0 {
            client.finish_sending().await;
            assert_eq!(client.until_closed().await, [], "{cut}");
        } else {
            open.push(client);
        }
    }
    witness.check("half messages").await;
}

#[tokio::test]
async fn http_is_not_taken_for_commands() {
    let mut witness = Witness::new().await;
    let mut client = witness.connect().await;
    let _ = client
        .try_send_raw(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 22\r\n\r\nSET orders:1:a 1\r\n",
        )
        .await;
    while let Ok(Ok(reply)) =
        tokio::time::timeout(std::time::Duration::from_millis(200), client.next()).await
    {
        assert!(reply.error().is_some(), "{reply:?}");
    }
    witness.check("HTTP").await;
}

/// An AUTH that is refused leaves a connection without a token, and nothing else.
#[tokio::test]
async fn credentials_that_are_none() {
    let mut witness = Witness::new().await;
    let good = unsigned(5, "orders/1", lease_id());
    let foreign = good.replace("default", "elsewhere");
    // As long as an argument may be before a token was presented.
    let long = "x".repeat(16_000);
    let nil = "5;lock=\"orders/1\";lease=\"00000000-0000-0000-0000-000000000000\"";
    let twice = format!("{good}, {good}");
    let nonsense =
        ["", "hunter2", "fc1_", "fc1_!!!!", "fc1_AAAA", "5", "0;lock=\"a\"", &long, nil, &twice];
    for password in nonsense.into_iter().chain([foreign.as_str()]) {
        let what = &password[..password.len().min(60)];
        let mut client = witness.connect().await;
        for words in [
            &["AUTH", "fence", password][..],
            &["AUTH", password],
            &["HELLO", "3", "AUTH", "fence", password],
            &["FENCE", "SET", password],
            &["FENCE", password, "SET", "orders:1:a", "x"],
        ] {
            let reply = client.call(words).await;
            let text = reply.error().unwrap_or_else(|| panic!("{what}: {reply:?}")).to_owned();
            assert!(text.len() < 2_000, "{what}: {} bytes", text.len());
            let is_secret = password == "hunter2" && text.contains("hunter2");
            assert!(!is_secret, "a password of something else is repeated: {text}");
        }
        assert_eq!(client.call(&["PING"]).await, Resp::simple("PONG"), "{what}");
        client.call(&["SET", "orders:1:a", "x"]).await.expect_error("NOTOKEN");
        witness.check(what).await;
    }
    let mut client = witness.connect().await;
    for words in [
        &["AUTH"][..],
        &["AUTH", "a", "b", "c"],
        &["HELLO", "4"],
        &["HELLO", "x"],
        &["HELLO", "3", "AUTH", "fence"],
        &["FENCE"],
        &["FENCE", "SET"],
        &["FENCE", "NONSENSE"],
        &["SELECT", "x"],
        &["SELECT", "99999"],
    ] {
        let reply = client.call(words).await;
        assert!(reply.error().is_some(), "{words:?}: {reply:?}");
        assert_eq!(client.call(&["PING"]).await, Resp::simple("PONG"), "{words:?}");
    }
    witness.check("arity").await;
}

/// With keys, a token must be signed by one of them, as at the objects API.
#[tokio::test]
async fn signatures_are_verified() {
    let keys = KeyFile::new("k1", 1);
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).keys(&keys.path())).await;
    let lease = lease_id();
    let forged = KeyFile::new("k1", 2).sign(5, "orders/1", lease);
    for password in [unsigned(5, "orders/1", lease), forged] {
        let mut client = RespClient::connect(&guard.address).await;
        client.call(&["AUTH", "fence", &password]).await.expect_error("WRONGTOKEN");
        client.call(&["SET", "orders:1:a", "x"]).await.expect_error("NOTOKEN");
    }
    let good = keys.sign(5, "orders/1", lease);
    let mut client = RespClient::fenced(&guard.address, &good).await;
    assert_eq!(client.call(&["SET", "orders:1:a", "x"]).await, Resp::simple("OK"));
}

#[tokio::test]
async fn a_token_of_another_lock() {
    let mut witness = Witness::new().await;
    let grant = Grant::new(7, "other");
    let mut client = RespClient::fenced(&witness.port.address, &grant.credential).await;
    let reply = client.call(&["SET", "orders:1:a", "x"]).await;
    let text = reply.expect_error("NOTOKEN").to_owned();
    assert!(text.contains("orders:1:a") && text.contains("orders/1"), "{text}");
    assert!(text.contains("7 of orders/other"), "{text}");
    // One command is one thing: half of it is nothing.
    let mset = client.call(&["MSET", "orders:other:a", "1", "orders:1:a", "1"]).await;
    mset.expect_error("NOTOKEN");
    let reply = client.call(&["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "orders:1:a"]);
    reply.await.expect_error("NOTOKEN");
    let undeclared = "return redis.call('SET', 'orders:1:a', 1)";
    let reply = client.call(&["EVAL", undeclared, "1", "orders:other:a"]).await;
    assert!(reply.error().is_some(), "{reply:?}");
    let reply = client.call(&["EVAL", undeclared, "0"]).await;
    assert!(reply.error().is_some(), "{reply:?}");
    client.call(&["RENAME", "orders:other:x", "orders:1:a"]).await.expect_error("NOTOKEN");
    client.call(&["GET", "orders:1:a"]).await.expect_error("NOTOKEN");
    witness.check("another lock").await;
    assert_eq!(client.call(&["SET", "orders:other:a", "1"]).await, Resp::simple("OK"));
}

#[tokio::test]
async fn one_key_under_two_rules_belongs_to_the_first() {
    let redis = Redis::start().await;
    let rules = ["--rule", "a:1:**=first", "--rule", "a:**=second"];
    let both = port(&setup(&redis.url()).args(&rules)).await;
    let first = unsigned(5, "first", lease_id());
    let second = unsigned(6, "second", lease_id());
    let mut client = RespClient::fenced(&both.address, &second).await;
    let text = client.call(&["SET", "a:1:b", "x"]).await;
    assert!(text.expect_error("NOTOKEN").contains("lock first"), "{text:?}");
    assert_eq!(client.call(&["SET", "a:2:b", "x"]).await, Resp::simple("OK"));
    let mut client = RespClient::fenced(&both.address, &first).await;
    assert_eq!(client.call(&["SET", "a:1:b", "x"]).await, Resp::simple("OK"));
    client.call(&["SET", "a:2:b", "y"]).await.expect_error("NOTOKEN");
}

/// Under any access rules, no client reaches the guard's own keys or the switches of Redis.
#[tokio::test]
async fn administration_and_the_guards_own_keys_are_denied() {
    let redis = Redis::start().await;
    let guard = port(&fence_tests::servers::Setup::fenced_store(&redis.url()).args(&[
        "--redis-listen",
        "127.0.0.1:0",
        "--rule",
        "**=all",
    ]))
    .await;
    let token = unsigned(5, "all", lease_id());
    let mut client = RespClient::fenced(&guard.address, &token).await;
    assert_eq!(client.call(&["SET", "any", "1"]).await, Resp::simple("OK"));
    let marks = "{fence:default}:guard:marks";
    for words in [
        &["HSET", marks, "all", "1 x"][..],
        &["DEL", marks],
        &["GET", marks],
        &["EXPIRE", marks, "0"],
        &["RENAME", "any", marks],
        &["COPY", "any", marks],
        &["EVAL", "return redis.call('DEL', KEYS[1])", "1", marks],
        &["EVAL", "return redis.call('DEL', ARGV[1])", "0", marks],
        &["SORT", "any", "STORE", marks],
        &["SWAPDB", "0", "1"],
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
        &["SHUTDOWN", "NOSAVE"],
        &["DEBUG", "SLEEP", "0"],
        &["REPLICAOF", "NO", "ONE"],
        &["CLIENT", "KILL", "ID", "1"],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["CLIENT", "PAUSE", "1000"],
        &["ACL", "SETUSER", "x", "on"],
        &["SCRIPT", "FLUSH"],
        &["MONITOR"],
        &["SYNC"],
        &["PSYNC", "?", "-1"],
        &["SAVE"],
        &["MODULE", "LOAD", "/nowhere.so"],
        &["NOSUCHCOMMAND", "any"],
        &["SET", "any"],
    ] {
        let reply = client.call(words).await;
        assert!(reply.error().is_some(), "{words:?}: {reply:?}");
        assert_eq!(client.call(&["GET", "any"]).await, Resp::bulk("1"), "{words:?}");
    }
    let mark: String = redis.run(&["HGET", marks, "all"]).await;
    assert!(mark.starts_with("5 "), "{mark}");
}

#[tokio::test]
async fn a_bad_command_in_a_transaction_aborts_it_as_redis_does() {
    let mut witness = Witness::new().await;
    let grant = Grant::new(7, "tx");
    let mut client = RespClient::fenced(&witness.port.address, &grant.credential).await;
    for bad in [&["SET", "orders:1:a", "x"][..], &["SET", "orders:tx:a"], &["NOSUCH"]] {
        let replies = client
            .pipeline(&[&["MULTI"], &["SET", "orders:tx:a", "1"], bad, &["EXEC"], &["PING"]])
            .await;
        assert_eq!(replies[1], Resp::simple("QUEUED"), "{replies:?}");
        assert!(replies[2].error().is_some(), "{replies:?}");
        replies[3].expect_error("EXECABORT");
        assert_eq!(replies[4], Resp::simple("PONG"), "{replies:?}");
    }
    client.call(&["EXEC"]).await.expect_error("ERR");
    client.call(&["DISCARD"]).await.expect_error("ERR");
    witness.check("aborted").await;
}

#[tokio::test]
async fn tokens_can_be_shown_and_cleared() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(7, "1");
    let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
    let shown = format!("{:?}", client.call(&["FENCE", "SHOW"]).await);
    assert!(shown.contains('7') && !shown.contains("Error"), "{shown}");
    assert_eq!(client.call(&["FENCE", "CLEAR"]).await, Resp::simple("OK"));
    client.call(&["SET", &grant.key("a"), "1"]).await.expect_error("NOTOKEN");
    let reply = client.call(&["FENCE", &grant.credential, "SET", &grant.key("a"), "1"]).await;
    assert_eq!(reply, Resp::simple("OK"));
    client.call(&["SET", &grant.key("a"), "2"]).await.expect_error("NOTOKEN");
    assert_eq!(client.call(&["AUTH", "fence", &grant.credential]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["RESET"]).await, Resp::simple("RESET"));
    client.call(&["SET", &grant.key("a"), "2"]).await.expect_error("NOTOKEN");
}
