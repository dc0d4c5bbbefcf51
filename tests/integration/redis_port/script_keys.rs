//! Scripts that build the names of their keys: confined to what their connection may touch.

use fence_tests::api::Api;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use serde_json::json;

use super::{Port, port, ports, setup};

/// Writes a key that it builds.
const BUILD: &str = "return redis.call('SET', 'orders:' .. ARGV[1], ARGV[2])";

const PORT: [&str; 2] = ["--redis-listen", "127.0.0.1:0"];

async fn build(client: &mut RespClient, name: &str) -> Resp {
    client.call(&["EVAL", BUILD, "0", name, "x"]).await
}

fn ok() -> Resp {
    Resp::simple("OK")
}

/// So often the users of scripts were changed.
async fn acl_changes(redis: &Redis) -> u64 {
    let stats: String = redis.run(&["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_acl|setuser:calls="));
    let calls = line.and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// Within the pattern of the lock a script builds what it likes, outside of it nothing.
#[tokio::test]
async fn a_script_builds_keys_of_its_lock() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(5, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    for name in ["1", "1:a", "1:a b\0c", "1:*[?]\\", "1:"] {
        assert_eq!(build(&mut client, name).await, ok(), "{name:?}");
        assert_eq!(redis.run::<String>(&["GET", &format!("orders:{name}")]).await, "x");
    }
    for name in ["2", "2:a", "11", "", "1x:a", "1/a"] {
        let reply = build(&mut client, name).await;
        let text = reply.expect_error("DENIED");
        assert!(text.contains("token 5 of lock orders/1") && text.contains("KEYS"), "{text}");
        let sha: String = redis.run(&["SCRIPT", "LOAD", BUILD]).await;
        // Valkey names no script.
        assert!(text.contains(&sha) || redis.is_valkey().await, "{text}");
        assert_eq!(redis.run::<i64>(&["EXISTS", &format!("orders:{name}")]).await, 0);
    }
    // The same of declared keys without limit, in a transaction and in a function.
    let many: Vec<String> = (0..600).map(|n| grant.key(&format!("many {n}"))).collect();
    let words = ["EVAL", "return redis.call('DEL', unpack(KEYS))", "600"];
    let words: Vec<&str> = words.into_iter().chain(many.iter().map(String::as_str)).collect();
    assert_eq!(client.call(&words).await, Resp::Integer(0));
    let eval = ["EVAL", BUILD, "0", "1:b", "x"];
    let foreign = ["EVAL", BUILD, "0", "2:b", "x"];
    let replies = client.pipeline(&[&["MULTI"], &eval, &foreign, &["EXEC"]]).await;
    let results = replies[3].items();
    assert_eq!(results[0], ok());
    let text = results[1].expect_error("DENIED");
    let sha: String = redis.run(&["SCRIPT", "LOAD", BUILD]).await;
    assert!(text.contains(&sha) || redis.is_valkey().await, "{text}");
    assert!(text.contains("token 5 of lock orders/1"), "{text}");
    let library = "#!lua name=l\nredis.register_function('build', function(_, args) \
                   return redis.call('SET', 'orders:' .. args[1], 'x') end)";
    redis.run::<String>(&["FUNCTION", "LOAD", library]).await;
    assert_eq!(client.call(&["FCALL", "build", "0", "1:f"]).await, ok());
    let reply = client.call(&["FCALL", "build", "0", "2:f"]).await;
    assert!(reply.expect_error("DENIED").contains("build"), "{reply:?}");
    client.call(&["FUNCTION", "LOAD", library]).await.expect_error("DENIED");
    assert_eq!(redis.run::<i64>(&["EXISTS", "orders:2:b", "orders:2:f"]).await, 0);
    let metrics = Api::new(&guard.server.base).get("/metrics").await.expect(200).body;
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    assert!(metrics.contains("fencepost_redis_port_scripts_denied_total 8"), "{metrics}");
}

/// Commands in a script with a key of its own (`M`) and one of another lock (`T`, `K`).
const HIDING: [&str; 42] = [
    "SET T x",
    "MSET M 1 T 1",
    "MSETEX 2 M 1 T 1",
    "RENAME M T",
    "COPY M T",
    "BITOP NOT T M",
    "LMOVE M T LEFT LEFT",
    "SMOVE M T x",
    "SUNIONSTORE T M",
    "ZUNIONSTORE T 1 M",
    "ZINTERSTORE M 2 M T",
    "ZDIFFSTORE T 1 M",
    "ZRANGESTORE T M 0 1",
    "LMPOP 2 M T LEFT",
    "ZMPOP 2 M T MIN",
    "BLMPOP 0 2 M T LEFT",
    "BZMPOP 0 2 M T MIN",
    "SINTERCARD 2 M T",
    "ZDIFF 2 M T",
    "ZINTER 2 M T",
    "ZINTERCARD 2 M T",
    "ZUNION 2 M T",
    "SORT T",
    "SORT_RO T",
    "SORT M STORE T",
    "SORT_RO M GET T*",
    "GEORADIUS M 1 1 9 km STORE M STORE T",
    "GEORADIUSBYMEMBER M x 9 km STORE M STORE T",
    "GEOSEARCHSTORE T M FROMMEMBER x BYRADIUS 1 km",
    "XREAD STREAMS T 0",
    "XREADGROUP GROUP STREAMS STREAMS STREAMS T >",
    "MIGRATE 127.0.0.1 1 T 0 10",
    "PFMERGE T M",
    "PFMERGE T",
    "GET K",
    "DEL K",
    "DUMP K",
    "OBJECT ENCODING K",
    "SCAN 0",
    "KEYS *",
    "RANDOMKEY",
    "FLUSHALL",
];

/// Commands whose keys move that Redis itself lets no script run.
const NOT_FROM_SCRIPTS: [&str; 6] =
    ["EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO", "FCALL", "FCALL_RO"];

/// In any command, a script that hides the other lock's key is refused.
#[tokio::test]
async fn two_locks_do_not_reach_each_other() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let every: Vec<redis::Value> = redis.run(&["COMMAND"]).await;
    let moving = every.iter().filter_map(|info| {
        let redis::Value::Array(info) = info else { return None };
        let is_moving = format!("{:?}", info[2]).contains("movablekeys");
        is_moving
            .then(|| redis::from_redis_value::<String>(info[0].clone()).unwrap().to_uppercase())
    });
    for name in moving.filter(|name| !NOT_FROM_SCRIPTS.contains(&name.as_str())) {
        let is_tried = HIDING.iter().any(|line| line.split(' ').next() == Some(&name));
        assert!(is_tried, "{name} is not tried");
    }
    let grants = [Grant::new(5, "1"), Grant::new(6, "2")];
    for (own, other) in [(&grants[0], &grants[1]), (&grants[1], &grants[0])] {
        let mine = own.key("a");
        let theirs = other.key("a");
        let mut client = RespClient::fenced(&guard.address, &own.credential).await;
        let mut holder = RespClient::fenced(&guard.address, &other.credential).await;
        assert_eq!(build(&mut holder, &format!("{}:kept", other.id)).await, ok());
        let kept = other.key("kept");
        for line in HIDING {
            let word = |word: &str| match word {
                "M" => mine.clone(),
                "T" => theirs.clone(),
                "K" => kept.clone(),
                _ => word.to_owned(),
            };
            let words: Vec<String> = line.split(' ').map(word).collect();
            let call = ["EVAL", "return redis.call(unpack(ARGV))", "0"];
            let words: Vec<&str> =
                call.into_iter().chain(words.iter().map(String::as_str)).collect();
            // A server without a command says so.
            let reply = client.call(&words).await;
            let is_missing =
                reply.error().is_some_and(|text| text.contains("Unknown Redis command"));
            if !(line.starts_with("MSETEX") && is_missing) {
                reply.expect_error("DENIED");
            }
            assert_eq!(redis.run::<i64>(&["EXISTS", &theirs]).await, 0, "{line}");
            assert_eq!(redis.run::<String>(&["GET", &kept]).await, "x", "{line}");
        }
    }
}

