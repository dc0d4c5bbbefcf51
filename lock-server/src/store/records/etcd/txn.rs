//! Transactions in the gateway's words, written as text: a batch of groups is long, and most of what
//! a lock costs on etcd is the reading of it. Everything here is without I/O.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::store::records::Version;

/// From one key to another, that one excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) begin: String,
    pub(super) end: String,
}

impl Range {
    /// The keys that begin with a text.
    pub(super) fn prefixed(begin: String) -> Self {
        let mut end = begin.clone();
        // No text of ours ends with the highest character.
        let last =
            end.pop().map_or('\u{1}', |last| char::from_u32(u32::from(last) + 1).unwrap_or(last));
        end.push(last);
        Self { begin, end }
    }
}

/// One step of a transaction, or one of its conditions: a JSON object.
pub(super) type Step = String;

/// Conditions and steps of a transaction: where every condition holds the one list runs, else the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Txn {
    pub(super) compare: Vec<Step>,
    pub(super) success: Vec<Step>,
    pub(super) failure: Vec<Step>,
}

impl Txn {
    /// The body of the request.
    pub(super) fn body(&self) -> String {
        let lists = [&self.compare, &self.success, &self.failure];
        let length: usize = lists.into_iter().flatten().map(|step| step.len() + 1).sum();
        let mut body = String::with_capacity(length + 64);
        for (name, steps) in
            ["{\"compare\":[", "],\"success\":[", "],\"failure\":["].iter().zip(lists)
        {
            body.push_str(name);
            for (at, step) in steps.iter().enumerate() {
                if at > 0 {
                    body.push(',');
                }
                body.push_str(step);
            }
        }
        body.push_str("]}");
        body
    }

    /// This transaction as a step of another one.
    pub(super) fn step(&self) -> Step {
        format!("{{\"requestTxn\":{}}}", self.body())
    }

    /// How many steps etcd counts on this level.
    pub(super) fn width(&self) -> usize {
        self.compare.len().max(self.success.len()).max(self.failure.len())
    }
}

/// Steps in branches of at most `width`, where there are more than that.
pub(super) fn branched(steps: Vec<Step>, width: usize) -> Vec<Step> {
    if steps.len() <= width {
        return steps;
    }
    let branches =
        steps.chunks(width).map(|some| Txn { success: some.to_vec(), ..Txn::default() }.step());
    branches.collect()
}

fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Bytes as the gateway wants them.
pub(super) fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

/// The key has this value.
pub(super) fn says(key: &str, value: &[u8]) -> Step {
    compare_value(key, "EQUAL", value)
}

fn compare_value(key: &str, result: &str, value: &[u8]) -> Step {
    format!(
        "{{\"key\":\"{}\",\"target\":\"VALUE\",\"result\":\"{result}\",\"value\":\"{}\"}}",
        encoded(key),
        text(value)
    )
}

/// There is no such key.
pub(super) fn absent(key: &str) -> Step {
    written_by(key, 0)
}

/// The key was last written by this revision; 0 where it must not exist.
pub(super) fn written_by(key: &str, revision: u64) -> Step {
    format!(
        "{{\"key\":\"{}\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"{revision}\"}}",
        encoded(key)
    )
}

/// There is no key in the range.
pub(super) fn nothing_in(range: &Range) -> Step {
    format!(
        "{{\"key\":\"{}\",\"range_end\":\"{}\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}}",
        encoded(&range.begin),
        encoded(&range.end)
    )
}

/// The record under a key has this version, which its value begins with: the value lies between that
/// and the next version.
pub(super) fn has_version(key: &str, version: Version) -> Vec<Step> {
    if version == Version::ABSENT {
        return vec![absent(key)];
    }
    let mut steps = vec![compare_value(key, "GREATER", &version.0.to_be_bytes())];
    if let Some(next) = version.0.checked_add(1) {
        steps.push(compare_value(key, "LESS", &next.to_be_bytes()));
    }
    steps
}

