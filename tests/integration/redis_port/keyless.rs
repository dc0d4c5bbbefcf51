//! Every listed command without keys replies as Redis does, whatever its connection was used for.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};

use super::{port, setup};

const PAGE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/redis-commands.md"));

/// Commands of the page that touch no key, one a line, with arguments that Redis takes.
const COMMANDS: &str = "\
CLIENT CACHING YES
CLIENT GETNAME
CLIENT GETREDIR
CLIENT ID
CLIENT INFO
CLIENT NO-TOUCH ON
CLIENT SETNAME me
CLIENT TRACKING OFF
CLIENT TRACKINGINFO
COMMAND
COMMAND COUNT
COMMAND DOCS get
COMMAND GETKEYS get a
COMMAND GETKEYSANDFLAGS get a
COMMAND INFO get
COMMAND LIST
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
MULTI
PING
PSUBSCRIBE other.*
PUBLISH other x
PUBSUB CHANNELS other*
PUBSUB NUMPAT
PUBSUB NUMSUB other
PUBSUB SHARDCHANNELS
PUBSUB SHARDNUMSUB other
PUNSUBSCRIBE other.*
QUIT
RANDOMKEY
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

/// What a connection was used for before, as commands.
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
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (name, _, keys) = (cells.next()?, cells.next()?, cells.next()?);
        (keys.starts_with("none") || keys.starts_with("the names of all")).then(|| name.to_owned())
    };
    let listed: Vec<String> = PAGE.lines().filter_map(row).collect();
    assert!(listed.len() > 50, "{listed:?}");
    for name in listed {
        let is_sent =
            COMMANDS.lines().any(|line| format!("{line} ").starts_with(&format!("{name} ")));
        assert!(is_sent || OTHERS.contains(&name.as_str()), "{name} is not sent");
    }
}

#[tokio::test]
async fn every_command_without_keys_replies_as_redis_in_every_state() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&["--rule", "open:**=@open"])).await;
    let grant = Grant::new(5, "1");
    redis.run::<String>(&["SET", "open:a", "1"]).await;
    let mut wrong = Vec::new();
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
            let same = match line {
                "ROLE" | "LASTSAVE" | "PING" | "ECHO a" => replies[0] == replies[1],
                _ => kind(&replies[0]) == kind(&replies[1]),
            };
            if same == DIFFERENCES.contains(&(state, line)) {
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
