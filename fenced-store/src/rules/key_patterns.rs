//! Patterns of Redis' ACL for the keys that a connection may touch.
//!
//! A rule set maps keys to locks; an ACL can only list allowed keys, and its `*` crosses
//! separators. So a rule becomes patterns where the allowed keys are single names, or all names
//! behind a literal text. Keys that an earlier rule refuses, and Fencepost's own names, are carved
//! out of such a text byte by byte. Every other rule becomes no pattern: a missing pattern costs a
//! refusal, a pattern too wide would void the fence.

use std::cell::Cell;
use std::collections::BTreeSet;

use super::pattern::{Forced, Pattern};
use super::target::Target;
use super::{DefaultRule, Protects, Rule, Rules};
use crate::key::{OWN_NAMES, is_own_name};

mod splits;
#[cfg(test)]
mod tests;

use splits::{STEPS_MAX, splits};

/// Maximum number of patterns of a connection; Redis compares every key with each of them.
const PATTERNS_MAX: usize = 512;
/// Depths, in bytes, to which the text behind a common beginning is examined when names are carved
/// out. The first depth with few enough patterns is used; deeper keys count as refused.
const DEPTHS: [usize; 7] = [64, 32, 16, 8, 4, 2, 1];

/// Keys that a connection's scripts may touch, by patterns.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPatterns {
    write: Vec<KeyPattern>,
    read: Vec<KeyPattern>,
}

/// A literal text, and the allowed rest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyPattern {
    lead: Vec<u8>,
    rest: Rest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rest {
    Nothing,
    Anything,
    /// A byte that is none of these, then anything.
    AnythingBut(Vec<u8>),
}

/// Keys that a rule, or the default, allows.
#[derive(Clone, Debug)]
enum Region {
    One(Vec<u8>),
    /// All keys that begin with a text.
    Under(Vec<u8>),
}

/// Access that patterns allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Write,
    Read,
}

/// Holder of tokens, for whom patterns are made.
#[derive(Clone, Copy, Debug)]
struct Holder<'a> {
    locks: &'a [&'a str],
    purpose: Purpose,
    /// Reads need no token, whatever the rule.
    unfenced_reads: bool,
    /// Rest of [`STEPS_MAX`].
    steps_left: &'a Cell<usize>,
}

impl KeyPatterns {
    /// Returns patterns for all keys but Fencepost's own.
    pub(crate) fn everything() -> Self {
        let mut write = Vec::new();
        carve(Vec::new(), &own_under(b""), &mut write);
        Self { write, read: Vec::new() }
    }

    /// Returns `true` if a pattern covers `key`, for writing if `writes`.
    pub(crate) fn cover(&self, key: &[u8], writes: bool) -> bool {
        let matches = |patterns: &[KeyPattern]| patterns.iter().any(|pattern| pattern.matches(key));
        matches(&self.write) || (!writes && matches(&self.read))
    }

    /// Returns `true` if patterns cover all keys that begin with `lead`, for reading.
    pub(crate) fn cover_all_behind(&self, lead: &[u8]) -> bool {
        self.write.iter().chain(&self.read).any(|pattern| pattern.matches_all_behind(lead))
    }

    /// Returns `true` if some keys may be read and not written.
    pub(crate) fn has_reads(&self) -> bool {
        !self.read.is_empty()
    }

    /// Returns the patterns as arguments of ACL SETUSER.
    pub(crate) fn acl_rules(&self) -> impl Iterator<Item = Vec<u8>> {
        let written =
            |sign: &'static [u8]| move |pattern: &KeyPattern| [sign, &pattern.glob()].concat();
        self.write.iter().map(written(b"~")).chain(self.read.iter().map(written(b"%R~")))
    }
}

impl KeyPattern {
    fn matches(&self, key: &[u8]) -> bool {
        let Some(rest) = key.strip_prefix(self.lead.as_slice()) else { return false };
        match &self.rest {
            Rest::Nothing => rest.is_empty(),
            Rest::Anything => true,
            Rest::AnythingBut(bytes) => rest.first().is_some_and(|byte| !bytes.contains(byte)),
        }
    }

    fn matches_all_behind(&self, lead: &[u8]) -> bool {
        let Some(rest) = lead.strip_prefix(self.lead.as_slice()) else { return false };
        match &self.rest {
            Rest::Nothing => false,
            Rest::Anything => true,
            Rest::AnythingBut(bytes) => rest.first().is_some_and(|byte| !bytes.contains(byte)),
        }
    }

    fn glob(&self) -> Vec<u8> {
        let mut glob = escaped(&self.lead);
        match &self.rest {
            Rest::Nothing => {}
            Rest::Anything => glob.push(b'*'),
            Rest::AnythingBut(bytes) if bytes.is_empty() => glob.extend(b"?*"),
            Rest::AnythingBut(bytes) => {
                glob.extend(b"[^");
                bytes.iter().for_each(|byte| glob.extend([b'\\', *byte]));
                glob.extend(b"]*");
            }
        }
        glob
    }
}