/// The keys that a script may touch follow the tokens, and only for scripts that are sent
/// afterwards.
#[tokio::test]
async fn a_login_widens_and_narrows() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let one = Grant::new(5, "1");
    let two = Grant::new(6, "2");
    let mut client = RespClient::fenced(&guard.address, &one.credential).await;
    let eval: &[&str] = &["EVAL", BUILD, "0", "2:a", "x"];
    let replies = client.pipeline(&[eval, &["FENCE", "SET", &two.credential], eval]).await;
    replies[0].expect_error("DENIED");
    assert_eq!(replies[1..], [ok(), ok()]);
    assert_eq!(build(&mut client, "1:a").await, ok());
    let replies = client.pipeline(&[eval, &["FENCE", "CLEAR", "orders/2"], eval]).await;
    assert_eq!(replies[..2], [ok(), ok()]);
    assert!(replies[2].expect_error("DENIED").contains("orders/1"));
    assert_eq!(client.call(&["AUTH", "fence", &two.credential]).await, ok());
    assert_eq!(build(&mut client, "2:a").await, ok());
    build(&mut client, "1:a").await.expect_error("DENIED");
    // A script that still runs when the login comes.
    let slow = "for _ = 1, 1e7 do end return redis.call('SET', 'orders:1:late', 'x')";
    let eval: &[&str] = &["EVAL", slow, "0"];
    let replies = client.pipeline(&[eval, &["FENCE", "SET", &one.credential], eval]).await;
    replies[0].expect_error("DENIED");
    assert_eq!(replies[1..], [ok(), ok()]);
}

