//! Scripts that build the names of their keys: confined to what their connection may touch.

use fence_tests::api::Api;
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::wait::until_true;

use super::{Port, port, ports, setup};

/// Writes a key that it builds.
const BUILD: &str = "return redis.call('SET', 'orders:' .. ARGV[1], ARGV[2])";

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
        assert!(text.contains(&sha), "{text}");
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
    assert!(results[0] == ok() && results[1].error().is_some(), "{results:?}");
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
    assert!(metrics.contains("redis_port_scripts_denied_total 7"), "{metrics}");
}

/// Whatever command a script hides the other lock's key in.
#[tokio::test]
async fn two_locks_do_not_reach_each_other() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grants = [Grant::new(5, "1"), Grant::new(6, "2")];
    for (own, other) in [(&grants[0], &grants[1]), (&grants[1], &grants[0])] {
        let (mine, theirs) = (own.key("a"), other.key("a"));
        let mut client = RespClient::fenced(&guard.address, &own.credential).await;
        let mut holder = RespClient::fenced(&guard.address, &other.credential).await;
        assert_eq!(build(&mut holder, &format!("{}:kept", other.id)).await, ok());
        let kept = other.key("kept");
        for line in [
            "SET T x",
            "MSET M 1 T 1",
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
            "SINTERCARD 2 M T",
            "ZUNION 2 M T",
            "SORT M STORE T",
            "SORT_RO M GET T*",
            "GEORADIUS M 1 1 9 km STORE M STORE T",
            "GEOSEARCHSTORE T M FROMMEMBER x BYRADIUS 1 km",
            "XREAD STREAMS T 0",
            "XREADGROUP GROUP STREAMS STREAMS STREAMS T >",
            "MIGRATE 127.0.0.1 1 T 0 10",
            "PFMERGE T M",
            "GET K",
            "DEL K",
            "DUMP K",
            "OBJECT ENCODING K",
            "SCAN 0",
            "KEYS *",
            "RANDOMKEY",
            "FLUSHALL",
        ] {
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
            client.call(&words).await.expect_error("DENIED");
            assert_eq!(redis.run::<i64>(&["EXISTS", &theirs]).await, 0, "{line}");
            assert_eq!(redis.run::<String>(&["GET", &kept]).await, "x", "{line}");
        }
    }
}

/// What a script may touch follows the tokens, and only for scripts that are sent afterwards.
#[tokio::test]
async fn a_login_widens_and_narrows() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let (one, two) = (Grant::new(5, "1"), Grant::new(6, "2"));
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
}

/// A script passes or fails whatever its connection did before, with few changes of the ACL.
#[tokio::test]
async fn nothing_that_ran_before_matters() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&["--allow-unfenced-reads"])).await;
    let grant = Grant::new(5, "1");
    let (own, foreign) = (grant.key("a"), "orders:2:a");
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
    let (old, new) = (Grant::new(40, "1"), Grant::new(50, "1"));
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

/// A Redis that runs a long script for somebody else refuses to make users only meanwhile.
#[tokio::test]
async fn scripts_work_again_when_redis_was_busy() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(5, "1");
    redis.run::<()>(&["CONFIG", "SET", "busy-reply-threshold", "10"]).await;
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let mut busy = RespClient::connect(&redis.address()).await;
    busy.send(&["EVAL", "while true do end", "0"]).await;
    until_true("Redis to be busy", || async {
        let mut asks = RespClient::connect(&redis.address()).await;
        asks.call(&["GET", "any"]).await.is_error("BUSY")
    })
    .await;
    assert!(build(&mut client, "1").await.error().is_some());
    let mut killer = RespClient::connect(&redis.address()).await;
    assert_eq!(killer.call(&["SCRIPT", "KILL"]).await, ok());
    until_true("scripts to be passed on", || async {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        build(&mut client, "1").await == ok()
    })
    .await;
}
