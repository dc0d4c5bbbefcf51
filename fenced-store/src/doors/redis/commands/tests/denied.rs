//! Refused commands, the handling of the others, and tricks that must not work.

use super::*;

/// Denied commands, one a line.
const DENIED: &str = "\
SwapDB 0 1
SHUTDOWN
DEBUG SLEEP 0
config set dir /
acl setuser x
MONITOR
REPLICAOF NO ONE
SLAVEOF a 1
SYNC
PSYNC ? -1
FAILOVER
SAVE
BGSAVE
BGREWRITEAOF
MODULE LOAD x
SLOWLOG GET
LATENCY RESET
MIGRATE h 1 k 0 1
RESTORE-ASKING k 0 x
SCRIPT FLUSH
script kill
SCRIPT DEBUG YES
FUNCTION LOAD x
FUNCTION DELETE x
FUNCTION FLUSH
FUNCTION RESTORE x
FUNCTION KILL
CLIENT KILL ID 1
CLIENT PAUSE 1
CLIENT UNPAUSE
CLIENT REPLY OFF
CLIENT NO-EVICT ON
MEMORY PURGE
PFDEBUG GETREG a
REPLCONF a
SORT_RO a GET *
SORT a BY {*}x
SORT a GET x{fen*->f
SORT a BY x GET {fence:default}:*
CLIENT TRACKING ON REDIRECT 1
CLIENT TRACKING ON BCAST
CLIENT TRACKING ON BCAST PREFIX a PREFIX {fe
CLIENT TRACKING ON PREFIX {fence:default}: BCAST
SUBSCRIBE news {fence:default}:c:1
subscribe app1:{fence:default}:c:1
SSUBSCRIBE {fence:default}:c:1
PSUBSCRIBE *
PSUBSCRIBE news.* {fence:*
PSUBSCRIBE __key*
SUBSCRIBE __keyspace@0__:{fence:default}:token
PUBLISH {fence:default}:c:1 x
SPUBLISH {fence:default}:c:1 x
PUBSUB NUMSUB a {fence:default}:c:1
PUBSUB SHARDNUMSUB {fence:default}:c:1
GET app1:{fence:default}:l:a";

fn handling(table: &CommandTable, line: &str) -> (Handling, Touches) {
    let (plan, _) = plan_line(table, line).unwrap_or_else(|error| panic!("{line}: {error}"));
    (plan.handling, plan.touches)
}

#[test]
fn dangerous_commands_are_denied_in_any_spelling() {
    let mut redis = Redis::start();
    let table = redis.table();
    for line in DENIED.lines() {
        let error = plan_line(&table, line).expect_err(line);
        assert!(error.starts_with("DENIED "), "{line}: {error}");
    }
}

#[test]
fn everything_else_travels_as_it_has_to() {
    use Handling as H;
    let mut redis = Redis::start();
    let table = redis.table();
    let local = |local| (H::Local(local), Touches::Nothing);
    for (line, expected) in [
        ("get a", (H::Shared, Touches::Keys)),
        ("PING", (H::Shared, Touches::Nothing)),
        ("PUBLISH c m", (H::Shared, Touches::Nothing)),
        ("SPUBLISH c m", (H::Shared, Touches::Nothing)),
        ("SSUBSCRIBE c", (H::Subscribe, Touches::Nothing)),
        ("PSUBSCRIBE news.* __keyspace@0__:orders:*", (H::Subscribe, Touches::Nothing)),
        ("SUBSCRIBE __keyevent@0__:expired", (H::Subscribe, Touches::Keyspace)),
        ("PSUBSCRIBE __keyevent@0__:*", (H::Subscribe, Touches::Keyspace)),
        ("PUBSUB CHANNELS news.*", (H::Shared, Touches::Nothing)),
        ("PUBSUB NUMSUB", (H::Shared, Touches::Nothing)),
        ("PUNSUBSCRIBE", (H::Unsubscribe, Touches::Nothing)),
        ("KEYS *", (H::Shared, Touches::Keyspace)),
        ("SCAN 0", (H::Shared, Touches::Keyspace)),
        ("DBSIZE", (H::Shared, Touches::Keyspace)),
        ("RANDOMKEY", (H::Shared, Touches::Keyspace)),
        ("FLUSHDB", (H::Shared, Touches::Everything)),
        ("flushall async", (H::Shared, Touches::Everything)),
        ("SORT a BY w_*", (H::Shared, Touches::NamedByData)),
        ("SORT_RO a GET # get {user*->f", (H::Shared, Touches::NamedByData)),
        ("SORT a BY nosort GET #", (H::Shared, Touches::Keys)),
        ("BLPOP a 0", (H::Own, Touches::Keys)),
        ("XREAD STREAMS a 0", (H::Shared, Touches::Keys)),
        ("XREAD BLOCK 0 STREAMS a 0", (H::Own, Touches::Keys)),
        ("XREADGROUP GROUP g c block 0 STREAMS a >", (H::Own, Touches::Keys)),
        ("XREADGROUP GROUP block c STREAMS a >", (H::Shared, Touches::Keys)),
        ("WAIT 1 0", (H::Own, Touches::Nothing)),
        ("CLIENT TRACKING ON NOLOOP", (H::Own, Touches::Nothing)),
        ("CLIENT TRACKING ON PREFIX a BCAST", (H::Own, Touches::Keyspace)),
        ("MULTI", (H::Multi, Touches::Nothing)),
        ("EXEC", (H::Exec, Touches::Nothing)),
        ("DISCARD", (H::Discard, Touches::Nothing)),
        ("WATCH a", (H::Watch, Touches::Keys)),
        ("UNWATCH", (H::Unwatch, Touches::Nothing)),
        ("EVAL return 0", (H::Script, Touches::Nothing)),
        ("EVAL return 0 x", (H::Script, Touches::Nothing)),
        ("FCALL_RO f 1 a", (H::Script, Touches::Keys)),
        ("SCRIPT LOAD return", (H::Shared, Touches::Nothing)),
        ("COMMAND", (H::Shared, Touches::Nothing)),
        ("COMMAND GETKEYS GET a", (H::Shared, Touches::Nothing)),
        ("CONFIG HELP", (H::Shared, Touches::Nothing)),
        ("AUTH p", local(Local::Auth)),
        ("hello", local(Local::Hello)),
        ("SELECT 1", local(Local::Select)),
        ("QUIT", local(Local::Quit)),
        ("RESET", local(Local::Reset)),
        ("CLIENT SETNAME n", local(Local::ClientSetName)),
        ("client getname", local(Local::ClientGetName)),
        ("CLIENT SETINFO LIB-NAME x", local(Local::ClientSetInfo)),
        ("CLIENT ID", local(Local::ClientId)),
        ("CLIENT INFO", local(Local::ClientInfo)),
        ("CLIENT LIST TYPE normal", local(Local::ClientList)),
        ("CLIENT UNBLOCK 1", local(Local::ClientUnblock)),
        ("CONFIG GET save", local(Local::ConfigGet)),
        ("ACL WHOAMI", local(Local::AclWhoAmI)),
        ("MODULE LIST", local(Local::ModuleList)),
        ("PUBSUB CHANNELS", (H::Shared, Touches::Nothing)),
        ("FENCE SHOW", local(Local::Fence)),
    ] {
        assert_eq!(handling(&table, line), expected, "{line}");
    }
}

/// Tricks by which Redis takes another key than a key spec, or a hasty parser, would find.
#[test]
fn keys_cannot_be_hidden() {
    let mut redis = Redis::start();
    let table = redis.table();
    let keys = |line: &str| keys_of(&table, line).unwrap_or_else(|error| vec![error]);
    // Redis' own key specs find the first STORE; Redis obeys the last.
    let line = "GEORADIUS g 1 1 1 km STORE a STORE b";
    assert_eq!(keys(line), ["r:g", "w:a", "w:b"]);
    assert_eq!(keys("GEORADIUS g 1 1 1 km STORE STORE STORE b"), ["r:g", "w:STORE", "w:b"]);
    assert_eq!(keys("GEORADIUSBYMEMBER g STORE 1 km STORE b"), ["r:g", "w:b"]);
    assert_eq!(keys("SORT a STORE x STORE y"), ["r:a", "w:x", "w:y"]);
    assert_eq!(keys("SORT a BY STORE GET BY STORE y"), ["r:a", "w:y"]);
    // They mistake a consumer's name for the keyword.
    let line = "XREADGROUP COUNT 1 GROUP g streams STREAMS k >";
    assert_eq!(keys(line), ["w:k"]);
    assert_eq!(
        keys("XREADGROUP GROUP streams streams STREAMS k streams > >"),
        ["w:k", "w:streams"]
    );
    // Redis compares words up to the first NUL.
    let words: Vec<&[u8]> = vec![b"SORT", b"a", b"store\0x", b"b"];
    assert_eq!(plan(&table, &words).unwrap().1.len(), 2);
    let words: Vec<&[u8]> = vec![b"GEORADIUS", b"g", b"1", b"1", b"1", b"km", b"STORE\0", b"b"];
    assert_eq!(plan(&table, &words).unwrap().1.len(), 2);
    let words: Vec<&[u8]> = vec![b"XREAD", b"BLOCK\0", b"1", b"STREAMS\0x", b"a", b"0"];
    assert_eq!(plan(&table, &words).unwrap().0.handling, Handling::Own);
    // Redis accepts a command in which a spec finds nothing.
    assert_eq!(keys("PFMERGE a"), ["w:a"]);
    // A read that may write counts as a write.
    assert_eq!(keys("PFCOUNT a b"), ["w:a", "w:b"]);
    assert_eq!(keys("BITFIELD a GET u8 0"), ["w:a"]);
}

/// The tricks above are real: Redis touches keys that its own key finder does not see.
#[test]
fn redis_itself_is_deceived() {
    let mut redis = Redis::start();
    redis.line("GEOADD g 1 1 m").unwrap();
    let trick = "GEORADIUS g 1 1 1 km STORE a STORE b";
    redis.line(trick).unwrap();
    assert_eq!(redis.line("EXISTS a"), Ok(Value::Int(0)));
    assert_eq!(redis.line("EXISTS b"), Ok(Value::Int(1)));
    redis.words(&["GEORADIUS", "g", "1", "1", "1", "km", "store\0x", "c"]).unwrap();
    assert_eq!(redis.line("EXISTS c"), Ok(Value::Int(1)));
}