/// Bytes that mean something in a pattern stand for themselves.
#[tokio::test]
async fn patterns_are_no_wildcards() {
    let redis = Redis::start().await;
    let rules = ["--rule", "odd%5B%5Ea-z%5D%3F%5C:{id}:**=odd/{id}"];
    let guard = port(&setup(&redis.url()).args(&rules)).await;
    let credential = unsigned(5, "odd/a-z.b", lease_id());
    let mut client = RespClient::fenced(&guard.address, &credential).await;
    let set = "return redis.call('SET', ARGV[1], 'x')";
    for (name, is_own) in [
        ("odd[^a-z]?\\:a-z.b:x", true),
        ("odd[^a-z]?\\:a-z.b", true),
        ("oddA?\\:a-z.b:x", false),
        ("odd[^a-z]x\\:a-z.b:x", false),
        ("odd[^a-z]?:a-z.b:x", false),
        ("odd[^a-z]?\\:b.b:x", false),
        ("odd[^a-z]?\\:a-zxb:x", false),
    ] {
        let reply = client.call(&["EVAL", set, "0", name]).await;
        assert_eq!(reply == ok(), is_own, "{name}: {reply:?}");
        if !is_own {
            reply.expect_error("DENIED");
        }
    }
    for lock in ["odd/[a]", "odd/a?", "odd/a\\", "odd/*"] {
        let forged = credential.replace("odd/a-z.b", lock);
        client.call(&["AUTH", "fence", &forged]).await.expect_error("WRONGTOKEN");
    }
}

/// No rule gives Fencepost's own keys to a script, and with a lock server's prefix one rule takes
/// them away where the default is open.
#[tokio::test]
async fn no_rule_gives_fencepost_s_own_keys() {
    let redis = Redis::start().await;
    let prefix = ["--key-prefix", "app1:"];
    let server = Setup::lock_server(&redis.url()).args(&prefix).start().await;
    let held = server.locks().grant("orders/1", 60_000).await;
    let record = "app1:{fence:default}:lock:orders/1";
    assert_eq!(redis.run::<i64>(&["EXISTS", record]).await, 1);
    let all = ["--rule", "%7Bfence:**=@open", "--rule", "**=@open"];
    let all = port(&Setup::fenced_store(&redis.url()).args(&PORT).args(&all)).await;
    let deny = ["--default-rule", "open", "--rule", "app1:%7Bfence:**=@deny"];
    let deny = port(&Setup::fenced_store(&redis.url()).args(&PORT).args(&deny)).await;
    let names = ["{fence:default}:guard:marks", "{fence:default}:token", record];
    for (guard, names) in [(&all, &names[..2]), (&deny, &names)] {
        let mut client = RespClient::connect(&guard.address).await;
        for name in names {
            client.call(&["DEL", name]).await.expect_error("DENIED");
            let delete = "return redis.call('DEL', ARGV[1])";
            client.call(&["EVAL", delete, "0", name]).await.expect_error("DENIED");
        }
        let set = "return redis.call('SET', ARGV[1], 'x')";
        for name in ["app1:x", "app1:{q}:x", "app1:{fenc", "bull:a"] {
            assert_eq!(client.call(&["EVAL", set, "0", name]).await, ok(), "{name}");
        }
    }
    assert_eq!(redis.run::<i64>(&["EXISTS", record]).await, 1);
    let again = server.locks().acquire("orders/1", json!({"ttl_ms": 60_000})).await;
    assert_eq!(again.status, 423, "{again:?}");
    server.locks().renew("orders/1", held.lease_id).await.expect(200);
}

