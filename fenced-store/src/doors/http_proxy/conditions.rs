//! Conditional writes: fenced by the upstream itself, where it checks versions.
//!
//! A write under `If-Match: E` takes effect only while the resource's tag is `E`. If tags are
//! never reused, the write can never take effect once the resource has had another tag, however
//! late it arrives. So the guard sends every PUT and DELETE of a protected path under the tag that
//! it saw, or under `If-None-Match: *`, after a [`probe`] has shown at start that the upstream
//! keeps both promises. What follows:
//!
//! - *A PUT that was applied cannot be followed by a lower one.* A lower write that is still out
//!   names a tag that has passed, or is a creation, which fails while the resource exists. That is
//!   `atomic`, for this resource, and needs no time limit. So such a PUT need not wait for a
//!   quarantine either, as long as everything that is out is conditional.
//! - *An unknown outcome of a write under `If-Match` can be settled at once*: the same write is
//!   sent again. 2xx: it was applied once, and the first one is dead, for it would have changed the
//!   tag. 412, and a read then shows another version: it was applied or never will be. Neither
//!   would settle it alone: a read may be answered by a cache or a replica, and an upstream has
//!   other reasons for a 412, such as a lease on the object. So writes with
//!   [conditions of its own](has_vendor_condition) are sent as they are, and [signed](is_signed)
//!   ones, whose version the guard cannot ask for.
//! - *Absence is not a version.* A resource can be missing, made and missing again. A creation with
//!   an unknown outcome is not settled by the next one: it quarantines the lane, and no DELETE goes
//!   before the lifetime has passed. A DELETE is `bounded`, and so are reads, which leave no tag
//!   behind, and methods that have no condition (POST, PATCH).
//! - *Equality is not order.* Where equal content gives equal tags (hashes, times of change), a
//!   delayed write can find "its" version again. The probe refuses such an upstream, and a tag that
//!   is reused later ends the mode.

pub(super) mod attempt;
pub(super) mod probe;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderMap;
use http::header::AUTHORIZATION;

use self::attempt::Version;
use crate::counters::Counters;

/// Beginnings of the names of headers with conditions of one vendor: Azure, Google Cloud, S3.
const VENDOR_CONDITIONS: [&str; 7] = [
    "x-amz-if-",
    "x-goog-if-",
    "x-ms-blob-condition-",
    "x-ms-if-",
    "x-ms-lease-id",
    "x-ms-proposed-lease-id",
    "x-ms-source-if-",
];

/// Returns `true` if a request has a condition beside those of HTTP. A 412 to it shows nothing of
/// the tag.
pub(super) fn has_vendor_condition(headers: &HeaderMap) -> bool {
    let mut names = headers.keys().map(http::HeaderName::as_str);
    names.any(|name| VENDOR_CONDITIONS.iter().any(|begin| name.starts_with(begin)))
}

/// Beginnings of credentials that sign the method and headers of one request: S3, Google Cloud,
/// Azure, RFC 9421's forerunners.
const SIGNATURES: [&str; 5] = ["aws", "goog", "sharedkey", "signature", "hmac"];

/// Returns `true` if a request's credential is good for that request alone: a HEAD of the guard
/// with it would be refused.
pub(super) fn is_signed(headers: &HeaderMap) -> bool {
    let credential = headers.get(AUTHORIZATION).map_or(&b""[..], http::HeaderValue::as_bytes);
    let begins = |word: &str| {
        let begin = credential.get(..word.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(word.as_bytes()))
    };
    SIGNATURES.into_iter().any(begins) || headers.contains_key("signature-input")
}

/// Reason for a write without a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// A resource has no strong tag.
    Untagged,
    /// HEAD is not offered.
    Unreadable,
    /// A read shows the version that a write was refused under.
    Contradiction,
    /// A write was accepted and is applied later (202).
    Deferred,
    /// A write left the tag as it was.
    Reused,
}

/// Conditional writes to an upstream that passed the probe.
#[derive(Debug)]
pub(super) struct Conditions {
    /// Result of the probe, as a sentence.
    pub(super) shown: String,
    pub(super) versions: Versions,
    is_trusted: AtomicBool,
    counters: Counters,
}

impl Conditions {
    pub(super) fn new(shown: String, counters: Counters) -> Self {
        Self { shown, versions: Versions::default(), is_trusted: AtomicBool::new(true), counters }
    }

    /// Returns `false` once the upstream reused a tag: all writes are unconditional from then on.
    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted.load(Ordering::Acquire)
    }

    /// Notes that a resource, or the upstream, does not keep what the probe has shown.
    pub(super) fn doubt(&self, resource: &str, doubt: Doubt) {
        self.counters.unconditional_writes.inc();
        let text = match doubt {
            Doubt::Untagged => {
                "the upstream gives no strong ETag: its writes are bounded, not atomic"
            }
            Doubt::Unreadable => "the upstream refuses HEAD: this write is bounded, not atomic",
            Doubt::Contradiction => {
                "the upstream refuses the version that it shows: this write is bounded, not atomic"
            }
            Doubt::Deferred => {
                "the upstream defers a write (202): its outcome is unknown, and it is bounded"
            }
            Doubt::Reused => {
                self.is_trusted.store(false, Ordering::Release);
                tracing::error!(
                    resource,
                    "the upstream reused an ETag: all writes are bounded until the next start"
                );
                return;
            }
        };
        tracing::warn!(resource, "{text}");
    }
}

/// Last known version of a resource. Its lock is held during a write, so that writes of one
/// resource do not refuse each other.
pub(super) type Slot = Arc<tokio::sync::Mutex<Option<Version>>>;

/// Maximum number of resources in a generation; there are two.
const GENERATION: usize = 16_384;
/// Longest name of a resource that is kept, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// Last known versions of the resources that were written last: a hint that saves a read. A wrong
/// one costs a 412.
#[derive(Debug, Default)]
pub(super) struct Versions(Mutex<Generations>);

/// Those used since the last change of generations, and those used in the one before.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<String, Slot>,
    old: HashMap<String, Slot>,
}

impl Versions {
    /// Returns the slot of a resource. Slots that were not used for long are forgotten; a write
    /// that holds a forgotten one races with others, which its condition makes safe.
    pub(super) fn slot(&self, resource: &str) -> Slot {
        if resource.len() > MAX_NAME_BYTES {
            return Slot::default();
        }
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old } = &mut *generations;
        if let Some(slot) = young.get(resource) {
            return Arc::clone(slot);
        }
        let slot = old.remove(resource).unwrap_or_default();
        if young.len() >= GENERATION {
            *old = std::mem::take(young);
        }
        young.insert(resource.to_owned(), Arc::clone(&slot));
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resources_used_last_are_kept_and_their_number_is_bounded() {
        let versions = Versions::default();
        *versions.slot("hot").try_lock().unwrap() = Some(Version::Absent);
        *versions.slot("cold").try_lock().unwrap() = Some(Version::Absent);
        for number in 0..3 * GENERATION {
            versions.slot(&number.to_string());
            if number % 1000 == 0 {
                assert!(versions.slot("hot").try_lock().unwrap().is_some(), "{number}");
            }
        }
        assert!(versions.slot("cold").try_lock().unwrap().is_none());
        let generations = versions.0.lock().unwrap();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }
}
