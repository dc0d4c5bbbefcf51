//! Fuzz target: parsing of stored records and store replies.

use fence_protocol::{LeaseId, LockName, Token};

use super::contract::First;
use super::redis::fuzz as redis_store;
use crate::etag::{Condition, ETag};
use crate::verdict::{Fence, Mark};

/// Text: records of named operations, entity tags and conditions, marks and INFO replies.
/// RESP: the replies of our scripts.
pub(crate) fn records(input: &[u8]) {
    if let Ok(value) = ::redis::parse_redis_value(input) {
        redis_store::replies(&value, &fence());
    }
    let text = String::from_utf8_lossy(input);
    redis_store::info(&text);
    for line in text.lines() {
        if let Some(first) = First::parse(line) {
            assert_eq!(First::parse(&first.text()), Some(first), "{line}");
        }
        let (one, other) = line.split_once('\t').unwrap_or((line, ""));
        condition(one, other);
    }
}

fn condition(one: &str, other: &str) {
    for condition in [
        Condition::parse(Some(one), None),
        Condition::parse(None, Some(one)),
        Condition::parse(Some(one), Some(other)),
    ] {
        let Ok(condition) = condition else { continue };
        let (kind, tags) = condition.parts();
        assert!(tags.len() <= Condition::MAX_TAGS && kind != "none", "{condition:?}");
        for tag in tags {
            assert!(condition.holds(Some(tag)) == (kind == "any-of"), "{condition:?}");
            // A tag parses back from its header form.
            let again = Condition::parse(Some(&tag.to_string()), None);
            assert_eq!(again, Ok(Condition::AnyOf(vec![tag.clone()])), "{tag}");
        }
        let _ = condition.holds(Some(&ETag::from_stored("none such")));
    }
}

fn fence() -> Fence {
    let (Ok(lock), Ok(token)) = (LockName::new("orders/42"), Token::new(34)) else {
        panic!("a lock and a token");
    };
    Fence { lock, presented: Mark { token, lease: LeaseId::MAX } }
}
