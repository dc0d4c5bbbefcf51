//! State of a connection at Redis, over a change of its tokens: it is kept, or the change is
//! refused,
//! or EXEC fails. The table is in docs/reference/redis-connections.md.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::wait::until_true;

use super::servers::modules;
use super::{keeping_ports, port, ports, setup};

/// Each way to present a newer token, on a connection that holds another.
fn ways(credential: &str) -> [Vec<&str>; 3] {
    [
        vec!["AUTH", "fence", credential],
        vec!["FENCE", "SET", credential],
        vec!["HELLO", "3", "AUTH", "fence", credential],
    ]
}

/// Presents a token once the guard knows that the connection of the one before was ended.
async fn present(client: &mut RespClient, words: &[&str]) {
    let client = tokio::sync::Mutex::new(client);
    until_true("the newer token to be taken", async || {
        client.lock().await.call(words).await.error().is_none()
    })
    .await;
}

/// The keys have changed under another holder, whom the connection that watched them never met.
#[tokio::test]
async fn a_watch_that_was_lost_fails_the_transaction() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    for (index, id) in ["auth", "set", "hello"].into_iter().enumerate() {
        let old = Grant::new(10, id);
        let new = Grant::new(20, id);
        let last = Grant::new(30, id);
        let key = old.key("a");
        let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
        assert_eq!(client.call(&["WATCH", &key]).await, Resp::simple("OK"));
        assert_eq!(client.call(&["GET", &key]).await, Resp::Null);
        let mut other = RespClient::fenced(&guards[1].address, &new.credential).await;
        assert_eq!(other.call(&["SET", &key, "2"]).await, Resp::simple("OK"));
        present(&mut client, &ways(&last.credential)[index]).await;
        // Redis queues the UNWATCH: it comes too late to save the transaction.
        let words: [&[&str]; 4] = [&["MULTI"], &["UNWATCH"], &["SET", &key, "lost"], &["EXEC"]];
        let replies = client.pipeline(&words).await;
        assert_eq!(replies[3], Resp::Null, "{id}: {replies:?}");
        assert_eq!(client.call(&["GET", &key]).await, Resp::bulk("2"), "{id}");
        // The next one is like any other.
        client.call(&["WATCH", &key]).await;
        let replies = client.pipeline(&[&["MULTI"], &["SET", &key, "3"], &["EXEC"]]).await;
        assert_eq!(replies[2].items(), [Resp::simple("OK")], "{id}");
    }
}

/// The client gives the transaction up in one of the ways that end a WATCH in Redis.
#[tokio::test]
async fn a_watch_that_was_lost_ends_as_any_other() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let unwatch: &[&[&str]] = &[&["UNWATCH"]];
    let reset: &[&[&str]] = &[&["RESET"]];
    let discard: &[&[&str]] = &[&["MULTI"], &["DISCARD"]];
    for (id, ends) in [("unwatch", unwatch), ("discard", discard), ("reset", reset)] {
        let old = Grant::new(10, id);
        let new = Grant::new(20, id);
        let last = Grant::new(30, id);
        let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
        client.call(&["WATCH", &old.key("a")]).await;
        RespClient::fenced(&guards[1].address, &new.credential).await;
        present(&mut client, &["AUTH", "fence", &last.credential]).await;
        client.pipeline(ends).await;
        assert_eq!(client.call(&["AUTH", &last.credential]).await, Resp::simple("OK"));
        let replies =
            client.pipeline(&[&["MULTI"], &["SET", &last.key("a"), "1"], &["EXEC"]]).await;
        assert_eq!(replies[2].items(), [Resp::simple("OK")], "{id}: {replies:?}");
    }
}

/// Redis continues to watch when EXEC or DISCARD is refused for want of a MULTI.
#[tokio::test]
async fn the_tokens_of_a_connection_that_watches_are_not_changed() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    client.call(&["WATCH", &old.key("a")]).await;
    for refused in ["EXEC", "DISCARD"] {
        client.call(&[refused]).await.expect_error("ERR");
    }
    for way in ways(&new.credential) {
        client.call(&way).await.expect_error("DENIED");
    }
    client.call(&["FENCE", "CLEAR"]).await.expect_error("DENIED");
    client.call(&["SELECT", "1"]).await.expect_error("DENIED");
    let once = client.call(&["FENCE", &old.credential, "SET", &old.key("a"), "1"]).await;
    assert_eq!(once, Resp::simple("OK"));
    let replies = client.pipeline(&[&["MULTI"], &["SET", &old.key("a"), "2"], &["EXEC"]]).await;
    assert_eq!(replies[2], Resp::Null, "it was watched: {replies:?}");
    assert_eq!(client.call(&ways(&new.credential)[0]).await, Resp::simple("OK"));
}

