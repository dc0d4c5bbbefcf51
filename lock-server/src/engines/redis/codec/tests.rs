use fence_protocol::LockName;

use super::*;

fn lock(name: &str) -> Key {
    Key::Lock(LockName::new(name).unwrap())
}

fn batch() -> Batch {
    let group = |name| Group {
        reads: vec![(lock(name), Version::ABSENT)],
        before_ms: u64::MAX,
        ..Group::default()
    };
    Batch { groups: vec![group("a"), group("b")], ..Batch::default() }
}

fn text(text: &[u8]) -> Value {
    Value::BulkString(text.to_vec())
}

fn refused(group: i64, value: Value) -> Value {
    Value::Array(vec![Value::Int(group), value, Value::Nil])
}

#[test]
fn a_refused_group_has_its_records() {
    let batch = batch();
    let commit = Commit::new(&batch).unwrap();
    let record = [&7_u64.to_be_bytes()[..], b"000000000000042", b"0value"].concat();
    let reply = Value::Array(vec![Value::Int(5), Value::Int(9), refused(2, text(&record))]);
    let committed = commit.read(reply).unwrap();
    assert_eq!((committed.base, committed.now_ms), (5, Some(9)));
    assert_eq!(committed.groups[0], Ok(()));
    let found = &committed.groups[1].as_ref().unwrap_err()[0];
    assert_eq!((found.version, found.base), (Version(7), 42));
    assert_eq!((&found.key, &found.value[..]), (&lock("b"), &b"value"[..]));
}

#[test]
fn what_is_no_answer_to_the_batch_is_unknown() {
    let batch = batch();
    let commit = Commit::new(&batch).unwrap();
    let of = |parts: Vec<Value>| {
        let head = [Value::Int(5), Value::Int(9)];
        Value::Array(head.into_iter().chain(parts).collect())
    };
    for reply in [
        Value::Okay,
        Value::Nil,
        Value::Int(1),
        Value::Array(vec![]),
        Value::Array(vec![Value::Int(5)]),
        Value::Array(vec![Value::Int(-5), Value::Int(9)]),
        Value::Array(vec![text(b"SAME"), text(b"x")]),
        of(vec![Value::Int(1)]),
        of(vec![refused(0, Value::Nil)]),
        of(vec![refused(3, Value::Nil)]),
        of(vec![refused(1, Value::Nil), refused(1, Value::Nil)]),
        of(vec![Value::Array(vec![Value::Int(1), Value::Nil])]),
        of(vec![Value::Array(vec![Value::Int(1), Value::Nil, Value::Nil, Value::Nil])]),
    ] {
        let shown = format!("{reply:?}");
        assert!(matches!(commit.read(reply), Err(StoreError::Unknown(_))), "{shown}");
    }
}

/// Its group alone is refused.
#[test]
fn what_no_lock_server_has_written_is_no_record() {
    let batch = batch();
    let commit = Commit::new(&batch).unwrap();
    let zero = [&0_u64.to_be_bytes()[..], b"000000000000042", b"0value"].concat();
    let letters = [&7_u64.to_be_bytes()[..], b"00000000000042x", b"0value"].concat();
    let good = [&7_u64.to_be_bytes()[..], b"000000000000042", b"1value"].concat();
    for (value, items) in [
        (Value::Int(7), Value::Nil),
        (text(b"?"), Value::Nil),
        (text(&zero), Value::Nil),
        (text(&letters), Value::Nil),
        (text(&good), text(b"?")),
        (text(&good), Value::Array(vec![text(b"no separator")])),
    ] {
        let refused = Value::Array(vec![Value::Int(1), value, items]);
        let reply = Value::Array(vec![Value::Int(5), Value::Int(9), refused]);
        let groups = commit.read(reply).unwrap().groups;
        let key = batch.groups[0].reads[0].0.clone();
        assert_eq!(groups[0], Err(vec![Snapshot::unreadable(key)]));
        assert!(groups[1..].iter().all(Result::is_ok), "{groups:?}");
    }
}

#[test]
fn a_batch_that_breaks_the_contract_is_not_sent() {
    let put = |key, version| Write {
        key,
        change: Change::Put { version, value: vec![1], lives_ms: None },
        items: Vec::new(),
    };
    let mut nul = put(lock("a"), Version(1));
    nul.items.push(("a\0b".to_owned(), None));
    for write in [put(lock("other"), Version(1)), put(lock("a"), Version::ABSENT), nul] {
        let mut batch = batch();
        batch.groups[0].writes.push(write);
        assert!(matches!(Commit::new(&batch), Err(StoreError::Unavailable(_))));
    }
}

#[test]
fn items_are_read_in_their_parts() {
    let members = Value::Array(vec![text(b"a\0x\0y"), text(b"b\0")]);
    let read = items(members).unwrap();
    assert_eq!(read, [("a".to_owned(), b"x\0y".to_vec()), ("b".to_owned(), Vec::new())]);
    assert!(items(Value::Array(vec![text(b"ab")])).is_err());
    assert!(items(Value::Okay).is_err());
}
