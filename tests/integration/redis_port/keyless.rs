//! Every listed command without keys replies as Redis does, whatever its connection was used for.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};

use super::{port, setup};

const PAGE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/redis-commands.md"));

/// Commands of the page that touch no key, one a line, with arguments that Redis takes.
const COMMANDS: &str = "\
ACL WHOAMI
CLIENT CACHING YES
CLIENT GETNAME
CLIENT GETREDIR
CLIENT ID
CLIENT INFO
CLIENT LIST
CLIENT LIST TYPE normal
CLIENT LIST ID 0
CLIENT LIST ID x
CLIENT NO-TOUCH ON
CLIENT SETNAME me
CLIENT TRACKING OFF
CLIENT TRACKINGINFO
CLIENT UNBLOCK 9999
CLIENT UNBLOCK x
COMMAND
COMMAND COUNT
COMMAND DOCS get
COMMAND GETKEYS get a
COMMAND GETKEYSANDFLAGS get a
COMMAND INFO get
COMMAND LIST
CONFIG GET maxmemory-policy
CONFIG GET databases save
CLUSTER INFO
CLUSTERSCAN 0
DBSIZE
DISCARD
ECHO a
EXEC
FUNCTION DUMP
FUNCTION LIST
FUNCTION STATS
HELLO 2
INFO server
KEYS open:*
LASTSAVE
LOLWUT
MEMORY DOCTOR
MEMORY MALLOC-STATS
MEMORY STATS
MODULE LIST
MULTI
PING
PSUBSCRIBE other.*
PUBLISH other x
PUBSUB CHANNELS
PUBSUB CHANNELS other*
PUBSUB NUMPAT
PUBSUB NUMSUB other
PUBSUB SHARDCHANNELS
PUBSUB SHARDNUMSUB other
PUNSUBSCRIBE other.*
QUIT
RANDOMKEY
READONLY
RESET
ROLE
SCAN 0
SCRIPT EXISTS a
SCRIPT LOAD return
SELECT 1
SPUBLISH other x
SSUBSCRIBE other
SUBSCRIBE other
SUNSUBSCRIBE other
TIME
UNSUBSCRIBE other
UNWATCH
WAIT 0 0
WAITAOF 0 0 0";

/// The guard's own, and those of a later Redis that differ by design.
const OTHERS: [&str; 4] = ["AUTH", "FENCE", "CLIENT SETINFO", "SCRIPT SHOW"];

/// A change of the database would take the watched keys away; see redis-connections.md.
const DIFFERENCES: [(&str, &str); 1] = [("watch", "SELECT 1")];

/// A Valkey takes READONLY without a cluster, and no id 0; the port is like Redis.
const DIFFERENCES_OF_VALKEY: [&str; 2] = ["CLIENT LIST ID 0", "READONLY"];

/// Commands whose replies are compared word by word, and not only in their kind.
const EXACT: [&str; 9] = [
    "ACL WHOAMI",
    "CLUSTER INFO",
    "CONFIG GET databases save",
    "CONFIG GET maxmemory-policy",
    "ECHO a",
    "LASTSAVE",
    "MODULE LIST",
    "PING",
    "READONLY",
];

/// Earlier uses of a connection, as commands.
const STATES: [(&str, &[&[&str]]); 7] = [
    ("fresh", &[]),
    ("transaction", &[&["MULTI"], &["SET", "open:a", "1"], &["EXEC"]]),
    ("script", &[&["EVAL", "return redis.call('GET', KEYS[1])", "1", "open:a"]]),
    ("script without keys", &[&["EVAL", "return 1", "0"]]),
    ("watch", &[&["WATCH", "open:a"]]),
    ("blocking", &[&["RPUSH", "open:list", "x"], &["BLPOP", "open:list", "0"]]),
    ("subscribed", &[&["SUBSCRIBE", "news"]]),
];

/// The kind of a reply, and of an error its word.
fn kind(reply: &Resp) -> String {
    let word = reply.error().and_then(|text| text.split(' ').next());
    let debug = format!("{reply:?}");
    let name = debug.split(['(', ' ']).next().unwrap_or_default().to_owned();
    word.map_or(name, |word| format!("error {word}"))
}

#[test]
fn every_listed_command_without_keys_is_sent() {
    let row = |line: &'static str| {
        let (_, rest) = line.strip_prefix("- *")?.split_once("*; ")?;
        let (keys, names) = rest.rsplit_once(": ")?;
        let is_keyless = keys.starts_with("none") || keys.starts_with("the names of all");
        is_keyless.then_some(names)
    };
    let rows = PAGE.lines().filter_map(row);
    let listed: Vec<&str> = rows.flat_map(|names| names.split(", ")).collect();
    assert!(listed.len() > 50, "{listed:?}");
    for name in listed {
        let is_sent =
            COMMANDS.lines().any(|line| format!("{line} ").starts_with(&format!("{name} ")));
        assert!(is_sent || OTHERS.contains(&name), "{name} is not sent");
    }
}

