//! One script of commands before one Redis, before a cluster and, where no token is concerned, at
//! Redis itself: a session replies alike whatever is behind it, but for the differences that are
//! listed here.

use fence_tests::redis_cluster::RedisCluster;
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};

use super::{Port, port, setup};

/// Clients that receive the same commands in lock-step.
struct Clients {
    one: RespClient,
    cluster: RespClient,
}

impl Clients {
    async fn connect(one: &Port, cluster: &Port) -> Self {
        Self {
            one: RespClient::connect(&one.address).await,
            cluster: RespClient::connect(&cluster.address).await,
        }
    }

    /// Sends the command to both, and returns the reply, which must be the same.
    async fn same(&mut self, words: &[&str]) -> Resp {
        let one = self.one.call(words).await;
        let cluster = self.cluster.call(words).await;
        assert_eq!(comparable(words, &one), comparable(words, &cluster), "{words:?}");
        one
    }

    /// Sends a command that only one Redis serves; before a cluster the error has this code.
    async fn only_one(&mut self, words: &[&str], code: &str) {
        let one = self.one.call(words).await;
        assert!(one.error().is_none(), "{words:?}: {one:?}");
        self.cluster.call(words).await.expect_error(code);
    }
}

/// The reply without what differs from connection to connection: ids, addresses and the version.
fn comparable(words: &[&str], reply: &Resp) -> Resp {
    match reply {
        Resp::Integer(_) if words == ["CLIENT", "ID"] => Resp::Integer(0),
        Resp::Bulk(_) if words[0] == "CLIENT" => {
            let text = reply.text();
            let varies = |field: &&str| {
                !["id=", "txt:id=", "addr=", "laddr="].iter().any(|name| field.starts_with(name))
            };
            Resp::bulk(text.split(' ').filter(varies).collect::<Vec<_>>().join(" "))
        }
        Resp::Map(pairs) if words[0] == "HELLO" => {
            let varies = |name: &Resp| [Resp::bulk("id"), Resp::bulk("version")].contains(name);
            Resp::Map(pairs.iter().filter(|(name, _)| !varies(name)).cloned().collect())
        }
        Resp::Array(items) if words[0] == "HELLO" => {
            let pairs = items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            comparable(words, &Resp::Map(pairs))
        }
        reply => reply.clone(),
    }
}

/// Refusals; none of them changes the tokens that are held.
async fn refusals_are_the_same(clients: &mut Clients, grant: &Grant, other_key: &str) {
    let key = grant.key("a");
    for words in [
        &["AUTH"][..],
        &["AUTH", "nonsense"],
        &["AUTH", "fence", "nonsense"],
        &["AUTH", "fence", "lock=nonsense"],
        &["AUTH", "a", "b", "c"],
        &["HELLO", "4"],
        &["HELLO", "x"],
        &["HELLO", "3", "NONSENSE"],
        &["HELLO", "3", "AUTH", "fence"],
        &["HELLO", "3", "AUTH", "fence", "nonsense"],
        &["HELLO", "3", "AUTH", "fence", "nonsense", "SETNAME", "bad name"],
        &["HELLO", "3", "SETNAME"],
        &["CLIENT", "SETNAME", "bad name"],
        &["CLIENT", "NONSENSE"],
        &["CLIENT", "LIST", "TYPE", "nonsense"],
        &["CLIENT", "UNBLOCK", "nonsense"],
        &["FENCE"],
        &["FENCE", "SET"],
        &["FENCE", "SET", "nonsense"],
        &["FENCE", "CLEAR", ""],
        &["FENCE", "SHOW", "x"],
        &["FENCE", "nonsense"],
        &["FENCE", "nonsense", "GET", &key],
        &["FENCE", &grant.credential, "FENCE", "SHOW"],
        &["FENCE", &grant.credential, "AUTH", &grant.credential],
        &["FENCE", &grant.credential, "NONSENSE"],
        &["FENCE", &grant.credential, "SET", other_key, "1"],
        &["SELECT", "nonsense"],
        &["NONSENSE", "a"],
        &["GET"],
        &["GET", "{fence:x}:y"],
        &["DEBUG", "SLEEP", "0"],
    ] {
        assert!(clients.same(words).await.error().is_some(), "{words:?}");
        assert_eq!(clients.same(&["FENCE", "SHOW"]).await.items(), [], "{words:?}");
    }
}

/// Login, tokens, names and protocol.
async fn identity_is_the_same(one: &Port, cluster: &Port) {
    let grant = Grant::new(10, "1");
    let other = Grant::new(11, "2");
    let key = grant.key("a");
    let other_key = other.key("a");
    let mut clients = Clients::connect(one, cluster).await;
    let bad_name = ["HELLO", "3", "AUTH", "fence", &grant.credential, "SETNAME", "bad name"];
    clients.same(&bad_name).await.expect_error("ERR");
    // Nothing of it took effect: no token, no name, the protocol of before.
    assert_eq!(clients.same(&["FENCE", "SHOW"]).await.items(), []);
    assert_eq!(clients.same(&["CLIENT", "GETNAME"]).await, Resp::Null);
    assert!(matches!(clients.same(&["HELLO"]).await, Resp::Array(_)));
    clients.same(&["SET", &key, "1"]).await.expect_error("NOTOKEN");
    refusals_are_the_same(&mut clients, &grant, &other_key).await;
    for words in [
        &["FENCE", &grant.credential, "SET", &key, "1"][..],
        &["FENCE", "SHOW"],
        &["FENCE", "SET", &grant.credential],
        &["AUTH", "fence", &grant.credential],
        &["FENCE", "SET", &other.credential],
        &["FENCE", "SHOW"],
        &["SET", &other_key, "2"],
        &["GET", &key],
        &["FENCE", "CLEAR", "orders/2"],
        &["SET", &other_key, "2"],
        &["HELLO", "3", "AUTH", "fence", &grant.credential, "SETNAME", "me"],
        &["FENCE", "SHOW"],
        &["GET", &grant.key("none")],
        &["CLIENT", "GETNAME"],
        &["CLIENT", "INFO"],
        &["CLIENT", "LIST"],
        &["CLIENT", "LIST", "TYPE", "pubsub"],
        &["CLIENT", "ID"],
        &["CLIENT", "SETINFO", "LIB-NAME", "x"],
        &["CLIENT", "UNBLOCK", "123456789"],
        &["ACL", "WHOAMI"],
        &["MODULE", "LIST"],
        &["SELECT", "0"],
        &["PING"],
        &["ECHO", "a"],
        &["HELLO", "2"],
        &["FENCE", "SHOW"],
        &["FENCE", "CLEAR"],
        &["FENCE", "HELP"],
        &["GET", &key],
        &["RESET"],
        &["CLIENT", "GETNAME"],
        &["HELLO"],
        &["QUIT"],
    ] {
        clients.same(words).await;
    }
    assert_eq!(clients.one.until_closed().await, []);
    assert_eq!(clients.cluster.until_closed().await, []);
}