/// Returns text as a pattern that matches it alone.
pub(crate) fn escaped(text: &[u8]) -> Vec<u8> {
    let mut glob = Vec::with_capacity(text.len());
    for byte in text {
        if b"*?[]\\".contains(byte) {
            glob.push(b'\\');
        }
        glob.push(*byte);
    }
    glob
}

/// Returns `true` if a byte can be in an ACL rule: Redis refuses white space and the zero byte.
pub(crate) fn is_expressible(byte: u8) -> bool {
    byte != 0 && byte != 0x0b && !byte.is_ascii_whitespace()
}

impl Rules {
    /// Makes the patterns of a connection that holds `locks`; with `unfenced_reads`, reads of
    /// protected keys need no token.
    pub(crate) fn key_patterns(&self, locks: &[&str], unfenced_reads: bool) -> KeyPatterns {
        let mut patterns = KeyPatterns::default();
        let steps_left = &Cell::new(STEPS_MAX);
        let writer = Holder { locks, purpose: Purpose::Write, unfenced_reads, steps_left };
        self.add_patterns(writer, PATTERNS_MAX, &mut patterns.write);
        if unfenced_reads || self.rules.iter().any(|rule| rule.unfenced_reads) {
            let reader = Holder { purpose: Purpose::Read, ..writer };
            let mut read = Vec::new();
            self.add_patterns(reader, PATTERNS_MAX - patterns.write.len(), &mut read);
            read.retain(|pattern| !patterns.write.contains(pattern));
            patterns.read = read;
        }
        patterns
    }

    fn add_patterns(&self, holder: Holder<'_>, most: usize, patterns: &mut Vec<KeyPattern>) {
        let by_rules = self.rules.iter().enumerate().flat_map(|(index, rule)| {
            rule.regions(holder).into_iter().map(move |region| (index, region))
        });
        let by_default = match self.default {
            DefaultRule::Open => vec![Region::Under(Vec::new())],
            DefaultRule::Fenced => {
                holder.locks.iter().map(|lock| Region::One(lock.as_bytes().to_vec())).collect()
            }
            DefaultRule::Deny => Vec::new(),
        };
        let by_default = by_default.into_iter().map(|region| (self.rules.len(), region));
        for (index, region) in by_rules.chain(by_default) {
            let room = most.saturating_sub(patterns.len());
            if room == 0 {
                return;
            }
            match region {
                Region::One(key) if self.allow(&key, holder) => {
                    patterns.push(KeyPattern { lead: key, rest: Rest::Nothing });
                }
                Region::One(_) => {}
                Region::Under(lead) => patterns.extend(self.under(lead, index, holder, room)),
            }
        }
    }

    /// Returns `true` if this key is allowed, and can be written in a pattern.
    fn allow(&self, key: &[u8], holder: Holder<'_>) -> bool {
        let mut scratch = String::new();
        let Ok(resolved) = self.resolve(key, &mut scratch) else { return false };
        let reads = resolved.unfenced_reads || holder.unfenced_reads;
        let is_allowed = match resolved.protection {
            Protects::Open => true,
            Protects::Deny => false,
            Protects::Lock(lock) => holder.may(lock, reads),
        };
        is_allowed && !is_own_name(key) && key.iter().all(|byte| is_expressible(*byte))
    }

    /// Returns Fencepost's own names behind the texts of rules that begin with `lead`, without it:
    /// a rule `app1:**` may mean a lock server with `--key-prefix app1:`.
    fn prefixed_names(&self, lead: &[u8]) -> Vec<Forced> {
        let mut names = Vec::new();
        for rule in &self.rules {
            for region in regions(&rule.pattern, &vec![None; rule.pattern.wildcards()]) {
                let Region::Under(text) = region else { continue };
                let Some(behind) = text.strip_prefix(lead) else { continue };
                names.extend(own_under(&text).into_iter().map(|own| own.in_front(behind)));
            }
        }
        names
    }

    /// Returns patterns for the keys that begin with `lead`, without those that one of the first
    /// `index` rules refuses; none if more than `room` patterns are needed.
    fn under(
        &self,
        lead: Vec<u8>,
        index: usize,
        holder: Holder<'_>,
        room: usize,
    ) -> Vec<KeyPattern> {
        if !lead.iter().all(|byte| is_expressible(*byte)) {
            return Vec::new();
        }
        let earlier = self.rules.iter().take(index).filter(|rule| !rule.always_allows(holder));
        let mut refused: Vec<Forced> =
            earlier.flat_map(|rule| rule.pattern.forced_under(&lead)).collect();
        let rule = self.rules.get(index);
        let is_of_a_lock = rule.is_some_and(|rule| matches!(rule.target, Target::Built(_)));
        // A lock name that is a lock server's prefix too is the business of an earlier rule.
        if !is_of_a_lock || lead.is_empty() || lead.contains(&b'{') {
            refused.extend(own_under(&lead));
            refused.extend(self.prefixed_names(&lead));
        }
        for depth in DEPTHS {
            let cut: Vec<Forced> = refused.iter().map(|forced| cut(forced, depth)).collect();
            let mut patterns = Vec::new();
            carve(lead.clone(), &cut, &mut patterns);
            if patterns.len() <= room {
                return patterns;
            }
        }
        Vec::new()
    }
}

