//! Differences between the servers that the guard is tested with.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use serde_json::json;

use super::{bare_open_setup, port, setup};

const PAGE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/redis-port.md"));

/// A reply to HELLO without the client's id.
fn without_id(reply: Resp) -> Resp {
    match reply {
        Resp::Array(mut items) => {
            items.drain(6..8);
            Resp::Array(items)
        }
        Resp::Map(pairs) => {
            Resp::Map(pairs.into_iter().filter(|(name, _)| *name != Resp::bulk("id")).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Names and fields of each module, in any order.
pub(super) fn modules(reply: &Resp) -> Vec<Vec<String>> {
    let fields = |module: &Resp| {
        let mut fields: Vec<String> = match module {
            Resp::Map(pairs) => pairs.iter().map(|pair| format!("{pair:?}")).collect(),
            Resp::Array(items) => items.chunks(2).map(|pair| format!("{pair:?}")).collect(),
            other => panic!("{other:?}"),
        };
        fields.sort();
        fields
    };
    reply.items().iter().map(fields).collect()
}

/// Makes the user of the page, which has no right that the guard does not need.
async fn make_guards_user(redis: &Redis) {
    let line = PAGE.lines().find_map(|line| line.strip_prefix("$ redis-cli ACL SETUSER guard "));
    let rules = line.expect("the page makes a user").replace('\'', "").replace("SECRET", "s3cret");
    let words: Vec<&str> =
        ["ACL", "SETUSER", "guard"].into_iter().chain(rules.split(' ')).collect();
    redis.run::<()>(&words).await;
}

/// The guard introduces itself as the server behind it does, and names it in its log.
#[tokio::test]
async fn the_port_is_named_like_its_server() {
    for ((engine, redis), name) in
        Redis::every().await.into_iter().zip(["redis 7.0.", "redis 8.2.", "valkey 9.1."])
    {
        let guard = port(&setup(&redis.url())).await;
        let mut behind = RespClient::connect(&redis.address()).await;
        let mut client = RespClient::connect(&guard.address).await;
        for version in ["2", "3"] {
            let theirs = without_id(behind.call(&["HELLO", version]).await);
            assert_eq!(without_id(client.call(&["HELLO", version]).await), theirs, "{engine}");
            let theirs = behind.call(&["MODULE", "LIST"]).await;
            assert_eq!(client.call(&["MODULE", "LIST"]).await, theirs, "{engine}");
            let list: &[&str] = &["MODULE", "LIST"];
            let replies = client.pipeline(&[&["MULTI"], list, &["EXEC"]]).await;
            assert_eq!(modules(&replies[2].items()[0]), modules(&theirs), "{engine}");
        }
        let (_, said) = crate::redis::acl::doctor(&["--redis", &redis.url()]).await;
        assert!(said.contains(&format!("redis version\" \"{name}")), "{said}");
        let log = guard.server.process.stderr();
        assert!(log.contains(&format!("server={name}")), "{log}");
    }
}

/// Valkey closes databases to a user. A script is kept to those of the guard, whatever ran before.
#[tokio::test]
async fn a_script_enters_no_database_that_is_closed_to_the_guard() {
    let redis = Redis::newer("valkey-9.1").await;
    let user = ["ACL", "SETUSER", "guard", "on", ">s3cret", "~*", "&*", "+@all", "db=0,2"];
    redis.run::<()>(&user).await;
    let url = format!("redis://guard:s3cret@{}", redis.address());
    let guard = port(&bare_open_setup(&url)).await;
    let mut client = RespClient::connect(&guard.address).await;
    let set = "redis.call('SELECT', ARGV[1]) redis.call('SET', 'a', 'x') return 'done'";
    let mut owner = RespClient::connect(&redis.address()).await;
    for _ in 0..2 {
        for (db, is_open) in [("0", true), ("1", false), ("2", true), ("15", false)] {
            let reply = client.call(&["EVAL", set, "0", db]).await;
            assert_eq!(reply == Resp::bulk("done"), is_open, "{db}: {reply:?}");
            if !is_open {
                let text = reply.expect_error("DENIED");
                assert!(text.contains("selected a database that is closed to the guard"), "{text}");
                client.call(&["SELECT", db]).await.expect_error("DENIED");
            }
            owner.call(&["SELECT", db]).await;
            let found = owner.call(&["DEL", "a"]).await;
            assert_eq!(found, Resp::Integer(i64::from(is_open)), "{db}");
        }
        // A command that widens the user, in a transaction and alone.
        client.call(&["SET", "k", "x"]).await;
        let moved: &[&str] = &["MOVE", "k", "1"];
        let copied: &[&str] = &["COPY", "k", "k", "DB", "1"];
        let sorted: &[&str] = &["SORT", "l", "BY", "w_*"];
        let replies = client.pipeline(&[sorted, &["MULTI"], moved, copied, &["EXEC"], moved]).await;
        for reply in [&replies[2], &replies[3], &replies[5]] {
            reply.expect_error("NOPERM");
        }
        replies[4].expect_error("EXECABORT");
        owner.call(&["SELECT", "1"]).await;
        assert_eq!(owner.call(&["DBSIZE"]).await, Resp::Integer(0));
    }
}

/// Without the right to SELECT, the guard cannot find out.
#[tokio::test]
async fn a_port_that_cannot_know_its_databases_does_not_start() {
    let redis = Redis::newer("valkey-9.1").await;
    redis.run::<()>(&["ACL", "SETUSER", "guard", "on", ">g", "~*", "&*", "+@all", "-select"]).await;
    let setup = bare_open_setup(&format!("redis://guard:g@{}", redis.address()));
    let said = setup.refused().await;
    let reason = "the databases that the guard's user may enter are unknown";
    let is_named =
        said.stderr.contains(reason) && said.stderr.contains("ACL SETUSER guard +select");
    assert!(said.code == 1 && is_named, "{said:?}");
    redis.run::<()>(&["ACL", "SETUSER", "guard", "+select"]).await;
    port(&setup).await;
}

/// A server with all databases open is used as before, by a user with the least rights.
#[tokio::test]
async fn databases_that_are_open_to_the_guard_are_open_to_scripts() {
    for (engine, redis) in Redis::every().await {
        make_guards_user(&redis).await;
        let url = format!("redis://guard:s3cret@{}", redis.address());
        let guard = port(&bare_open_setup(&url)).await;
        let mut client = RespClient::connect(&guard.address).await;
        let set = "redis.call('SELECT', ARGV[1]) return redis.call('SET', 'a', 'x')";
        for db in ["0", "15"] {
            let reply = client.call(&["EVAL", set, "0", db]).await;
            assert_eq!(reply, Resp::simple("OK"), "{engine} {db}");
        }
        for words in [&["ROLE"][..], &["LASTSAVE"]] {
            let reply = client.call(words).await;
            assert!(reply.error().is_none(), "{engine} {words:?}: {reply:?}");
        }
    }
}

/// A server is upgraded in place, while guard and lock server run. Marks and leases stay; the guard
/// knows the commands of the server that it has now.
#[tokio::test]
async fn a_server_of_another_version_takes_over() {
    for (engine, name, command) in [
        ("redis-8.2", "8.2.3", &["VADD", "orders:1:v", "VALUES", "1", "1", "a"][..]),
        ("valkey-9.1", "9.1.2", &["DELIFEQ", "orders:1:v", "x"]),
    ] {
        let mut redis = Redis::of_debian().await;
        let server = Setup::lock_server(&redis.url()).start().await;
        let guard = port(&setup(&redis.url())).await;
        let [old, new] = [5, 6].map(|token| Grant::new(token, "1"));
        let granted = server.locks().grant("jobs", 600_000).await;
        let mut client = RespClient::fenced(&guard.address, &new.credential).await;
        let before = client.call(command).await;
        assert!(before.error().is_some_and(|text| text.contains("unknown command")), "{before:?}");
        redis.upgrade(engine).await;
        until_true("the new server to be verified", || async {
            let mut client = RespClient::connect(&guard.address).await;
            let Ok(Resp::Array(hello)) = client.try_call(&["HELLO", "2"]).await else {
                return false;
            };
            hello.contains(&Resp::bulk(name))
                && client.try_call(&["AUTH", "fence", &new.credential]).await.is_ok()
                && matches!(client.try_call(command).await, Ok(Resp::Integer(_)))
        })
        .await;
        let mut late = RespClient::connect(&guard.address).await;
        late.call(&["AUTH", "fence", &old.credential]).await.expect_error("FENCED");
        let renew = json!({"lease_id": granted.lease_id, "ttl_ms": 600_000});
        until_true("the lease to be renewed", || async {
            let reply = server.locks().try_post("jobs", "renew", renew.clone()).await;
            reply.is_ok_and(|reply| reply.status == 200)
        })
        .await;
    }
}

/// While a server loads its data, its INFO says that it keeps no append-only file.
#[tokio::test]
async fn a_server_that_loads_is_not_said_to_forget() {
    for (engine, mut redis) in Redis::every().await {
        let keys: Vec<String> = (0..3000).map(|number| format!("k{number}")).collect();
        let pairs: Vec<&str> = keys.iter().flat_map(|key| [key.as_str(), key.as_str()]).collect();
        redis.run::<()>(&[&["MSET"][..], &pairs].concat()).await;
        redis.run::<String>(&["BGREWRITEAOF"]).await;
        until_true("the file to be rewritten", || async {
            let info: String = redis.run(&["INFO", "persistence"]).await;
            info.contains("aof_rewrite_in_progress:0") && info.contains("aof_base_size:")
        })
        .await;
        redis.set("key-load-delay", "1000").await;
        redis.set("loading-process-events-interval-bytes", "1024").await;
        let guard = port(&setup(&redis.url())).await;
        redis.start_again().await;
        let log = guard.server.process.stderr();
        assert!(log.contains("still loading"), "{engine} loads too fast: {log}");
        assert!(!log.contains("append-only"), "{engine}: {log}");
    }
}