/// Commands that need one Redis, or a connection of their own.
async fn differences_are_known(one: &Port, cluster: &Port) {
    let grant = Grant::new(20, "1");
    let key = grant.key("list");
    let mut clients = Clients::connect(one, cluster).await;
    clients.same(&["AUTH", &grant.credential]).await;
    for (words, code) in [
        (&["SELECT", "1"][..], "ERR"),
        (&["SELECT", "0"], ""),
        (&["CONFIG", "GET", "save"], "DENIED"),
        (&["WATCH", &key], "DENIED"),
        (&["UNWATCH"], "DENIED"),
        (&["MULTI"], "DENIED"),
        (&["DISCARD"], "DENIED"),
        (&["EVAL", "return 1", "0"], "DENIED"),
        (&["BLPOP", &key, "0.01"], "DENIED"),
        (&["SCAN", "0"], "DENIED"),
        (&["CLIENT", "TRACKING", "OFF"], "DENIED"),
    ] {
        match code {
            "" => drop(clients.same(words).await),
            code => clients.only_one(words, code).await,
        }
    }
    let stale = Grant::new(19, "1");
    // Before one Redis a login registers the token; before a cluster its first command does.
    clients.same(&["SET", &grant.key("a"), "1"]).await;
    let mut late = Clients::connect(one, cluster).await;
    late.one.call(&["AUTH", &stale.credential]).await.expect_error("FENCED");
    assert_eq!(late.cluster.call(&["AUTH", &stale.credential]).await, Resp::simple("OK"));
    late.cluster.call(&["SET", &grant.key("a"), "1"]).await.expect_error("FENCED");
}

/// In observe mode what is no credential holds no token, and commands pass.
async fn observe_mode_is_the_same(one: &Port, cluster: &Port) {
    let grant = Grant::new(30, "1");
    let mut clients = Clients::connect(one, cluster).await;
    for words in [
        &["AUTH", "nonsense"][..],
        &["FENCE", "SET", "nonsense"],
        &["FENCE", "SHOW"],
        &["SET", &grant.key("a"), "1"],
        &["FENCE", "nonsense", "GET", &grant.key("a")],
        &["HELLO", "3", "AUTH", "fence", "nonsense", "SETNAME", "me"],
        &["FENCE", &grant.credential, "GET", &grant.key("a")],
        &["AUTH", &grant.credential],
        &["FENCE", "SHOW"],
        &["GET", &grant.key("a")],
    ] {
        let reply = clients.same(words).await;
        assert!(reply.error().is_none(), "{words:?}: {reply:?}");
    }
}

/// Asserts that Redis itself replies the same where no token is concerned.
async fn redis_replies_alike(one: &Port, redis: &Redis) {
    let mut guarded = RespClient::connect(&one.address).await;
    let mut direct = RespClient::connect(&redis.address()).await;
    for words in [
        &["HELLO", "3", "SETNAME", "bad name"][..],
        &["CLIENT", "GETNAME"],
        &["HELLO", "3", "NONSENSE", "SETNAME", "me"],
        &["CLIENT", "GETNAME"],
        &["HELLO", "4"],
        &["CLIENT", "SETNAME", "bad name"],
        &["SELECT", "nonsense"],
        &["CLIENT", "LIST", "TYPE", "nonsense"],
        &["CLIENT", "UNBLOCK", "123456789"],
        &["PING"],
        &["HELLO", "3", "SETNAME", "me"],
        &["CLIENT", "GETNAME"],
        &["RESET"],
        &["CLIENT", "GETNAME"],
    ] {
        let reply = direct.call(words).await;
        let guarded = guarded.call(words).await;
        assert_eq!(comparable(words, &guarded), comparable(words, &reply), "{words:?}");
    }
}

#[tokio::test]
async fn a_session_is_the_same_before_one_redis_and_before_a_cluster() {
    let redis = Redis::start().await;
    let nodes = RedisCluster::start().await;
    let one = port(&setup(&redis.url())).await;
    let cluster = port(&setup(&nodes.url())).await;
    redis_replies_alike(&one, &redis).await;
    identity_is_the_same(&one, &cluster).await;
    differences_are_known(&one, &cluster).await;
    let one = port(&setup(&redis.url()).args(&["--mode", "observe"])).await;
    let cluster = port(&setup(&nodes.url()).args(&["--mode", "observe"])).await;
    observe_mode_is_the_same(&one, &cluster).await;
}