impl Holder<'_> {
    /// Returns `true` if keys of `lock` are allowed; with `reads`, reading them needs no token.
    fn may(self, lock: &str, reads: bool) -> bool {
        self.locks.contains(&lock) || (self.purpose == Purpose::Read && reads)
    }
}

impl Rule {
    /// Returns `true` if the rule refuses none of its keys.
    fn always_allows(&self, holder: Holder<'_>) -> bool {
        // Caught text may be no lock name, and is then refused.
        !self.pattern.has_names()
            && match &self.target {
                Target::Open => true,
                Target::Fixed(lock) => self.may(holder, lock.as_str()),
                Target::Deny | Target::Built(_) => false,
            }
    }

    fn may(&self, holder: Holder<'_>, lock: &str) -> bool {
        holder.may(lock, self.unfenced_reads || holder.unfenced_reads)
    }

    /// Returns the keys that match the rule and that it allows, whatever other rules say.
    fn regions(&self, holder: Holder<'_>) -> Vec<Region> {
        let unbound = vec![None; self.pattern.wildcards()];
        match &self.target {
            Target::Deny => Vec::new(),
            Target::Open => regions(&self.pattern, &unbound),
            Target::Fixed(lock) if self.may(holder, lock.as_str()) => {
                regions(&self.pattern, &unbound)
            }
            Target::Fixed(_) => Vec::new(),
            Target::Built(parts) => {
                let mut found = Vec::new();
                for lock in holder.locks {
                    for bound in &splits(parts, lock, unbound.len(), holder.steps_left) {
                        found.extend(regions(&self.pattern, bound));
                    }
                }
                found
            }
        }
    }
}

/// Returns the keys that match `pattern` with these texts as its wildcards.
fn regions(pattern: &Pattern, bound: &[Option<&str>]) -> Vec<Region> {
    let Some(bounded) = pattern.bounded(bound) else { return Vec::new() };
    bounded
        .into_iter()
        .map(|forced| match forced {
            Forced::One(key) => Region::One(key),
            Forced::Under(lead) => Region::Under(lead),
        })
        .collect()
}

/// Returns Fencepost's own names that begin with `lead`, without it. Before the brace is nothing,
/// or the lock server's `--key-prefix`; here only one that is `lead` itself.
fn own_under(lead: &[u8]) -> Vec<Forced> {
    let at = lead.iter().position(|byte| *byte == b'{').unwrap_or(lead.len());
    let begun = &lead[at..];
    match OWN_NAMES.strip_prefix(begun) {
        Some(rest) => vec![Forced::Under(rest.to_vec())],
        None if begun.starts_with(OWN_NAMES) => vec![Forced::Under(Vec::new())],
        None => Vec::new(),
    }
}

/// Widens `forced` to at most `depth` bytes that an ACL can express.
fn cut(forced: &Forced, depth: usize) -> Forced {
    let text = match forced {
        Forced::One(text) | Forced::Under(text) => text,
    };
    let len = text.iter().take(depth).take_while(|byte| is_expressible(**byte)).count();
    if len == text.len() { forced.clone() } else { Forced::Under(text[..len].to_vec()) }
}

/// Adds patterns for the keys that begin with `lead` and do not continue as `refused` says.
fn carve(lead: Vec<u8>, refused: &[Forced], patterns: &mut Vec<KeyPattern>) {
    let is_all = |forced: &Forced| matches!(forced, Forced::Under(text) if text.is_empty());
    if refused.iter().any(is_all) || patterns.len() > PATTERNS_MAX {
        return;
    }
    if refused.is_empty() {
        patterns.push(KeyPattern { lead, rest: Rest::Anything });
        return;
    }
    if !refused.iter().any(|forced| matches!(forced, Forced::One(text) if text.is_empty())) {
        patterns.push(KeyPattern { lead: lead.clone(), rest: Rest::Nothing });
    }
    let first = |forced: &Forced| match forced {
        Forced::One(text) | Forced::Under(text) => text.first().copied(),
    };
    let bytes: BTreeSet<u8> = refused.iter().filter_map(first).collect();
    let rest = Rest::AnythingBut(bytes.iter().copied().collect());
    patterns.push(KeyPattern { lead: lead.clone(), rest });
    for byte in bytes {
        let deeper: Vec<Forced> = refused.iter().filter_map(|forced| forced.behind(byte)).collect();
        let mut lead = lead.clone();
        lead.push(byte);
        carve(lead, &deeper, patterns);
    }
}