/// A change of a user that Redis did not answer may come late. Its connection is given up, so that
/// it can widen nothing that is still used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_user_without_a_reply_ends_its_connection() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(5, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    assert_eq!(build(&mut client, "1:a").await, ok());
    redis.process().pause();
    let reply = client.call(&["SORT", &grant.key("list")]).await;
    reply.expect_error("UNAVAILABLE");
    redis.process().resume();
    assert_eq!(client.until_closed().await, []);
    until_true("the user to be gone", async || {
        redis.run::<Vec<String>>(&["ACL", "USERS"]).await == ["default"]
    })
    .await;
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    build(&mut client, "2:a").await.expect_error("DENIED");
    assert_eq!(build(&mut client, "1:a").await, ok());
}

/// A script passes or fails whatever its connection did before, with few changes of the ACL.
#[tokio::test]
async fn nothing_that_ran_before_matters() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&["--allow-unfenced-reads"])).await;
    let grant = Grant::new(5, "1");
    let own = grant.key("a");
    let foreign = "orders:2:a";
    let read = "return redis.call('EXISTS', 'orders:2:a')";
    let befores: [&[&[&str]]; 7] = [
        &[],
        &[&["EVAL_RO", read, "1", foreign]],
        &[&["SORT", &own]],
        &[&["GET", foreign]],
        &[&["MULTI"], &["GET", foreign], &["EVAL", "return 1", "0"], &["EXEC"]],
        &[&["MULTI"], &["SORT", foreign], &["EXEC"], &["XREAD", "STREAMS", foreign, "0"]],
        &[&["WATCH", foreign], &["UNWATCH"], &["BLPOP", &own, "0.01"]],
    ];
    for before in befores {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        for _ in 0..2 {
            let scripts: [&[&str]; 3] = [
                &["EVAL", read, "0"],
                &["EVAL", BUILD, "0", "1:n", "x"],
                &["EVAL_RO", read, "1", foreign],
            ];
            let replies = client.pipeline(&[before, &scripts].concat()).await;
            let replies = &replies[before.len()..];
            replies[0].expect_error("DENIED");
            assert_eq!(replies[1..], [ok(), Resp::Integer(0)], "{before:?}");
        }
    }
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let changes = acl_changes(&redis).await;
    let scripts: [&[&str]; 2] =
        [&["EVAL", BUILD, "0", "1:n", "x"], &["EVAL", BUILD, "0", "2:n", "x"]];
    let replies = client.pipeline(&scripts.repeat(2000)).await;
    for pair in replies.chunks(2) {
        assert_eq!(pair[0], ok());
        pair[1].expect_error("DENIED");
    }
    for name in ["GET", "DEL", "LPUSH", "INCR"] {
        let words: &[&str] = if name == "LPUSH" { &[name, &own, "1"] } else { &[name, &own] };
        client.call(words).await;
        assert_eq!(build(&mut client, "1:n").await, ok());
    }
    // Its own user is confined once, and two users may be made for connections that are kept ready.
    let changed = acl_changes(&redis).await - changes;
    assert!(changed <= 3, "users were changed {changed} times for scripts");
}

/// With an open default scripts reach everything but what rules protect, and Fencepost's own.
#[tokio::test]
async fn an_open_default_opens_scripts() {
    let redis = Redis::start().await;
    let open = setup(&redis.url()).args(&["--default-rule", "open", "--rule", "app1:**=@open"]);
    let guard: Port = port(&open).await;
    let grant = Grant::new(5, "1");
    let mut holder = RespClient::fenced(&guard.address, &grant.credential).await;
    assert_eq!(holder.call(&["SET", &grant.key("a"), "new"]).await, ok());
    let set = "return redis.call('SET', ARGV[1], 'x')";
    let mut client = RespClient::connect(&guard.address).await;
    for (name, is_open) in [
        ("bull:mail:wait", true),
        ("{bull}:a b\0", true),
        ("", true),
        ("app1:x", true),
        ("orders", true),
        ("orders:1:a", false),
        ("journal:orders:1", false),
        ("{fence:default}:guard:marks", false),
        ("{fence:other}:token", false),
        ("app1:{fence:default}:token", false),
    ] {
        let reply = client.call(&["EVAL", set, "0", name]).await;
        assert_eq!(reply == ok(), is_open, "{name}: {reply:?}");
        if !is_open {
            reply.expect_error("DENIED");
        }
    }
    assert_eq!(holder.call(&["GET", &grant.key("a")]).await, Resp::bulk("new"));
    assert_eq!(build(&mut holder, "1:built").await, ok());
    let observing = port(&setup(&redis.url()).args(&["--mode", "observe"])).await;
    let mut client = RespClient::connect(&observing.address).await;
    assert_eq!(client.call(&["EVAL", set, "0", "orders:2:seen"]).await, ok());
    client.call(&["EVAL", set, "0", "{fence:default}:token"]).await.expect_error("DENIED");
}

