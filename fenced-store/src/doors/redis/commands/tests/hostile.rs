//! Commands with their words in hostile orders, and keys that must stay unchanged.

use super::*;

/// The guard's marks, another lock's data of every type, and a lock server's record.
const MARKS: &str = "{fence:default}:guard:marks";
const RECORD: &str = "{fence:default}:l:orders/1";
/// A key that nothing creates.
const MISSING: &str = "c:missing";
/// Content of every canary, and of nothing else.
const SECRET: &str = "50 secret";

/// Keys that no sample names, with their values.
pub(super) struct Canaries(Vec<(String, Value)>);

impl Canaries {
    /// Creates the keys of the samples anew, and canaries beside them: a copy of each (`c:l1`),
    /// marks and a record.
    pub(super) fn place(redis: &mut Redis) -> Self {
        redis.make_keys();
        let Value::Array(keys) = redis.line("KEYS *").unwrap() else { panic!("no keys") };
        let mut names = Vec::new();
        for key in keys {
            let key: String = redis::from_redis_value(key).unwrap();
            let mut copy = redis::cmd("RESTORE");
            let Value::BulkString(value) = redis.words(&["DUMP", &key]).unwrap() else { panic!() };
            copy.arg(format!("c:{key}")).arg(0).arg(value);
            copy.exec(&mut redis.connection).unwrap();
            names.push(format!("c:{key}"));
        }
        redis.words(&["HSET", MARKS, "orders/1", SECRET]).unwrap();
        redis.words(&["SET", RECORD, SECRET]).unwrap();
        names.extend([MARKS, RECORD, MISSING].map(str::to_owned));
        let dumped = |name: String| (name.clone(), dump(redis, &name));
        Self(names.into_iter().map(dumped).collect())
    }

    /// Returns the changed canaries.
    pub(super) fn changed(&self, redis: &mut Redis) -> Vec<&str> {
        let mut is_changed = |known: &&(String, Value)| dump(redis, &known.0) != known.1;
        self.0.iter().filter(|known| is_changed(known)).map(|(name, _)| name.as_str()).collect()
    }

    pub(super) fn check(&self, redis: &mut Redis, line: &str) {
        let changed = self.changed(redis);
        assert!(changed.is_empty(), "{changed:?} changed by a variant of {line}");
    }

    /// Checks that no reply has a canary's content.
    pub(super) fn check_reply(&self, words: &[&str], reply: &Result<Value, String>) {
        let shown = format!("{reply:?}");
        assert!(!shown.contains(SECRET), "{words:?} read a canary: {shown}");
    }
}

/// Returns value and time to live.
fn dump(redis: &mut Redis, name: &str) -> Value {
    let groups = redis.words(&["XINFO", "STREAM", name, "FULL"]);
    let whole = [
        redis.words(&["DUMP", name]).unwrap(),
        redis.words(&["PEXPIRETIME", name]).unwrap(),
        // Consumers have the time of their last use; their entries are in their lists.
        Value::Int(groups.map_or(0, |groups| format!("{groups:?}").matches("pel").count() as i64)),
    ];
    Value::Array(whole.to_vec())
}

/// Makes variants of a sample with its words repeated, replaced and prolonged: keywords twice,
/// canaries in every position and as the last word, wrong counts.
pub(super) fn variants(redis: &Redis, line: &str) -> Vec<Vec<String>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_key = |word: &str| redis.fixtures.iter().any(|f| f.contains(&format!(" {word} ")));
    let like = words.iter().skip(1).find(|word| is_key(word));
    let like = like.map_or("c:s1".to_owned(), |word| format!("c:{word}"));
    let mut all: Vec<Vec<String>> = Vec::new();
    let mut add = |words: &[&str]| all.push(words.iter().map(|word| (*word).to_owned()).collect());
    for canary in [MARKS, RECORD, like.as_str()] {
        for tail in [
            &[canary][..],
            &[canary, "1"],
            &["1", canary],
            &["STORE", canary],
            &["STOREDIST", canary],
            &["STORE", "n1", "STORE", canary],
            &["STORE", "n1", "STOREDIST", canary],
            &["KEYS", canary],
            &["STREAMS", canary, "0"],
            &["STREAMS", "x1", "STREAMS", canary, "0", "0"],
            &["GET", canary],
            &["BY", canary, "GET", "#"],
            &["DB", "0", "REPLACE"],
            &["REPLACE", "DB", "1", "DB", "0"],
            &["PREFIX", canary],
            &["WEIGHTS", "1", canary],
            &["LIMIT", "1", canary],
        ] {
            add(&[&words[..], tail].concat());
        }
        for at in 1..words.len() {
            for other in [canary, "STORE", "STREAMS", "0", "1", "2", "3", "-1", "1\0", "01"] {
                let mut changed = words.clone();
                changed[at] = other;
                add(&changed);
                add(&[&changed[..], &[canary][..]].concat());
                add(&[&changed[..], &["STORE", canary][..]].concat());
            }
            let (before, behind) = words.split_at(at);
            add(&[before, &[canary][..]].concat());
            add(&[before, &[MISSING][..]].concat());
            add(&[before, &[canary][..], behind].concat());
            add(&[before, &["STORE", canary][..], behind].concat());
            add(&[before, &["STREAMS", canary][..], behind].concat());
        }
    }
    all
}

/// Runs plain commands in the same orders: a command that the port lets pass changes and shows only
/// keys that the guard found.
#[test]
fn no_order_of_words_hides_a_key_from_the_guard() {
    let mut redis = Redis::start();
    let lines = redis.samples.clone();
    let (passed, refused) = no_order_hides_a_key(&mut redis, &lines);
    assert!(passed > 5_000 && refused > 5_000, "{passed} passed, {refused} were refused");
}

/// Returns how many variants of these samples passed, and how many were refused.
pub(super) fn no_order_hides_a_key(redis: &mut Redis, lines: &[&str]) -> (usize, usize) {
    let table = redis.table();
    let mut passed = 0;
    let mut refused = 0;
    for line in lines {
        let (planned, _) = plan_line(&table, line).unwrap();
        if matches!(planned.handling, Handling::Script | Handling::Watch) {
            continue;
        }
        let canaries = Canaries::place(redis);
        for words in variants(redis, line) {
            let bytes: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            let Ok((_, keys)) = plan(&table, &bytes) else {
                refused += 1;
                continue;
            };
            let names: Vec<&str> = words.iter().map(String::as_str).collect();
            if keys.iter().any(|key| names[key.arg].starts_with("c:")) {
                continue;
            }
            passed += 1;
            // No command blocks inside of MULTI.
            redis.line("MULTI").unwrap();
            let queued = redis.words(&names);
            let reply = if queued.is_ok() { redis.line("EXEC") } else { redis.line("DISCARD") };
            canaries.check_reply(&names, &reply);
        }
        canaries.check(redis, line);
    }
    (passed, refused)
}