#[tokio::test]
async fn what_would_be_lost_refuses_the_change() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let tracking: &[&[&str]] =
        &[&["CLIENT", "TRACKING", "ON", "OPTIN"], &["CLIENT", "CACHING", "YES"]];
    let subscription: &[&[&str]] = &[&["SUBSCRIBE", "news"]];
    for begin in [tracking, subscription] {
        let mut client = RespClient::connect(&guards[0].address).await;
        client.call(&["HELLO", "3", "AUTH", "fence", &old.credential]).await;
        client.pipeline(begin).await;
        for way in ways(&new.credential) {
            client.call(&way).await.expect_error("DENIED");
        }
        client.call(&["HELLO", "2"]).await.expect_error("DENIED");
    }
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    client.call(&["MULTI"]).await;
    client.call(&ways(&new.credential)[0]).await.expect_error("DENIED");
    client.call(&["EXEC"]).await.expect_error("EXECABORT");
    client.call(&["CLIENT", "REPLY", "OFF"]).await.expect_error("DENIED");
}

#[tokio::test]
async fn what_belongs_to_the_client_is_kept() {
    let redis = Redis::start().await;
    let guards = keeping_ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let last = Grant::new(30, "1");
    let mut client = RespClient::connect(&guards[0].address).await;
    client.call(&["HELLO", "3", "AUTH", "fence", &old.credential, "SETNAME", "me"]).await;
    assert_eq!(client.call(&["SELECT", "3"]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["HSET", &old.key("h"), "a", "1"]).await, Resp::Integer(1));
    let sha = client.call(&["SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])"]).await.text();
    RespClient::fenced(&guards[1].address, &new.credential).await;
    present(&mut client, &["AUTH", "fence", &last.credential]).await;
    let hash = Resp::Map(vec![(Resp::bulk("a"), Resp::bulk("1"))]);
    assert_eq!(client.call(&["HGETALL", &last.key("h")]).await, hash, "database and protocol");
    assert_eq!(client.call(&["CLIENT", "GETNAME"]).await, Resp::bulk("me"));
    assert_eq!(client.call(&["EVALSHA", &sha, "1", &last.key("b")]).await, Resp::Null);
}

/// WAIT counts every write of its client, on whichever connection it was made. The replica is
/// paused.
#[tokio::test]
async fn wait_counts_what_was_written_on_another_connection() {
    let redis = Redis::start().await;
    let replica = Redis::with(&[("repl-diskless-sync-delay", "0")]).await;
    let (host, at) =
        redis.address().split_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).unwrap();
    redis.run::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
    replica.run::<()>(&["REPLICAOF", &host, &at]).await;
    let guard = port(&setup(&redis.url()).args(&["--rule", "open:**=@open"])).await;
    let own = Grant::new(10, "1");
    let other = Grant::new(10, "2");
    let mut plain = RespClient::connect(&guard.address).await;
    let mut fenced = RespClient::fenced(&guard.address, &own.credential).await;
    for client in [&mut plain, &mut fenced] {
        // From here on WAIT has a connection of its own.
        assert_eq!(client.call(&["SET", "open:a", "1"]).await, Resp::simple("OK"));
        assert_eq!(client.call(&["WAIT", "1", "20000"]).await, Resp::Integer(1));
    }
    replica.process().pause();
    for client in [&mut plain, &mut fenced] {
        let once = ["FENCE", &other.credential, "SET", &other.key("a"), "1"];
        assert_eq!(client.call(&once).await, Resp::simple("OK"));
        assert_eq!(client.call(&["WAIT", "1", "50"]).await, Resp::Integer(0));
    }
    replica.process().resume();
    for client in [&mut plain, &mut fenced] {
        assert_eq!(client.call(&["WAIT", "1", "20000"]).await, Resp::Integer(1));
        let replies = client.pipeline(&[&["MULTI"], &["WAIT", "1", "0"], &["EXEC"]]).await;
        replies[1].expect_error("DENIED");
        replies[2].expect_error("EXECABORT");
        assert_eq!(client.call(&["GET", "open:a"]).await, Resp::bulk("1"), "replies are in order");
    }
}

