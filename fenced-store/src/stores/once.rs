//! Operations that their sender named (`Idempotency-Key`), so that a retry after a lost reply is
//! idempotent: it returns the first outcome, and nothing is done twice.
//!
//! The outcome is stored in the same atomic step as the effect: the last [`Once::capacity`] of a
//! lock, whatever their objects. Refusals by the fence are not stored: they changed nothing, and
//! say nothing about the operation.

use fence_protocol::LockName;
use sha2::{Digest, Sha256};

use super::contract::{Effect, FenceOutcome, First, Once, Operation};
use crate::etag::ETag;
use crate::key::ObjectKey;

/// Maximum number of stored outcomes of a lock.
const OF_A_LOCK: usize = 64;
/// Maximum number of stored outcomes of all operations without a lock.
const OF_THE_OPEN: usize = 4096;

impl Once {
    /// Makes `id` the name of `operation` among those of `lock`; without a lock, among those of its
    /// key.
    ///
    /// Hashes the body: call it for a large one on a thread that may block.
    pub fn new(lock: Option<&LockName>, id: &str, operation: &Operation) -> Self {
        let (scope, id) = match lock {
            Some(lock) => (lock.to_string(), id.to_owned()),
            // A key has no blanks.
            None => (String::new(), format!("{} {id}", operation.key())),
        };
        Self { scope, id, digest: digest(operation) }
    }

    /// Returns the lock; empty for open resources.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Returns the name, unique within its scope.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the digest of the operation, as 64 hexadecimal digits.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the maximum number of stored outcomes in this scope; the oldest is dropped first.
    pub fn capacity(&self) -> usize {
        if self.scope.is_empty() { OF_THE_OPEN } else { OF_A_LOCK }
    }

    /// Returns the record to be stored.
    pub(super) fn record(&self, first: &First) -> String {
        format!("{} {}", self.digest, first.text())
    }

    /// Compares with the record stored under this name; `None` if it cannot be parsed.
    pub(super) fn compare(&self, record: &str) -> Option<EarlierOperation> {
        let (digest, first) = record.split_once(' ')?;
        let first = First::parse(first)?;
        Some(if digest == self.digest {
            EarlierOperation::Same(first)
        } else {
            EarlierOperation::Other
        })
    }
}

/// Result of comparing an operation with an earlier one of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EarlierOperation {
    /// The same operation.
    Same(First),
    /// Another operation.
    Other,
}

impl First {
    /// Returns the outcome to store for `operation`; `None` if none is stored.
    pub(super) fn from_outcome(operation: &Operation, outcome: &FenceOutcome) -> Option<Self> {
        match (operation, outcome) {
            (_, FenceOutcome::PreconditionFailed { etag, .. }) => {
                Some(Self::PreconditionFailed { etag: etag.clone() })
            }
            (
                Operation::Put { object, .. },
                FenceOutcome::Applied { effect: Effect::Stored { created }, .. },
            ) => Some(Self::Stored { created: *created, etag: object.etag.clone() }),
            (Operation::Delete { .. }, FenceOutcome::Applied { effect, .. }) => {
                Some(Self::Deleted { existed: *effect == Effect::Deleted })
            }
            _ => None,
        }
    }

    /// Returns the stored form; the scripts write the same.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Stored { created, etag } => {
                format!("stored {} {}", u8::from(*created), etag.as_str())
            }
            Self::Deleted { existed } => format!("deleted {}", u8::from(*existed)),
            Self::PreconditionFailed { etag } => {
                format!("failed {}", etag.as_ref().map_or("", ETag::as_str))
            }
        }
    }

    /// Parses the stored form; `None` for any other text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let flag = |text: &str| match text {
            "1" => Some(true),
            "0" => Some(false),
            _ => None,
        };
        let (word, rest) = text.split_once(' ')?;
        Some(match word {
            "stored" => {
                let (created, etag) = rest.split_once(' ')?;
                Self::Stored { created: flag(created)?, etag: ETag::from_stored(etag) }
            }
            "deleted" => Self::Deleted { existed: flag(rest)? },
            "failed" => {
                let etag = (!rest.is_empty()).then(|| ETag::from_stored(rest));
                Self::PreconditionFailed { etag }
            }
            _ => return None,
        })
    }

    /// Returns `true` if the operation took effect.
    pub fn applied(&self) -> bool {
        !matches!(self, Self::PreconditionFailed { .. })
    }
}

