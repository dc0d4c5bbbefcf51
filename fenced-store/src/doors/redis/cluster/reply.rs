//! Replies of the nodes, which all speak RESP3 with the guard, as a client wants them.

use bytes::{BufMut, BytesMut};
use redis::{Value, VerbatimFormat};

use super::super::resp::{Protocol, encode};
use super::shape::{Convert, Shape};

/// Writes `value` as the command would have answered it over `protocol`.
pub(super) fn encode(out: &mut BytesMut, value: Value, shape: Shape, protocol: Protocol) {
    let value = convert(value, shape.convert);
    match (shape.convert, value) {
        (Convert::NullArray, value) if protocol == Protocol::Resp2 => null_arrays(out, &value),
        (Convert::NullLast, Value::Array(items)) if protocol == Protocol::Resp2 => {
            encode::array(out, items.len());
            let last = items.len().saturating_sub(1);
            for (index, item) in items.iter().enumerate() {
                match index == last {
                    true => null_arrays(out, item),
                    false => plain(out, item, protocol),
                }
            }
        }
        (_, value) => plain(out, &value, protocol),
    }
}

/// RESP2, where every nil is the nil of an array.
fn null_arrays(out: &mut BytesMut, value: &Value) {
    match value {
        Value::Nil => out.put_slice(b"*-1\r\n"),
        Value::Array(items) => {
            encode::array(out, items.len());
            items.iter().for_each(|item| null_arrays(out, item));
        }
        value => plain(out, value, Protocol::Resp2),
    }
}

/// Gives a reply of RESP2 the types that it has in RESP3 (see [`Convert`]).
fn convert(value: Value, convert: Convert) -> Value {
    match (convert, value) {
        (Convert::Counter, Value::BulkString(text)) => integer(text),
        (Convert::Map, Value::Array(items)) => map(items, |_, value| value),
        (Convert::Set, Value::Array(items)) => Value::Set(items),
        (Convert::Pairs, Value::Array(items)) => pairs(items),
        (Convert::Doubles, value) => doubles(value),
        (Convert::Info, Value::Array(items)) => info(items),
        (Convert::InfoList, Value::Array(items)) => {
            Value::Array(items.into_iter().map(|item| self::convert(item, Convert::Info)).collect())
        }
        (_, value) => value,
    }
}

fn integer(text: Vec<u8>) -> Value {
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
    number.map_or(Value::BulkString(text), Value::Int)
}

fn map(items: Vec<Value>, mut each: impl FnMut(&Value, Value) -> Value) -> Value {
    let mut pairs = Vec::with_capacity(items.len() / 2);
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        let value = each(&key, value);
        pairs.push((key, value));
    }
    Value::Map(pairs)
}

fn pairs(items: Vec<Value>) -> Value {
    let pair = |item: &Value| matches!(item, Value::Array(two) if two.len() == 2);
    if !items.iter().all(pair) {
        return Value::Array(items);
    }
    let flat = items.into_iter().flat_map(|item| match item {
        Value::Array(two) => two,
        other => vec![other],
    });
    map(flat.collect(), |_, value| value)
}

fn doubles(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(doubles).collect()),
        Value::BulkString(text) => {
            let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
            number.map_or(Value::BulkString(text), Value::Double)
        }
        other => other,
    }
}

/// Users' own names and values are nowhere below these two fields but in entries, which stay as
/// they are.
fn info(items: Vec<Value>) -> Value {
    map(items, |key, value| match (key, value) {
        (Value::BulkString(name), Value::Array(list))
            if name == b"groups" || name == b"consumers" =>
        {
            Value::Array(list.into_iter().map(|item| convert(item, Convert::Info)).collect())
        }
        (_, value) => value,
    })
}

/// Writes any value; RESP2 gets what Redis gives it in place of the types that it lacks.
fn plain(out: &mut BytesMut, value: &Value, protocol: Protocol) {
    let is_resp3 = protocol == Protocol::Resp3;
    match value {
        Value::Nil => encode::null(out, protocol),
        Value::Int(number) => encode::integer(out, *number),
        Value::BulkString(bytes) => encode::bulk(out, bytes),
        Value::Okay => encode::simple(out, "OK"),
        Value::SimpleString(text) => encode::simple(out, text),
        Value::ServerError(error) => {
            let details = error.details().unwrap_or_default();
            encode::error(out, format!("{} {details}", error.code()).trim_end());
        }
        Value::Array(items) | Value::Push { data: items, .. } => {
            encode::array(out, items.len());
            items.iter().for_each(|item| plain(out, item, protocol));
        }
        Value::Set(items) => {
            match is_resp3 {
                true => out.put_slice(format!("~{}\r\n", items.len()).as_bytes()),
                false => encode::array(out, items.len()),
            }
            items.iter().for_each(|item| plain(out, item, protocol));
        }
        Value::Map(pairs) => {
            encode::map(out, pairs.len(), protocol);
            for (key, value) in pairs {
                plain(out, key, protocol);
                plain(out, value, protocol);
            }
        }
        Value::Attribute { data, .. } => plain(out, data, protocol),
        Value::Double(number) => double(out, *number, is_resp3),
        Value::Boolean(yes) if is_resp3 => out.put_slice(if *yes { b"#t\r\n" } else { b"#f\r\n" }),
        Value::Boolean(yes) => encode::integer(out, i64::from(*yes)),
        Value::VerbatimString { format, text } if is_resp3 => verbatim(out, format, text),
        Value::VerbatimString { text, .. } => encode::bulk(out, text.as_bytes()),
        Value::BigNumber(digits) if is_resp3 => {
            out.put_u8(b'(');
            out.put_slice(digits);
            out.put_slice(b"\r\n");
        }
        Value::BigNumber(digits) => encode::bulk(out, digits),
        _ => encode::error(out, "ERR the guard does not know the type of this reply"),
    }
}

