//! Redis' COMMAND reply: names, arities, flags, key specs and subcommands.
//!
//! Maps and sets are arrays in RESP2; both forms are parsed. Unknown fields behind the known ones
//! are ignored; an unknown form inside a key spec makes that spec one without known keys.

use redis::Value;

use super::KeyAccess;
use super::spec::{Find, Spec};

/// Maximum depth: commands have subcommands, which have none.
const DEPTH_MAX: usize = 2;

/// Description of a command or subcommand by Redis.
#[derive(Debug)]
pub(super) struct Meta {
    /// In lower case: `get`, `config|get`.
    pub(super) name: String,
    /// Positive: the exact number of arguments with the name; negative: the minimum.
    pub(super) arity: i64,
    flags: Vec<String>,
    /// Key positions.
    pub(super) specs: Vec<Option<Spec>>,
    pub(super) subcommands: Vec<Meta>,
}

impl Meta {
    /// Returns `true` if it has the flag.
    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }

    /// Least number of words, with those of its name.
    pub(super) fn words_min(&self) -> usize {
        usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX)
    }

    #[cfg(test)]
    pub(super) fn flags(&self) -> impl Iterator<Item = &str> {
        self.flags.iter().map(String::as_str)
    }
}

/// Parses every command of the reply.
pub(super) fn commands(reply: &Value) -> Result<Vec<Meta>, String> {
    let found = items(reply).ok_or("it is no list of commands")?;
    if found.is_empty() {
        return Err("Redis lists no commands in its reply to COMMAND".to_owned());
    }
    let parse = |value| {
        command(value, DEPTH_MAX).map_err(|error| format!("Redis' reply to COMMAND: {error}"))
    };
    found.iter().map(parse).collect()
}

fn command(value: &Value, depth: usize) -> Result<Meta, String> {
    let fields = items(value).ok_or("an entry is no list")?;
    let [name, arity, flags, _first, _last, _step, _categories, _tips, specs, subcommands, ..] =
        fields
    else {
        return Err(format!(
            "an entry has {} fields and needs 10: Redis 7.0 or later is required",
            fields.len()
        ));
    };
    let name = text(name).ok_or("a name is no text")?.to_ascii_lowercase();
    let bad = |what: &str| format!("{name} has {what} that cannot be read");
    let arity = int(arity).ok_or_else(|| bad("an arity"))?;
    let flags = items(flags).ok_or_else(|| bad("flags"))?;
    let flags = flags.iter().map(text).collect::<Option<Vec<_>>>().ok_or_else(|| bad("flags"))?;
    let specs = items(specs).ok_or_else(|| bad("key specs"))?.iter().map(spec).collect();
    let subcommands = items(subcommands).ok_or_else(|| bad("subcommands"))?;
    if depth == 0 {
        return Err(bad("subcommands of subcommands"));
    }
    let subcommands =
        subcommands.iter().map(|value| command(value, depth - 1)).collect::<Result<_, _>>()?;
    Ok(Meta { name, arity, flags, specs, subcommands })
}

/// Parses a key spec; `None` if it may miss a key.
fn spec(value: &Value) -> Option<Spec> {
    let flags = items(field(value, "flags")?)?.iter().map(text).collect::<Option<Vec<_>>>()?;
    let has = |flag: &str| flags.iter().any(|known| known.eq_ignore_ascii_case(flag));
    if has("incomplete") || has("not_key") {
        return None;
    }
    // Without a stated access, assume a write.
    let access = if has("RO") { KeyAccess::Read } else { KeyAccess::Write };
    let begin = field(value, "begin_search")?;
    // A keyword search finds its first occurrence, be it a value or a consumer's name; commands
    // that have one are read by hand.
    if text(field(begin, "type")?)? != "index" {
        return None;
    }
    let index = count(field(begin, "spec")?, "index").filter(|index| *index > 0)?;
    let find = field(value, "find_keys")?;
    let spec = field(find, "spec")?;
    let find = match text(field(find, "type")?)?.as_str() {
        "range" => Find::Range {
            last: int(field(spec, "lastkey")?)?,
            step: count(spec, "keystep").filter(|step| *step > 0)?,
            limit: count(spec, "limit")?,
        },
        "keynum" => Find::KeyNum {
            number: count(spec, "keynumidx")?,
            first: count(spec, "firstkey")?,
            step: count(spec, "keystep").filter(|step| *step > 0)?,
        },
        _ => return None,
    };
    Some(Spec { access, index, find })
}

fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) | Value::Set(items) => Some(items),
        _ => None,
    }
}

/// Returns the value of a name in a map, which is a flat list in RESP2.
fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let is_name = |key: &Value| text(key).is_some_and(|key| key == name);
    match value {
        Value::Map(pairs) => pairs.iter().find(|(key, _)| is_name(key)).map(|(_, value)| value),
        Value::Array(flat) => {
            flat.chunks_exact(2).find(|pair| is_name(&pair[0])).map(|pair| &pair[1])
        }
        _ => None,
    }
}

fn count(value: &Value, name: &str) -> Option<usize> {
    usize::try_from(int(field(value, name)?)?).ok()
}

fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(int) => Some(*int),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}
