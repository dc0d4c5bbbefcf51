//! Which lock protects which resource.
//!
//! A rule is `PATTERN=LOCK` or `PATTERN=@open`. A pattern is written like a key; a segment may be
//! `*` (any one segment) or `{name}` (any one segment, to be used in the lock), and the last one
//! may be `**` (any rest, also none). The lock is written like a lock name in which `{name}`
//! stands for what the pattern caught.
//!
//! ```text
//! orders/{id}/**=orders/{id}     all below orders/42 needs the token of lock orders/42
//! public/**=@open                anyone may read and write, no token
//! ```
//!
//! The first rule that matches decides. Where none does, the key itself is the lock: nothing is
//! ever open unless a rule says so.
//!
//! Changing a rule gives a resource another lock, whose mark knows nothing of the first one's
//! tokens: do it while nobody holds a lease on either.

use std::fmt;
use std::str::FromStr;

use fence_protocol::{Invalid, LockName};

use crate::key::ObjectKey;

mod pattern;
use pattern::{Captures, Pattern};

/// What protects a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Operations need a token of this lock.
    Lock(LockName),
    /// Declared open: no token is needed, and none is compared.
    Open,
}

/// The rules in the order in which they were given.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// At most this many rules.
    pub const MAX: usize = 256;

    /// Rules that are tried in this order.
    ///
    /// # Errors
    /// [`Invalid`] where there are more than [`Rules::MAX`].
    pub fn new(rules: Vec<Rule>) -> Result<Self, Invalid> {
        if rules.len() > Self::MAX {
            let count = rules.len().to_string();
            return Err(Invalid::new("number of rules", count, "is too large; at most 256"));
        }
        Ok(Self(rules))
    }

    /// What protects `key`.
    ///
    /// # Errors
    /// [`Invalid`] where the rule that matches makes a lock name that is too long: the resource is
    /// then protected by no lock that could exist, and must not be touched.
    pub fn protection(&self, key: &ObjectKey) -> Result<Protection, Invalid> {
        for rule in &self.0 {
            if let Some(captures) = rule.pattern.matches(key.as_str()) {
                return rule.target.fill(&captures);
            }
        }
        Ok(Protection::Lock(key.as_lock().clone()))
    }
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    text: String,
    pattern: Pattern,
    target: Target,
}

impl FromStr for Rule {
    type Err = Invalid;

    /// Reads `PATTERN=LOCK` or `PATTERN=@open`.
    ///
    /// # Errors
    /// [`Invalid`] with the rule and what is wrong with it.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        parse(text).map_err(|problem| Invalid::new("rule", text, problem))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    let (pattern, target) = text.split_once('=').ok_or(
        "has no \"=\"; write PATTERN=LOCK or PATTERN=@open, as in orders/{id}/**=orders/{id}",
    )?;
    let pattern = Pattern::parse(pattern)?;
    let target = Target::parse(target, &pattern)?;
    Ok(Rule { text: text.to_owned(), pattern, target })
}

#[derive(Clone, Debug)]
enum Target {
    Open,
    Lock(Vec<Part>),
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Capture(String),
}

impl Target {
    fn parse(text: &str, pattern: &Pattern) -> Result<Self, String> {
        if text == "@open" {
            return Ok(Self::Open);
        }
        if text.starts_with('@') {
            return Err(format!("has an unknown word \"{text}\"; the only one is @open"));
        }
        let parts = parts(text)?;
        for part in &parts {
            if let Part::Capture(name) = part
                && !pattern.captures(name)
            {
                return Err(format!("uses {{{name}}}, which its pattern does not catch"));
            }
        }
        let sample: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Capture(_) => "x",
            })
            .collect();
        LockName::new(&sample).map_err(|error| format!("makes no lock name: {error}"))?;
        Ok(Self::Lock(parts))
    }

    fn fill(&self, captures: &Captures<'_>) -> Result<Protection, Invalid> {
        let Self::Lock(parts) = self else { return Ok(Protection::Open) };
        let name: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Capture(name) => captures.get(name),
            })
            .collect();
        LockName::new(&name).map(Protection::Lock)
    }
}

fn parts(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, tail) = after.split_once('}').ok_or("has a \"{\" without its \"}\"")?;
        parts.push(Part::Text(before.to_owned()));
        parts.push(Part::Capture(name.to_owned()));
        rest = tail;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(texts: &[&str]) -> Rules {
        Rules::new(texts.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
    }

    fn lock(rules: &Rules, key: &str) -> String {
        match rules.protection(&ObjectKey::new(key).unwrap()).unwrap() {
            Protection::Lock(lock) => lock.to_string(),
            Protection::Open => "@open".to_owned(),
        }
    }

    #[test]
    fn the_first_match_decides_and_the_key_is_the_default() {
        let rules = rules(&[
            "orders/{id}/**=orders/{id}",
            "a/{x}/{y}=swap:{y}.{x}",
            "public/**=@open",
            "one/*/three=fixed",
            "public/secret=never-reached",
        ]);
        for (key, expected) in [
            ("orders/42", "orders/42"),
            ("orders/42/items/7", "orders/42"),
            ("orders", "orders"),
            ("ordersx/42/a", "ordersx/42/a"),
            ("a/1/2", "swap:2.1"),
            ("a/1/2/3", "a/1/2/3"),
            ("public/readme", "@open"),
            ("public/secret", "@open"),
            ("public", "@open"),
            ("one/2/three", "fixed"),
            ("one/2/four", "one/2/four"),
        ] {
            assert_eq!(lock(&rules, key), expected, "{key}");
        }
    }

    #[test]
    fn bad_rules_are_refused_with_their_text() {
        for (text, reason) in [
            ("", "has no \"=\""),
            ("orders/**", "has no \"=\""),
            ("=a", "pattern is empty"),
            ("a=", "makes no lock name"),
            ("a/**/b=c", "** anywhere but at the end"),
            ("a//b=c", "empty segment"),
            ("/a=c", "empty segment"),
            ("a/../b=c", "segment \"..\""),
            ("a/x*=c", "only a whole segment can be *"),
            ("a/{id=c", "{name}"),
            ("a/{}=c", "{name}"),
            ("a/{id}/{id}=c", "catches {id} twice"),
            ("a/*={id}", "does not catch"),
            ("a/{id}={id", "without its"),
            ("a=b c", "makes no lock name"),
            ("a=@closed", "unknown word"),
            ("a b=c", "contains ' '"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.starts_with(&format!("rule \"{text}\"")), "{error}");
        }
    }

    #[test]
    fn a_lock_that_grows_too_long_is_an_error_and_not_open() {
        let rules = rules(&["{a}/{b}={a}{a}{b}"]);
        let key = ObjectKey::new(&format!("{}/x", "a".repeat(200))).unwrap();
        assert!(rules.protection(&key).is_err());
    }

    proptest! {
        #[test]
        fn nothing_is_open_by_accident(key in "[a-z]{1,4}(/[a-z]{1,4}){0,3}") {
            let rules = rules(&["orders/{id}/**=orders/{id}", "*/x=fixed", "{a}/{b}/**={a}"]);
            prop_assert_ne!(lock(&rules, &key), "@open");
        }

        #[test]
        fn any_text_is_a_rule_or_an_error(text in "[a{}*=@/.]{0,12}") {
            if let Ok(rule) = text.parse::<Rule>() {
                let rules = Rules::new(vec![rule]).unwrap();
                let _ = rules.protection(&ObjectKey::new("a/a").unwrap());
            }
        }
    }
}