/// SHA-256 over method, key, condition, content type and body, each with its length before it.
fn digest(operation: &Operation) -> String {
    use std::fmt::Write as _;
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    add(operation.method().as_bytes());
    add(ObjectKey::as_str(operation.key()).as_bytes());
    let (kind, tags) = operation.condition().parts();
    add(kind.as_bytes());
    add(&(tags.len() as u64).to_be_bytes());
    tags.iter().for_each(|tag| add(tag.as_str().as_bytes()));
    if let Operation::Put { object, .. } = operation {
        add(object.content_type.as_bytes());
        add(&object.body);
    }
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etag::Condition;
    use crate::stores::contract::Object;
    use bytes::Bytes;

    fn put(key: &str, body: &str, content_type: &str, condition: Condition) -> Operation {
        let object = Object {
            etag: ETag::from_body(body.as_bytes(), &service_kit::ids::random_hex(8)),
            content_type: content_type.to_owned(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        Operation::Put { key: ObjectKey::new(key).unwrap(), object, condition }
    }

    #[test]
    fn every_difference_makes_another_operation() {
        let tag = |tag: &str| ETag::from_stored(tag);
        let key = || ObjectKey::new("a").unwrap();
        let all = [
            put("a", "body", "text/plain", Condition::None),
            put("a/b", "body", "text/plain", Condition::None),
            put("a", "other", "text/plain", Condition::None),
            put("a", "body", "text/html", Condition::None),
            put("a", "nbody", "text/plai", Condition::None),
            put("a", "body", "text/plain", Condition::Absent),
            put("a", "body", "text/plain", Condition::AnyOf(vec![tag("x")])),
            put("a", "body", "text/plain", Condition::AnyOf(vec![tag("x"), tag("y")])),
            put("a", "body", "text/plain", Condition::AnyOf(vec![tag("xy")])),
            put("a", "body", "text/plain", Condition::NoneOf(vec![tag("x")])),
            Operation::Delete { key: key(), condition: Condition::None },
            Operation::Delete { key: key(), condition: Condition::Exists },
        ];
        let digests: std::collections::HashSet<String> = all.iter().map(digest).collect();
        assert_eq!(digests.len(), all.len());
    }

    #[test]
    fn a_repeat_has_another_tag_and_is_the_same() {
        let of = || Once::new(None, "id", &put("a", "body", "text/plain", Condition::None));
        assert_eq!(of(), of());
        assert_eq!((of().scope(), of().id()), ("", "a id"));
    }

    #[test]
    fn records_are_read_back() {
        let once = Once::new(None, "id", &put("a", "body", "text/plain", Condition::None));
        let etag = ETag::from_body(b"body", "01");
        for first in [
            First::Stored { created: true, etag: etag.clone() },
            First::Stored { created: false, etag: etag.clone() },
            First::Deleted { existed: true },
            First::Deleted { existed: false },
            First::PreconditionFailed { etag: Some(etag) },
            First::PreconditionFailed { etag: None },
        ] {
            let record = once.record(&first);
            assert_eq!(once.compare(&record), Some(EarlierOperation::Same(first)));
            let other = Once { digest: "0".repeat(64), ..once.clone() };
            assert_eq!(other.compare(&record), Some(EarlierOperation::Other));
        }
        for damaged in ["", "abc", "abc stored", "abc stored 2 x", "abc deleted", "abc else 1"] {
            assert_eq!(once.compare(damaged), None, "{damaged}");
        }
    }
}
