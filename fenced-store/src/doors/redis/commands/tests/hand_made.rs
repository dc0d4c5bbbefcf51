//! Replies to COMMAND that no installed Redis gives: later versions, modules, nonsense.

use super::*;

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn list(words: &str) -> Value {
    Value::Array(words.split_whitespace().map(text).collect())
}

fn map(pairs: &[(&str, Value)]) -> Value {
    Value::Map(pairs.iter().map(|(name, value)| (text(name), value.clone())).collect())
}

fn typed(kind: &str, spec: Value) -> Value {
    map(&[("type", text(kind)), ("spec", spec)])
}

fn spec(flags: &str, begin: Value, find: Value) -> Value {
    map(&[("flags", list(flags)), ("begin_search", begin), ("find_keys", find)])
}

fn index(at: i64) -> Value {
    typed("index", map(&[("index", Value::Int(at))]))
}

fn range(last: i64, step: i64, limit: i64) -> Value {
    let numbers = [("lastkey", last), ("keystep", step), ("limit", limit)];
    typed("range", map(&numbers.map(|(name, number)| (name, Value::Int(number)))))
}

fn keynum(number: i64, first: i64, step: i64) -> Value {
    let numbers = [("keynumidx", number), ("firstkey", first), ("keystep", step)];
    typed("keynum", map(&numbers.map(|(name, number)| (name, Value::Int(number)))))
}

fn command(name: &str, flags: &str, specs: Vec<Value>, subcommands: Vec<Value>) -> Value {
    let zero = Value::Int(0);
    Value::Array(vec![
        text(name),
        Value::Int(-1),
        list(flags),
        zero.clone(),
        zero.clone(),
        zero,
        list(""),
        list(""),
        Value::Array(specs),
        Value::Array(subcommands),
    ])
}

fn table(commands: Vec<Value>) -> CommandTable {
    CommandTable::from_reply(&Value::Array(commands)).unwrap()
}

/// Keys of a line of LMPOP, a command that the policy lists, if Redis described it so.
fn one(flags: &str, specs: Vec<Value>, line: &str) -> Result<Vec<String>, String> {
    keys_of(&table(vec![command("lmpop", flags, specs, vec![])]), line)
}

#[test]
fn keys_are_where_redis_says() {
    let read = || spec("RO access", index(1), range(0, 1, 0));
    assert_eq!(one("readonly fast", vec![read()], "LMPOP a b").unwrap(), ["r:a"]);
    let write = || spec("OW update", index(2), range(0, 1, 0));
    assert_eq!(one("write", vec![read(), write()], "LMPOP a b").unwrap(), ["r:a", "w:b"]);
    // A write that does not say what it writes.
    assert_eq!(one("write", vec![read()], "LMPOP a b").unwrap(), ["w:a"]);
    let many = || spec("OW insert", index(1), keynum(0, 1, 2));
    let keys = one("write movablekeys", vec![many()], "LMPOP 2 a x b y NX");
    assert_eq!(keys.unwrap(), ["w:a", "w:b"]);
    assert!(one("write", vec![many()], "LMPOP 3 a x b y").is_err());
    assert_eq!(one("write", vec![many()], "LMPOP 3 a x b y c").unwrap(), ["w:a", "w:b", "w:c"]);
    let half = || spec("RO", index(1), range(-1, 1, 2));
    assert_eq!(one("readonly", vec![half()], "LMPOP a b 1 2").unwrap(), ["r:a", "r:b"]);
}

#[test]
fn a_command_without_certain_keys_is_denied() {
    let good = || vec![spec("RW", index(1), range(0, 1, 0))];
    let keyword = typed("keyword", map(&[("keyword", text("K")), ("index", Value::Int(1))]));
    for (what, specs) in [
        ("none", vec![]),
        ("incomplete", vec![spec("RW incomplete", index(1), range(0, 1, 0))]),
        ("no key", vec![spec("not_key", index(1), range(0, 1, 0))]),
        ("unknown", vec![spec("RW", typed("unknown", map(&[])), range(0, 1, 0))]),
        ("unknown", vec![spec("RW", index(1), typed("unknown", map(&[])))]),
        ("keyword", vec![spec("RW", keyword, range(0, 1, 0))]),
        ("one of two", vec![good().remove(0), spec("incomplete", index(2), range(0, 1, 0))]),
        ("index 0", vec![spec("RW", index(0), range(0, 1, 0))]),
        ("step 0", vec![spec("RW", index(1), range(-1, 0, 0))]),
        ("later form", vec![Value::Nil]),
    ] {
        let error = one("write", specs, "LMPOP a b").expect_err(what);
        assert!(error.starts_with("DENIED "), "{what}: {error}");
    }
    // Redis finds no key here either, and the effect is unknown.
    for line in ["LMPOP", "LMPOP 0 a"] {
        let specs = vec![spec("RW", index(1), keynum(0, 1, 1))];
        assert!(one("write", specs, line).is_err(), "{line}");
    }
    assert_eq!(one("write", good(), "LMPOP"), Err("ERR syntax error".to_owned()));
}