fn double(out: &mut BytesMut, number: f64, is_resp3: bool) {
    let text = match number {
        number if number.is_nan() => "nan".to_owned(),
        f64::INFINITY => "inf".to_owned(),
        f64::NEG_INFINITY => "-inf".to_owned(),
        number => number.to_string(),
    };
    if !is_resp3 {
        return encode::bulk(out, text.as_bytes());
    }
    out.put_slice(format!(",{text}\r\n").as_bytes());
}

fn verbatim(out: &mut BytesMut, format: &VerbatimFormat, text: &str) {
    let format = match format {
        VerbatimFormat::Markdown => "mkd",
        VerbatimFormat::Unknown(format) if format.len() == 3 => format,
        _ => "txt",
    };
    encode::verbatim(out, format, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn written(value: Value, convert: Convert, protocol: Protocol) -> String {
        let mut out = BytesMut::new();
        encode(&mut out, value, Shape { is_native: false, convert }, protocol);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn both_kinds_of_nil() {
        let list = || Value::Array(vec![Value::Nil]);
        let two = || Value::Array(vec![Value::Nil, Value::Nil]);
        for (value, convert, resp2, resp3) in [
            (Value::Nil, Convert::Plain, "$-1\r\n", "_\r\n"),
            (Value::Nil, Convert::NullArray, "*-1\r\n", "_\r\n"),
            (list(), Convert::NullArray, "*1\r\n*-1\r\n", "*1\r\n_\r\n"),
            (list(), Convert::Plain, "*1\r\n$-1\r\n", "*1\r\n_\r\n"),
            (two(), Convert::NullLast, "*2\r\n$-1\r\n*-1\r\n", "*2\r\n_\r\n_\r\n"),
        ] {
            assert_eq!(written(value.clone(), convert, Protocol::Resp2), resp2);
            assert_eq!(written(value, convert, Protocol::Resp3), resp3);
        }
    }

    #[test]
    fn types_that_resp2_lacks() {
        let pairs = || Value::Map(vec![(bulk("k"), Value::Double(1.5))]);
        assert_eq!(
            written(pairs(), Convert::Plain, Protocol::Resp2),
            "*2\r\n$1\r\nk\r\n$3\r\n1.5\r\n"
        );
        assert_eq!(written(pairs(), Convert::Plain, Protocol::Resp3), "%1\r\n$1\r\nk\r\n,1.5\r\n");
        let infinite = Value::Double(f64::NEG_INFINITY);
        assert_eq!(written(infinite, Convert::Plain, Protocol::Resp3), ",-inf\r\n");
        let text = Value::VerbatimString { format: VerbatimFormat::Text, text: "hi".to_owned() };
        assert_eq!(written(text, Convert::Plain, Protocol::Resp3), "=6\r\ntxt:hi\r\n");
    }

    #[test]
    fn counters_beyond_lua_s_exact_numbers() {
        let most = || bulk("9223372036854775807");
        assert_eq!(written(most(), Convert::Counter, Protocol::Resp2), ":9223372036854775807\r\n");
        assert_eq!(written(bulk("x"), Convert::Counter, Protocol::Resp2), "$1\r\nx\r\n");
    }

    #[test]
    fn lists_become_what_resp3_makes_of_them() {
        let array = |items: &[Value]| Value::Array(items.to_vec());
        let two = || array(&[bulk("a"), bulk("b")]);
        let resp3 = |value, convert| written(value, convert, Protocol::Resp3);
        assert_eq!(resp3(two(), Convert::Map), "%1\r\n$1\r\na\r\n$1\r\nb\r\n");
        assert_eq!(resp3(two(), Convert::Set), "~2\r\n$1\r\na\r\n$1\r\nb\r\n");
        assert_eq!(resp3(array(&[two()]), Convert::Pairs), "%1\r\n$1\r\na\r\n$1\r\nb\r\n");
        let scores = array(&[bulk("2"), Value::Nil]);
        assert_eq!(resp3(scores, Convert::Doubles), "*2\r\n,2\r\n_\r\n");
        let groups = array(&[bulk("groups"), array(&[two()])]);
        let map = "%1\r\n$6\r\ngroups\r\n*1\r\n%1\r\n$1\r\na\r\n$1\r\nb\r\n";
        assert_eq!(resp3(groups, Convert::Info), map);
    }
}
