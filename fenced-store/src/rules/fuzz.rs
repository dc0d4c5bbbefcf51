//! Fuzz target: rules, with keys and paths to resolve.

use std::fmt::Write as _;

use percent_encoding::percent_decode_str;

use super::{Protection, Protects, Rule, Rules};
use crate::key::{ObjectKey, lock_from_path};
use fence_protocol::LockName;

/// Tests input whose lines with a `=` are rules, and whose other lines are keys and request paths.
/// A rule gives the protection that a simple reading of its text gives, and a path has one meaning
/// for all readers.
pub(crate) fn rules(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut parsed: Vec<Rule> = Vec::new();
    for line in text.lines().filter(|line| line.contains('=')).take(16) {
        if let Ok(rule) = line.parse::<Rule>() {
            assert_eq!(rule.to_string(), line, "a rule keeps its text");
            parsed.push(rule);
        }
    }
    let Ok(rules) = Rules::new(parsed) else { panic!("16 rules are not too many") };
    for line in input.split(|byte| *byte == b'\n').filter(|line| !line.contains(&b'=')) {
        key(&rules, line);
        if let Ok(path) = std::str::from_utf8(line) {
            path_is_one_key(&rules, path);
        }
    }
}

fn key(rules: &Rules, key: &[u8]) {
    let mut scratch = "left over".to_owned();
    let resolved = rules.resolve(key, &mut scratch).ok().map(|resolved| resolved.protection);
    if let Some(Protects::Lock(name)) = resolved {
        assert!(LockName::is_valid(name.as_bytes()) && LockName::new(name).is_ok(), "{name:?}");
    }
    let is_lock = |name: &String| LockName::is_valid(name.as_bytes());
    let expected = match rules.rules.iter().find_map(|rule| simple(&rule.text, key)) {
        // A word cannot be a lock: no name has an @.
        Some(made) => made.filter(|name| ["@open", "@deny"].contains(&&**name) || is_lock(name)),
        None => std::str::from_utf8(key).ok().map(ToOwned::to_owned).filter(is_lock),
    };
    let found = resolved.map(|protection| match protection {
        Protects::Lock(name) => name.to_owned(),
        Protects::Open => "@open".to_owned(),
        Protects::Deny => "@deny".to_owned(),
    });
    assert_eq!(found, expected, "key {}", key.escape_ascii());
}

/// Resolves a key under a rule by the rule's text alone, trying every way to match; `None` if it
/// does not match. The lock is `None` if its name would contain text that is no lock name.
fn simple(rule: &str, key: &[u8]) -> Option<Option<String>> {
    let (pattern, target) = rule.split_once('=')?;
    let target = target.split(',').next().unwrap_or_default();
    let separators: &[u8] = match (pattern.contains('/'), pattern.contains(':')) {
        (true, true) => b"/:",
        (false, true) => b":",
        _ => b"/",
    };
    let mut ways = Vec::new();
    simple_match(pattern, key, separators, &mut Vec::new(), &mut ways);
    assert!(ways.len() <= 1, "{rule} matches {} in several ways: {ways:?}", key.escape_ascii());
    let caught = ways.pop()?;
    let mut lock = target.to_owned();
    for (name, text) in &caught {
        if !LockName::is_valid(text) {
            return Some(None);
        }
        lock = lock.replace(&format!("{{{name}}}"), &String::from_utf8_lossy(text));
    }
    Some(Some(lock))
}

type Caught = Vec<(String, Vec<u8>)>;

/// Adds what the names catch, for each way in which `pattern` matches all of `key`.
fn simple_match(
    pattern: &str,
    key: &[u8],
    separators: &[u8],
    caught: &mut Caught,
    ways: &mut Vec<Caught>,
) {
    let Some(first) = pattern.chars().next() else {
        if key.is_empty() {
            ways.push(caught.clone());
        }
        return;
    };
    if matches!(pattern, "**") || (matches!(pattern, "/**" | ":**") && key.is_empty()) {
        ways.push(caught.clone());
        return;
    }
    let (name, behind) = match (first, pattern[1..].split_once('}')) {
        ('*', _) => (None, &pattern[1..]),
        ('{', Some((name, behind))) => (Some(name.to_owned()), behind),
        ('%', _) => {
            let byte = u8::from_str_radix(&pattern[1..3], 16).ok();
            if key.first().copied() == byte {
                simple_match(&pattern[3..], &key[1..], separators, caught, ways);
            }
            return;
        }
        _ => {
            if key.first().copied() == Some(first as u8) {
                simple_match(&pattern[1..], &key[1..], separators, caught, ways);
            }
            return;
        }
    };
    let most = key.iter().take_while(|byte| !separators.contains(byte)).count();
    for len in 0..=most {
        let named = name.is_some();
        if let Some(name) = &name {
            caught.push((name.clone(), key[..len].to_vec()));
        }
        simple_match(behind, &key[len..], separators, caught, ways);
        if named {
            caught.pop();
        }
    }
}

/// Checks that an accepted path is the same key for a reader that decodes it once more or resolves
/// dots.
fn path_is_one_key(rules: &Rules, path: &str) {
    let Ok(key) = ObjectKey::from_path(path) else { return };
    assert_eq!(ObjectKey::from_path(key.as_str()).as_ref(), Ok(&key));
    assert_eq!(lock_from_path(path).as_ref(), Ok(key.as_lock()));
    let mut again = percent_decode_str(path).decode_utf8_lossy().into_owned();
    assert_eq!(again, key.as_str());
    again = percent_decode_str(&again).decode_utf8_lossy().into_owned();
    let mut walked = String::new();
    for segment in again.split(['/', '\\']).filter(|segment| !segment.is_empty()) {
        assert!(!matches!(segment, "." | ".."), "{path} leads elsewhere");
        let _ = write!(walked, "{}{segment}", if walked.is_empty() { "" } else { "/" });
    }
    assert_eq!(walked, key.as_str(), "{path} has two meanings");
    // The key itself is forwarded.
    let forwarded: Result<http::Uri, _> = format!("/{key}").parse();
    assert!(forwarded.is_ok_and(|uri| uri.path() == format!("/{key}") && uri.query().is_none()));
    let protection = rules.protection(&key);
    let mut scratch = String::new();
    let resolved = rules.resolve(key.as_str().as_bytes(), &mut scratch);
    match (protection, resolved.map(|resolved| resolved.protection)) {
        (Ok(Protection::Lock { lock, .. }), Ok(Protects::Lock(name))) => {
            assert_eq!(lock.as_str(), name);
        }
        (Ok(Protection::Open), Ok(Protects::Open))
        | (Ok(Protection::Deny), Ok(Protects::Deny))
        | (Err(_), Err(_)) => {}
        other => panic!("{key} is protected in two ways: {other:?}"),
    }
}