/// However plain a later server calls it: no test compared its effects with the keys that it names.
#[test]
fn a_command_that_the_policy_does_not_list_is_denied() {
    let good = || vec![spec("RW", index(1), range(0, 1, 0))];
    let plain = |name: &str, flags| command(name, flags, good(), vec![]);
    let table = table(vec![
        plain("new", "write"),
        plain("newread", "readonly fast"),
        plain("m.set", "write module"),
        command("newer", "", vec![], vec![plain("newer|set", "write")]),
        command("object", "", vec![], vec![plain("object|set", "write")]),
    ]);
    for (line, name, why) in [
        ("NEW a", "NEW", "does not know it"),
        ("newread a", "NEWREAD", "does not know it"),
        ("M.SET a", "M.SET", "belongs to a module"),
        ("NEWER SET a", "NEWER SET", "does not know it"),
        ("NEWER", "NEWER", "needs a subcommand"),
        ("OBJECT SET a", "OBJECT SET", "does not know it"),
    ] {
        let error = keys_of(&table, line).expect_err(line);
        let begin = format!("DENIED {name} is not passed on: ");
        assert!(error.starts_with(&begin) && error.contains(why), "{line}: {error}");
    }
    assert!(table.script_rules().iter().all(|rule| !rule.contains("new")));
}

/// A listed name does not help if Redis describes it differently.
#[test]
fn what_redis_says_beats_the_list() {
    let table = table(vec![
        command("get", "readonly", vec![], vec![]),
        command("ping", "write", vec![], vec![]),
        command("time", "admin", vec![], vec![]),
        command("set", "write", vec![spec("", index(1), range(0, 1, 0))], vec![]),
        command("incr", "write", vec![spec("RO", index(1), range(0, 1, 0))], vec![]),
        command("config", "", vec![], vec![command("config|new", "", vec![], vec![])]),
        command("object", "", vec![], vec![command("object|new", "write", vec![], vec![])]),
        command("fence", "admin", vec![], vec![]),
    ]);
    for line in ["GET a", "PING", "TIME", "CONFIG NEW", "OBJECT NEW a"] {
        assert!(keys_of(&table, line).expect_err(line).starts_with("DENIED "), "{line}");
    }
    assert_eq!(keys_of(&table, "SET a b").unwrap(), ["w:a"]);
    assert_eq!(keys_of(&table, "INCR a").unwrap(), ["w:a"], "a write that only reads");
    // The guard's own commands are there whatever Redis has.
    for line in ["FENCE SHOW", "AUTH x", "CLIENT SETNAME x"] {
        let (plan, _) = plan_line(&table, line).unwrap();
        assert!(matches!(plan.handling, Handling::Local(_)), "{line}");
    }
}

/// A script's user may run any listed command whose keys Redis' ACL finds.
#[test]
fn scripts_may_run_commands_with_keys_by_position_or_count() {
    let good = || spec("RW", index(1), range(0, 1, 0));
    let counted = || spec("RW", index(1), keynum(0, 1, 1));
    let keyword =
        || typed("keyword", map(&[("keyword", text("STORE")), ("startfrom", Value::Int(6))]));
    let behind_keyword = || spec("OW", keyword(), range(0, 1, 0));
    let incomplete = || spec("RW incomplete", index(1), range(0, 1, 0));
    let unknown = || spec("RW", typed("unknown", map(&[])), range(0, 1, 0));
    let no_key = || spec("not_key", index(1), range(0, 1, 0));
    let plain = |name, specs| command(name, "write", specs, vec![]);
    let table = table(vec![
        plain("get", vec![good()]),
        plain("set", vec![behind_keyword()]),
        plain("lmpop", vec![counted()]),
        // The second spec finds nothing in a command of one word, and so does the ACL.
        plain("zmpop", vec![good(), counted()]),
        plain("sinterstore", vec![good(), behind_keyword()]),
        plain("copy", vec![good(), incomplete()]),
        plain("move", vec![unknown()]),
        plain("del", vec![]),
        plain("echo", vec![no_key()]),
        // Listed by the policy, but here a module's.
        command("waitaof", "module readonly", vec![good()], vec![]),
        command("hget", "module readonly", vec![good()], vec![]),
        command("m.set", "module write", vec![good()], vec![]),
        // No key spec can be right for these.
        plain("georadius", vec![good(), behind_keyword()]),
        plain("xreadgroup", vec![behind_keyword()]),
        plain("sort", vec![good()]),
        command("scan", "readonly", vec![], vec![]),
        command("publish", "pubsub", vec![], vec![]),
        command("pubsub", "", vec![], vec![command("pubsub|channels", "pubsub", vec![], vec![])]),
        command("config", "", vec![], vec![command("config|get", "admin", vec![], vec![])]),
        command(
            "xgroup",
            "",
            vec![],
            vec![command("xgroup|create", "write", vec![good()], vec![])],
        ),
        command("object", "", vec![], vec![command("object|new", "module", vec![good()], vec![])]),
    ]);
    let allowed = ["+get", "+lmpop", "+publish", "+select", "+xgroup|create"];
    assert_eq!(*table.script_rules(), allowed);
    for line in ["HGET a", "M.SET a", "WAITAOF a", "OBJECT NEW a"] {
        let error = keys_of(&table, line).expect_err(line);
        assert!(error.contains("belongs to a module"), "{line}: {error}");
    }
}

#[test]
fn replies_that_are_none_are_refused() {
    let deep = command("a", "", vec![], vec![command("a|b", "", vec![], vec![Value::Nil])]);
    for (reply, why) in [
        (Value::Nil, "no list"),
        (Value::Okay, "no list"),
        (Value::Array(vec![]), "lists no commands"),
        (Value::Array(vec![Value::Int(1)]), "no list"),
        (Value::Array(vec![list("get 2")]), "Redis 7.0 or later"),
        (Value::Array(vec![list("get a b c d e f g h i")]), "arity"),
        (Value::Array(vec![deep]), "no list"),
    ] {
        let error = CommandTable::from_reply(&reply).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