/// Writes a key.
pub(super) fn put(key: &str, value: &[u8]) -> Step {
    format!("{{\"requestPut\":{{\"key\":\"{}\",\"value\":\"{}\"}}}}", encoded(key), text(value))
}

/// Writes a key that lives as long as an etcd lease.
pub(super) fn put_on(key: &str, value: &[u8], lease: u64) -> Step {
    format!(
        "{{\"requestPut\":{{\"key\":\"{}\",\"value\":\"{}\",\"lease\":\"{lease}\"}}}}",
        encoded(key),
        text(value)
    )
}

/// Deletes a key.
pub(super) fn delete(key: &str) -> Step {
    format!("{{\"requestDeleteRange\":{{\"key\":\"{}\"}}}}", encoded(key))
}

/// Deletes the keys of a range.
pub(super) fn delete_all(range: &Range) -> Step {
    format!(
        "{{\"requestDeleteRange\":{{\"key\":\"{}\",\"range_end\":\"{}\"}}}}",
        encoded(&range.begin),
        encoded(&range.end)
    )
}

/// Reads a key.
pub(super) fn get(key: &str) -> Step {
    format!("{{\"requestRange\":{{\"key\":\"{}\"}}}}", encoded(key))
}

/// Reads the keys of a range.
pub(super) fn get_all(range: &Range) -> Step {
    format!("{{\"requestRange\":{}}}", fields(range, None, false))
}

/// The body of a range request: the first `limit` keys of the range in the order of their names.
pub(super) fn page(range: &Range, limit: usize, keys_only: bool) -> String {
    fields(range, Some(limit), keys_only)
}

/// Counts the keys of a range.
pub(super) fn count(range: &Range) -> Step {
    let (begin, end) = (encoded(&range.begin), encoded(&range.end));
    format!(
        "{{\"requestRange\":{{\"key\":\"{begin}\",\"range_end\":\"{end}\",\"count_only\":true}}}}"
    )
}

fn fields(range: &Range, limit: Option<usize>, keys_only: bool) -> String {
    let (begin, end) = (encoded(&range.begin), encoded(&range.end));
    let mut body = format!("{{\"key\":\"{begin}\",\"range_end\":\"{end}\"");
    if let Some(limit) = limit {
        // Writing to a String does not fail.
        let _ = write!(body, ",\"limit\":\"{limit}\"");
    }
    if keys_only {
        body.push_str(",\"keys_only\":true");
    }
    body.push('}');
    body
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn transactions_are_json_with_encoded_bytes() {
        let within = Txn {
            compare: has_version("a", Version(7)),
            success: vec![put_on("a", b"v", u64::MAX >> 1), delete("b")],
            failure: vec![get_all(&Range::prefixed("a/".to_owned()))],
        };
        let txn =
            Txn { compare: vec![absent("a")], success: vec![within.step()], ..Txn::default() };
        let body: Value = serde_json::from_str(&txn.body()).unwrap();
        assert_eq!(
            body,
            json!({
                "compare": [{"key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": "0"}],
                "success": [{"requestTxn": {
                    "compare": [
                        {"key": "YQ==", "target": "VALUE", "result": "GREATER", "value": "AAAAAAAAAAc="},
                        {"key": "YQ==", "target": "VALUE", "result": "LESS", "value": "AAAAAAAAAAg="},
                    ],
                    "success": [
                        {"requestPut":
                            {"key": "YQ==", "value": "dg==", "lease": "9223372036854775807"}},
                        {"requestDeleteRange": {"key": "Yg=="}},
                    ],
                    "failure": [{"requestRange": {"key": "YS8=", "range_end": "YTA="}}],
                }}],
                "failure": [],
            })
        );
    }

    #[test]
    fn branches_have_a_width() {
        let steps: Vec<Step> = (0..70).map(|at| get(&at.to_string())).collect();
        assert_eq!(branched(steps.clone(), 70).len(), 70);
        assert_eq!(branched(steps, 30).len(), 3);
    }
}