#[tokio::test]
async fn every_command_without_keys_replies_as_redis_in_every_state() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&["--rule", "open:**=@open"])).await;
    let grant = Grant::new(5, "1");
    redis.run::<String>(&["SET", "open:a", "1"]).await;
    let mut wrong = Vec::new();
    let is_valkey = redis.is_valkey().await;
    for (state, before) in STATES {
        for line in COMMANDS.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let mut replies = Vec::new();
            for mut client in [
                RespClient::connect(&redis.address()).await,
                RespClient::fenced(&guard.address, &grant.credential).await,
            ] {
                for words in before {
                    let reply = client.call(words).await;
                    assert!(reply.error().is_none(), "{state}: {words:?}: {reply:?}");
                }
                replies.push(client.call(&words).await);
            }
            // An error in subscriber mode names a subcommand otherwise.
            let is_exact = EXACT.contains(&line) && state != "subscribed";
            let same = match is_exact {
                true => replies[0] == replies[1],
                false => kind(&replies[0]) == kind(&replies[1]),
            };
            let is_known = DIFFERENCES.contains(&(state, line))
                || is_valkey && state != "subscribed" && DIFFERENCES_OF_VALKEY.contains(&line);
            if same == is_known {
                wrong.push(format!(
                    "{state}: {line}: {} but {}",
                    kind(&replies[1]),
                    kind(&replies[0])
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A client sees itself: the id that HELLO gave it, and its name.
#[tokio::test]
async fn a_client_is_shown_as_the_guard_knows_it() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let mut other = RespClient::connect(&guard.address).await;
    other.call(&["CLIENT", "SETNAME", "other"]).await;
    let mut client = RespClient::connect(&guard.address).await;
    let hello = client.call(&["HELLO", "2", "SETNAME", "me"]).await.items().to_vec();
    let at = hello.iter().position(|item| *item == Resp::bulk("id")).unwrap();
    let id = hello[at + 1].clone().integer();
    assert_eq!(client.call(&["CLIENT", "ID"]).await, Resp::Integer(id));
    for words in [&["CLIENT", "INFO"][..], &["CLIENT", "LIST"]] {
        let line = client.call(words).await.text();
        assert!(line.starts_with(&format!("id={id} addr=127.0.0.1:")), "{line}");
        assert!(line.contains(" name=me ") && line.lines().count() == 1, "{line}");
    }
    let words = ["CLIENT", "LIST", "ID", &(id + 1).to_string()];
    assert_eq!(client.call(&words).await.text(), "");
    client.call(&["CONFIG", "GET", "requirepass"]).await.expect_error("DENIED");
    client.call(&["CONFIG", "GET", "*"]).await.expect_error("DENIED");
}

/// Nothing of Fencepost is listed, though its keys and channels are there.
#[tokio::test]
async fn own_names_are_not_listed() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&["--default-rule", "open"])).await;
    let open = port(&super::bare_open_setup(&redis.url())).await;
    let mut witness = RespClient::connect(&redis.address()).await;
    witness.call(&["SUBSCRIBE", "{fence:default}:c:1", "news"]).await;
    let grant = Grant::new(5, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    client.call(&["SET", "open:a", "1"]).await;
    let mut without = RespClient::connect(&open.address).await;
    let mut eager = RespClient::fenced(&guard.address, &grant.credential).await;
    eager.pipeline(&[&["MULTI"], &["EXEC"]]).await;
    for client in [&mut client, &mut eager, &mut without] {
        for _ in 0..10 {
            assert_eq!(client.call(&["RANDOMKEY"]).await, Resp::bulk("open:a"));
        }
        let a = Resp::Array(vec![Resp::bulk("open:a")]);
        assert_eq!(client.call(&["KEYS", "*"]).await, a);
        let scanned = client.call(&["SCAN", "0", "COUNT", "1000"]).await;
        assert_eq!(scanned, Resp::Array(vec![Resp::bulk("0"), a]));
        let news = Resp::Array(vec![Resp::bulk("news")]);
        assert_eq!(client.call(&["PUBSUB", "CHANNELS"]).await, news);
        let replies = client
            .pipeline(&[&["GET", "open:a"], &["KEYS", "o*"], &["GET", "open:a"], &["DBSIZE"]])
            .await;
        assert_eq!(replies[0], replies[2]);
        assert!(matches!(replies[3], Resp::Integer(_)), "{replies:?}");
    }
    // Where a rule protects keys, their names are read with a token.
    let mut client = RespClient::connect(&guard.address).await;
    client.call(&["KEYS", "*"]).await.expect_error("NOTOKEN");
}
