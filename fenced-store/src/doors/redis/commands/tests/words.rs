//! Test that refusals that Redis would give have Redis' own words.

use super::*;

/// Lines that Redis refuses, for reasons that the guard checks too.
const REFUSED: &str = "\
GET
get a b
SET a
MGET
CLIENT
CLIENT SETNAME
client setname a b
OBJECT ENCODING
XGROUP CREATE x
COPY a
FENCES a
NOSUCH
NOSUCH a b c
CLIENT NOSUCH
OBJECT NoSuch a
EVAL return 1x
EVAL return x
EVAL return -1
EVAL return 2 a
EVAL return 01 a
LMPOP 0 a LEFT
LMPOP x a LEFT
LMPOP -1 a LEFT
ZMPOP 0 a MIN
SINTERCARD 0 a
SINTERCARD x a
ZUNION 0 a
ZUNION x a
ZUNION 3 a b
ZUNIONSTORE d 0 a
ZINTER 0 a
ZDIFFSTORE d 0 a
ZINTERCARD 0 a
BLMPOP 1 0 a LEFT
SORT a STORE
SORT a GET
SORT a LIMIT 1
SORT a NOSUCH
SORT_RO a STORE b
XREAD STREAMS a
XREAD STREAMS a b 0
XREAD COUNT 1 NOSUCH a 0
XREAD NOACK STREAMS a
XREAD GROUP g c STREAMS a 0
XREAD BLOCK
XREAD a b c
XREADGROUP GROUP g c STREAMS a b 0
XREADGROUP GROUP g c NOSUCH a 0 0
GEORADIUS g 1 1 1 km STORE
GEORADIUS g 1 1 1 km NOSUCH
GEORADIUSBYMEMBER g m 1 km NOSUCH
CLIENT TRACKING ON NOSUCH";

#[test]
fn refusals_are_redis_own_words() {
    let mut redis = Redis::start();
    let table = redis.table();
    // Redis parses the options only if the key exists.
    redis.line("GEOADD g 1 1 m").unwrap();
    let is_7_0 = redis.is_7_0();
    let mut different = Vec::new();
    for line in REFUSED.lines() {
        let theirs = redis.line(line).expect_err(line);
        let ours = plan_line(&table, line).expect_err(line);
        // Later versions use other words in part.
        if ours.trim_end() != theirs.trim_end() && is_7_0 {
            different.push(format!("{line}\n  Redis: {theirs}\n  guard: {ours}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn long_and_broken_words_are_cut_and_kept_on_one_line() {
    let mut redis = Redis::start();
    let table = redis.table();
    let long = "x".repeat(1000);
    for words in [[long.as_str(), "a"], ["NOSUCH", long.as_str()], ["CLIENT", long.as_str()]] {
        let theirs = redis.words(&words).expect_err("unknown");
        let ours = plan(&table, &words.map(str::as_bytes)).expect_err("unknown");
        assert_eq!(ours.trim_end(), theirs.trim_end());
    }
    let error = plan(&table, &[b"a\r\n+OK", b"\xff\r\n"]).unwrap_err();
    assert!(!error.contains(['\r', '\n']), "{error:?}");
    let error = plan(&table, &[b"GET", b"{fence:x}\r\n+OK"]).unwrap_err();
    assert!(!error.contains(['\r', '\n']), "{error:?}");
    assert!(plan(&table, &[]).is_err());
    assert!(plan(&table, &[b""]).is_err());
}
