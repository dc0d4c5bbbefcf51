//! `--mode observe` at the Redis port: what is refused otherwise passes and is counted, but for
//! what the guard could not work after.

use fence_protocol::wire::fence::StoresReply;
use fence_tests::key_file::{KeyFile, text};
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};

use super::{Port, port, setup};

const MARKS: &str = "{fence:default}:guard:marks";
const LIBRARY: &str = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";

async fn observing(redis: &Redis) -> Port {
    port(&setup(&redis.url()).args(&["--mode", "observe"])).await
}

/// `(rule, total)` of the commands that were counted as denied.
async fn denied_commands(guard: &Port) -> Vec<(String, u64)> {
    let stores: StoresReply = guard.server.guard().0.get("/v1/stores").await.expect(200).read();
    let lines = stores.would_refuse.into_iter().filter(|line| line.code == "denied-command");
    lines.map(|line| (line.rule, line.total)).collect()
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').map(|word| if word == "LIBRARY" { LIBRARY } else { word }).collect()
}

/// On a connection that is shared, and on one of the client's own.
#[tokio::test]
async fn administration_passes_and_is_counted() {
    let redis = Redis::start().await;
    let guard = observing(&redis).await;
    let mut shared = RespClient::connect(&guard.address).await;
    let mut own = RespClient::connect(&guard.address).await;
    own.pipeline(&[&["MULTI"], &["EXEC"]]).await;
    let lines = "\
CONFIG SET maxmemory 1gb
CONFIG GET maxclients
CONFIG RESETSTAT
SLOWLOG LEN
LATENCY RESET
MEMORY PURGE
ACL LIST
FUNCTION LOAD REPLACE LIBRARY
FUNCTION FLUSH
SCRIPT FLUSH";
    for line in lines.lines() {
        for client in [&mut shared, &mut own] {
            let reply = client.call(&words(line)).await;
            assert!(reply.error().is_none(), "{line}: {reply:?}");
        }
    }
    assert_eq!(
        redis.run::<(String, String)>(&["CONFIG", "GET", "maxmemory"]).await.1,
        "1073741824"
    );
    let replies =
        own.pipeline(&[&["MULTI"], &["CONFIG", "GET", "maxclients", "save"], &["EXEC"]]).await;
    assert_eq!(replies[2].items()[0].items().len(), 4, "{replies:?}");
    let mut expected: Vec<(String, u64)> = lines
        .lines()
        .map(|line| (line.split(' ').take(2).collect::<Vec<_>>().join(" "), 2))
        .collect();
    expected.sort();
    expected.iter_mut().filter(|(name, _)| name == "CONFIG GET").for_each(|(_, total)| *total = 3);
    assert_eq!(denied_commands(&guard).await, expected);
    let before = denied_commands(&guard).await;
    shared.call(&["CONFIG", "GET", "maxmemory-policy"]).await;
    assert_eq!(denied_commands(&guard).await, before, "what drivers ask is not counted");
}

#[tokio::test]
async fn what_would_harm_the_guard_is_refused_all_the_same() {
    let redis = Redis::start().await;
    let guard = observing(&redis).await;
    let grant = Grant::new(5, "1");
    let mut other = RespClient::fenced(&guard.address, &grant.credential).await;
    other.call(&["SET", &grant.key("a"), "1"]).await;
    let mut client = RespClient::connect(&guard.address).await;
    for line in [
        "SHUTDOWN NOSAVE",
        "MONITOR",
        "SYNC",
        "REPLICAOF NO ONE",
        "SWAPDB 0 1",
        "DEBUG RELOAD",
        "CLIENT KILL TYPE normal",
        "CLIENT PAUSE 10000",
        "CLIENT REPLY OFF",
        "ACL DELUSER default",
        "ACL SETUSER default off",
        "MODULE LOAD /nowhere.so",
        "DEL {fence:default}:guard:marks",
        "MIGRATE 127.0.0.1 1 {fence:default}:guard:marks 0 10",
        "SORT a GET *",
        "PSUBSCRIBE *",
    ] {
        client.call(&words(line)).await.expect_error("DENIED");
        assert_eq!(other.call(&["GET", &grant.key("a")]).await, Resp::bulk("1"), "{line}");
    }
    assert_eq!(redis.run::<i64>(&["EXISTS", MARKS]).await, 1);
    assert_eq!(denied_commands(&guard).await, []);
}

