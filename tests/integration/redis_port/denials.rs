//! Scripts that are refused a key, a command or a channel, at every server that the guard is tested
//! with: each says it in other words.

use fence_protocol::wire::fence::FenceReply;
use fence_tests::api::encode;
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};

use super::{port, setup};

const KEY: &str = "touched a key that this connection may not touch, with token 5 of lock \
                   orders/1. A key that a script builds needs a rule";
const COMMAND: &str = "ran a command that scripts may not run, because its keys are not certain; \
                       send it outside";
const CHANNEL: &str = "published to one of Fencepost's own channels; choose another channel";

/// Commands of a script, and the words of their denials.
const DONE: [(&str, &str); 6] = [
    ("'SET', 'orders:2:x', 'y'", KEY),
    ("'GET', 'orders:2:x'", KEY),
    ("'SORT', 'orders:1:l'", COMMAND),
    ("'SORT', 'orders:1:l', 'BY', 'w_*', 'GET', 'x_*'", COMMAND),
    ("'PUBLISH', '{fence:default}:c:1', 'x'", CHANNEL),
    ("'SPUBLISH', '{fence:default}:c:1', 'x'", CHANNEL),
];

/// Ways of a script to run them: the error is raised, or returned by itself or among others.
const WAYS: [&str; 6] = [
    "return redis.call(DONE)",
    "return redis.pcall(DONE)",
    "return {1, {redis.pcall(DONE)}, 'a-b'}",
    "local failed = redis.pcall(DONE) return redis.error_reply(failed.err)",
    "local failed = redis.pcall(DONE) error(failed)",
    "local failed = redis.pcall(DONE) error('mine: ' .. failed.err)",
];

/// The only error in a reply.
fn only_error(reply: &Resp) -> Option<&str> {
    match reply {
        Resp::Array(items) => items.iter().find_map(only_error),
        reply => reply.error(),
    }
}

/// Asserts that a reply denies what `script` did, in these words.
#[track_caller]
fn assert_denied(reply: &Resp, script: &str, words: &str) {
    let text = only_error(reply).unwrap_or_else(|| panic!("{reply:?}"));
    assert!(text.starts_with(&format!("DENIED {script} {words}")), "{text}");
    assert!(!text.contains("fence:"), "an internal name: {text}");
}

#[tokio::test]
async fn a_denial_is_one_sentence_at_every_server() {
    for (engine, redis) in Redis::every().await {
        let guard = port(&setup(&redis.url())).await;
        let grant = Grant::new(5, "1");
        let mut clients = [
            RespClient::fenced(&guard.address, &grant.credential).await,
            RespClient::fenced(&guard.address, &grant.credential).await,
        ];
        clients[1].call(&["HELLO", "3"]).await;
        let mut denied = 0;
        for (number, (done, words)) in DONE.iter().enumerate() {
            for (way, body) in WAYS.iter().enumerate() {
                let script = body.replace("DONE", done);
                let sha: String = redis.run(&["SCRIPT", "LOAD", &script]).await;
                let function = format!("f_{number}_{way}");
                let library = format!(
                    "#!lua name=l_{function}\nredis.register_function('{function}', function() \
                     {script} end)"
                );
                redis.run::<String>(&["FUNCTION", "LOAD", &library]).await;
                let by_sha = format!("script {sha}");
                let by_name = format!("script {function}");
                // Valkey has no names, and EVAL sends none.
                let is_named = engine != "valkey-9.1" && script.contains("redis.call");
                let by_text = if is_named { &by_sha } else { "a script" };
                for client in &mut clients {
                    let reply = client.call(&["EVALSHA", &sha, "0"]).await;
                    assert_denied(&reply, &by_sha, words);
                    let reply = client.call(&["FCALL", &function, "0"]).await;
                    assert_denied(&reply, &by_name, words);
                    // An error that is raised again has Redis' name where Redis has one.
                    let reply = client.call(&["EVAL", &script, "0"]).await;
                    let raised = engine != "valkey-9.1" && script.contains("error(");
                    assert_denied(&reply, if raised { &by_sha } else { by_text }, words);
                    let twice: &[&str] = &["EVALSHA", &sha, "0"];
                    let replies = client.pipeline(&[&["MULTI"], twice, twice, &["EXEC"]]).await;
                    replies[3].items().iter().for_each(|r| assert_denied(r, &by_sha, words));
                    denied += 5;
                }
            }
        }
        assert_eq!(guard.server.metric("fencepost_redis_port_scripts_denied_total").await, denied);
        let path = format!("/v1/fences/{}", encode("orders/1"));
        let fence: FenceReply = guard.server.api().get(&path).await.expect(200).read();
        assert!(!fence.last_refusals.is_empty(), "{engine}");
        let by = fence.last_refusals.iter().all(|refused| refused.code == "forbidden");
        assert!(by, "{fence:?}");
    }
}

/// Two scripts of one transaction, and replies that have the sign of an error without being one.
#[tokio::test]
async fn other_replies_of_scripts_stay() {
    for (engine, redis) in Redis::every().await {
        let guard = port(&setup(&redis.url())).await;
        let grant = Grant::new(5, "1");
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        let long = "x-".repeat(100_000);
        for (script, expected) in [
            ("return {'-ERR a', -1, {ARGV[1]}}", Resp::bulk("-ERR a")),
            ("return ARGV[1]", Resp::bulk(&long)),
            ("return redis.error_reply('MINE a-b')", Resp::Error("MINE a-b".to_owned())),
        ] {
            let reply = client.call(&["EVAL", script, "0", &long]).await;
            match &reply {
                Resp::Array(items) => {
                    assert_eq!(items[0], expected, "{engine}");
                    assert_eq!(items[2], Resp::Array(vec![Resp::bulk(&long)]));
                }
                reply => assert_eq!(*reply, expected, "{engine}"),
            }
        }
        let one = "return redis.pcall('GET', 'orders:2:x')";
        let sha: String = redis.run(&["SCRIPT", "LOAD", one]).await;
        let named: &[&str] = &["EVALSHA", &sha, "0"];
        let replies = client.pipeline(&[&["MULTI"], named, &["EVAL", one, "0"], &["EXEC"]]).await;
        for reply in replies[3].items() {
            assert_denied(reply, "a script", KEY);
        }
    }
}

/// In observe mode a script may SORT, but no user without every key may use BY or GET.
#[tokio::test]
async fn sort_by_names_of_other_keys_is_denied_in_observe_mode() {
    for (engine, redis) in Redis::every().await {
        let guard = port(&setup(&redis.url()).args(&["--mode", "observe"])).await;
        redis.run::<u64>(&["RPUSH", "orders:1:l", "2", "1"]).await;
        let mut client = RespClient::connect(&guard.address).await;
        let sorted = client.call(&["EVAL", "return redis.call('SORT', 'orders:1:l')", "0"]).await;
        assert_eq!(sorted.items().len(), 2, "{engine}");
        for option in ["BY", "GET"] {
            let script = format!("return redis.pcall('SORT', 'orders:1:l', '{option}', 'w_*')");
            let sha: String = redis.run(&["SCRIPT", "LOAD", &script]).await;
            let reply = client.call(&["EVALSHA", &sha, "0"]).await;
            assert_denied(&reply, &format!("script {sha}"), COMMAND);
        }
    }
}