/// A token that fell behind writes nothing by a script either, on keys that its pattern covers.
#[tokio::test]
async fn a_late_script_is_fenced() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(40, "1");
    let new = Grant::new(50, "1");
    let mut late = RespClient::fenced(&guards[0].address, &old.credential).await;
    assert_eq!(build(&mut late, "1:a").await, ok());
    guards[1].server.guard().sealed("orders/1", &new.credential).await;
    redis.run::<i64>(&["DEL", "orders:1:a"]).await;
    build(&mut late, "1:a").await.expect_error("FENCED");
    assert_eq!(redis.run::<i64>(&["EXISTS", "orders:1:a"]).await, 0);
    let mut holder = RespClient::fenced(&guards[0].address, &new.credential).await;
    assert_eq!(build(&mut holder, "1:a").await, ok());
}

/// PFCOUNT stores the count in its key, although Redis' ACL takes it for a read.
#[tokio::test]
async fn a_script_that_may_only_read_stores_no_count() {
    let redis = Redis::start().await;
    let rules = ["--allow-unfenced-reads", "--rule", "visits:**=count/visits"];
    let guard = port(&setup(&redis.url()).args(&rules)).await;
    redis.run::<i64>(&["PFADD", "visits:1", "a", "b"]).await;
    let stored: Vec<u8> = redis.run(&["GET", "visits:1"]).await;
    let mut reader = RespClient::connect(&guard.address).await;
    let read = ["EVAL", "return #redis.call('GET', ARGV[1])", "0", "visits:1"];
    let length = i64::try_from(stored.len()).expect("a short value");
    assert_eq!(reader.call(&read).await, Resp::Integer(length));
    let count = ["EVAL", "return redis.call('PFCOUNT', ARGV[1])", "0", "visits:1"];
    assert!(reader.call(&count).await.is_error("DENIED"));
    assert_eq!(redis.run::<Vec<u8>>(&["GET", "visits:1"]).await, stored);
}

/// A Redis that runs a long script for another client refuses to make users only meanwhile.
#[tokio::test]
async fn scripts_work_again_when_redis_was_busy() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(5, "1");
    redis.run::<()>(&["CONFIG", "SET", "busy-reply-threshold", "10"]).await;
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let mut confined = RespClient::fenced(&guard.address, &grant.credential).await;
    assert_eq!(build(&mut confined, "1").await, ok());
    let mut busy = RespClient::connect(&redis.address()).await;
    busy.send(&["EVAL", "while true do end", "0"]).await;
    until_true("Redis to be busy", || async {
        let mut asks = RespClient::connect(&redis.address()).await;
        asks.call(&["GET", "any"]).await.is_error("BUSY")
    })
    .await;
    assert!(build(&mut client, "1").await.error().is_some());
    // A change that Redis refused is none, and its connection stays as it was.
    let sort = ["SORT", "orders:1:list"];
    confined.call(&sort).await.expect_error("UNAVAILABLE");
    let mut killer = RespClient::connect(&redis.address()).await;
    assert_eq!(killer.call(&["SCRIPT", "KILL"]).await, ok());
    until_true("scripts to be passed on", || async {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        build(&mut client, "1").await == ok()
    })
    .await;
    build(&mut confined, "2").await.expect_error("DENIED");
    assert_eq!(build(&mut confined, "1").await, ok());
    assert_eq!(confined.call(&sort).await, Resp::Array(Vec::new()));
    build(&mut confined, "2").await.expect_error("DENIED");
}