/// Scripts reach every key but Fencepost's own, by every command that is for data.
#[tokio::test]
async fn scripts_are_not_confined() {
    let redis = Redis::start().await;
    let guard = observing(&redis).await;
    let grant = Grant::new(5, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    client.call(&["RPUSH", "list", "b", "a"]).await;
    let many: Vec<String> = (0..1_000).map(|number| format!("orders:{number}: \0")).collect();
    let sets = "for _, key in ipairs(KEYS) do redis.call('SET', key, 1) end return #KEYS";
    let call = ["EVAL", sets, "1000"];
    let words: Vec<&str> = call.into_iter().chain(many.iter().map(String::as_str)).collect();
    assert_eq!(client.call(&words).await, Resp::Integer(1_000));
    for (body, reply) in [
        ("return #redis.call('KEYS', 'orders:*')", Resp::Integer(1_000)),
        ("return redis.call('SORT', 'list', 'ALPHA')[1]", Resp::bulk("a")),
        ("return redis.call('DEL', 'list')", Resp::Integer(1)),
        ("return redis.call('XREAD', 'STREAMS', 'x', 0)", Resp::Null),
    ] {
        assert_eq!(client.call(&["EVAL", body, "0"]).await, reply, "{body}");
    }
    for body in
        ["return redis.call('FLUSHALL')", "return redis.call('DEL', '{fence:default}:guard:marks')"]
    {
        client.call(&["EVAL", body, "0"]).await.expect_error("DENIED");
    }
    // Beside a script, in one transaction, is what a script may not run elsewhere.
    let transaction: [&[&str]; 4] =
        [&["MULTI"], &["EVAL", "return 1", "0"], &["SORT", "list"], &["EXEC"]];
    let replies = client.pipeline(&transaction).await;
    assert_eq!(replies[3].items(), [Resp::Integer(1), Resp::Array(Vec::new())]);
    assert_eq!(redis.run::<i64>(&["EXISTS", MARKS]).await, 1);
}

/// FLUSHDB does what it is asked for, and the marks that were noted are in force later.
#[tokio::test]
async fn marks_outlive_a_flush() {
    let redis = Redis::start().await;
    let guard = observing(&redis).await;
    let old = Grant::new(40, "1");
    let new = Grant::new(50, "1");
    let mut client = RespClient::fenced(&guard.address, &new.credential).await;
    let before: Vec<String> = redis.run(&["HGETALL", MARKS]).await;
    assert!(!before.is_empty());
    for words in [&["FLUSHDB"][..], &["FLUSHALL", "ASYNC"]] {
        client.call(&["SET", &new.key("a"), "1"]).await;
        assert_eq!(client.call(words).await, Resp::simple("OK"));
        assert_eq!(client.call(&["EXISTS", &new.key("a")]).await, Resp::Integer(0));
        assert_eq!(redis.run::<Vec<String>>(&["HGETALL", MARKS]).await, before);
    }
    // The guard continues to serve, also with tokens and with users of Redis.
    assert_eq!(client.call(&["AUTH", &new.credential]).await, Resp::simple("OK"));
    let replies = client.pipeline(&[&["MULTI"], &["SET", &new.key("b"), "1"], &["EXEC"]]).await;
    assert_eq!(replies[2].items(), [Resp::simple("OK")]);
    let enforcing = port(&setup(&redis.url())).await;
    let mut late = RespClient::connect(&enforcing.address).await;
    late.call(&["AUTH", &old.credential]).await.expect_error("FENCED");
}

/// Tokens mean nothing to a connection, so they are changed on one that watches or subscribes.
#[tokio::test]
async fn a_token_is_presented_on_any_connection() {
    let redis = Redis::start().await;
    let guard = observing(&redis).await;
    let old = Grant::new(40, "1");
    let new = Grant::new(50, "1");
    let mut client = RespClient::fenced(&guard.address, &new.credential).await;
    client.call(&["WATCH", &new.key("a")]).await;
    assert_eq!(client.call(&["AUTH", &old.credential]).await, Resp::simple("OK"));
    let mut other = RespClient::connect(&guard.address).await;
    other.call(&["SET", &new.key("a"), "1"]).await;
    let replies = client.pipeline(&[&["MULTI"], &["SET", &new.key("a"), "2"], &["EXEC"]]).await;
    assert_eq!(replies[2], Resp::Null, "the key is watched as before");
}

/// The guard lends its rights over Redis only where a client needs no password of Redis to have
/// them.
#[tokio::test]
async fn no_client_is_shown_the_password_of_the_guard() {
    let redis = Redis::start().await;
    redis.run::<()>(&["CONFIG", "SET", "requirepass", "hunter2"]).await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "clients\n").unwrap();
    let keys = KeyFile::new("k1", 1);
    let url = format!("redis://:hunter2@{}", redis.address());
    let setup = setup(&url).keys(&keys.path()).args(&["--mode", "observe"]);
    let open = port(&setup).await;
    let mut client = RespClient::connect(&open.address).await;
    let refused = client.call(&["CONFIG", "GET", "requirepass"]).await;
    assert!(refused.expect_error("DENIED").contains("Redis itself"), "{refused:?}");
    client.call(&["CONFIG", "SET", "maxmemory", "1gb"]).await.expect_error("DENIED");
    assert_eq!(client.call(&["SET", "a", "1"]).await, Resp::simple("OK"));
    let asking = port(&setup.args(&["--redis-password-file", text(&file)])).await;
    let mut client = RespClient::connect(&asking.address).await;
    client.call(&["CONFIG", "GET", "requirepass"]).await.expect_error("NOAUTH");
    client.call(&["AUTH", "hunter3"]).await.expect_error("WRONGPASS");
    assert_eq!(client.call(&["AUTH", "clients"]).await, Resp::simple("OK"));
    let administration: [&[&str]; 3] =
        [&["CONFIG", "GET", "requirepass"], &["CONFIG", "SET", "dir", "/"], &["ACL", "LIST"]];
    for words in administration {
        client.call(words).await.expect_error("DENIED");
    }
    assert_eq!(client.call(&["SET", "a", "2"]).await, Resp::simple("OK"));
}

/// WAIT counts writes on other connections behind a script, too, and the guard may publish ahead of
/// it.
#[tokio::test]
async fn wait_behind_a_script_counts_every_write() {
    let redis = Redis::start().await;
    let guard = observing(&redis).await;
    let mut client = RespClient::connect(&guard.address).await;
    assert_eq!(client.call(&["EVAL", "return 1", "0"]).await, Resp::Integer(1));
    assert_eq!(client.call(&["SET", "q", "1"]).await, Resp::simple("OK"));
    let published = async || {
        let info: String = redis.run(&["INFO", "commandstats"]).await;
        let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
        let failed = info
            .lines()
            .any(|line| line.starts_with("cmdstat_publish:") && !line.contains("rejected_calls=0"));
        (calls.map(str::to_owned), failed)
    };
    assert_eq!(client.call(&["WAIT", "0", "0"]).await, Resp::Integer(0));
    let (calls, failed) = published().await;
    assert!(calls.is_some() && !failed, "{calls:?}");
}