/// A client ends the wait of another one by its id, where both hold the same tokens.
#[tokio::test]
async fn clients_with_the_same_tokens_unblock_each_other() {
    let redis = Redis::start().await;
    let guard = &ports(&redis, 1).await[0].address;
    let one = Grant::new(10, "1");
    let two = Grant::new(10, "2");
    let mut waits = RespClient::fenced(guard, &one.credential).await;
    let id = waits.call(&["CLIENT", "ID"]).await.integer().to_string();
    let mut same = RespClient::fenced(guard, &one.credential).await;
    let mut other = RespClient::fenced(guard, &two.credential).await;
    assert_eq!(same.call(&["CLIENT", "UNBLOCK", &id]).await, Resp::Integer(0), "it does not wait");
    for (reason, is_error) in [("TIMEOUT", false), ("error", true)] {
        waits.send(&["BLPOP", &one.key("list"), "0"]).await;
        until_true("it to wait", async || {
            redis.run::<String>(&["INFO", "clients"]).await.contains("blocked_clients:1")
        })
        .await;
        other.call(&["CLIENT", "UNBLOCK", &id]).await.expect_error("DENIED");
        assert_eq!(other.call(&["CLIENT", "UNBLOCK", "999"]).await, Resp::Integer(0));
        let unblocked = same.call(&["CLIENT", "UNBLOCK", &id, reason]).await;
        assert_eq!(unblocked, Resp::Integer(1));
        let reply = waits.reply().await;
        assert_eq!(reply.is_error("UNBLOCKED"), is_error, "{reply:?}");
        assert_eq!(reply == Resp::Null, !is_error, "{reply:?}");
    }
    for (words, error) in [
        (&["CLIENT", "UNBLOCK", "x"][..], "value is not an integer"),
        (&["CLIENT", "UNBLOCK", &id, "NOW"], "UNBLOCK reason should be"),
    ] {
        let reply = same.call(words).await;
        assert!(reply.expect_error("ERR").contains(error), "{reply:?}");
    }
    drop(waits);
    let same = tokio::sync::Mutex::new(same);
    until_true("its id to be forgotten", async || {
        same.lock().await.call(&["CLIENT", "UNBLOCK", &id]).await == Resp::Integer(0)
    })
    .await;
}

/// The guard's own facts about a client stand in the reply to EXEC; a command that it cannot queue
/// is refused in words that fit, and the transaction runs nothing.
#[tokio::test]
async fn look_ups_are_queued() {
    let redis = Redis::start().await;
    let guard = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let look_ups: [&[&str]; 7] = [
        &["CLIENT", "ID"],
        &["CLIENT", "GETNAME"],
        &["CLIENT", "INFO"],
        &["CLIENT", "LIST"],
        &["CLIENT", "LIST", "TYPE", "master"],
        &["ACL", "WHOAMI"],
        &["MODULE", "LIST"],
    ];
    for hello in [["HELLO", "2"], ["HELLO", "3"]] {
        let mut client = RespClient::fenced(&guard[0].address, &grant.credential).await;
        client.call(&hello).await;
        for name in [None, Some("me")] {
            if let Some(name) = name {
                client.call(&["CLIENT", "SETNAME", name]).await;
            }
            let alone = client.pipeline(&look_ups).await;
            client.call(&["MULTI"]).await;
            for words in look_ups {
                assert_eq!(client.call(words).await, Resp::simple("QUEUED"), "{words:?}");
            }
            client.call(&["EVAL", "return 1", "0"]).await;
            client.call(&["SET", &grant.key("a"), "1"]).await;
            let replies = client.call(&["EXEC"]).await;
            assert_eq!(replies.items()[..6], alone[..6], "{hello:?}");
            assert_eq!(modules(&replies.items()[6]), modules(&alone[6]), "{hello:?}");
            assert_eq!(replies.items()[8], Resp::simple("OK"));
        }
        for words in [
            &["SELECT", "1"][..],
            &["CLIENT", "SETNAME", "x"],
            &["CONFIG", "GET", "save"],
            &["AUTH", &grant.credential],
            &["FENCE", "SHOW"],
            &["CLIENT", "UNBLOCK", "1"],
        ] {
            client.call(&["MULTI"]).await;
            client.call(&["SET", &grant.key("a"), "2"]).await;
            let refused = client.call(words).await;
            let line = refused.expect_error("DENIED");
            assert!(line.contains(words[0]) && line.contains("inside MULTI"), "{line}");
            client.call(&["EXEC"]).await.expect_error("EXECABORT");
            assert_eq!(client.call(&["GET", &grant.key("a")]).await, Resp::bulk("1"));
        }
    }
}

/// HELLO does all that it was asked for, or nothing.
#[tokio::test]
async fn a_hello_with_a_bad_name_logs_no_client_in() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let mut client = RespClient::connect(&guards[0].address).await;
    let words = ["HELLO", "3", "AUTH", "fence", &grant.credential, "SETNAME", "a b"];
    client.call(&words).await.expect_error("ERR");
    client.call(&["SET", &grant.key("a"), "1"]).await.expect_error("NOTOKEN");
    assert_eq!(client.call(&["FENCE", "SHOW"]).await.items(), []);
}

/// A token that went stale unseen is not confirmed because it was presented before.
#[tokio::test]
async fn an_equal_token_that_is_stale_by_now_is_refused() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let client = RespClient::fenced(&guards[0].address, &old.credential).await;
    RespClient::fenced(&guards[1].address, &new.credential).await;
    let client = tokio::sync::Mutex::new(client);
    until_true("the stale token to be refused", async || {
        client.lock().await.call(&["AUTH", "fence", &old.credential]).await.is_error("FENCED")
    })
    .await;
}
