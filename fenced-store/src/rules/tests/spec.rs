//! A second implementation of the rules' documentation: it cuts pattern and key into segments,
//! while the real matcher compares runs of bytes.

use fence_protocol::LockName;

/// Cuts into segments, each with the separator behind it.
fn cut(text: &[u8], separators: &[u8]) -> Vec<(Vec<u8>, Option<u8>)> {
    let mut segments = vec![(Vec::new(), None)];
    for byte in text {
        let last = segments.last_mut().unwrap();
        if separators.contains(byte) {
            last.1 = Some(*byte);
            segments.push((Vec::new(), None));
        } else {
            last.0.push(*byte);
        }
    }
    segments
}

fn literal(text: &[u8]) -> Vec<u8> {
    percent_encoding::percent_decode(text).collect()
}

/// Splits a segment at its wildcard: text before, name (empty for `*`), text behind.
fn wildcard(segment: &[u8]) -> Option<(Vec<u8>, String, Vec<u8>)> {
    let text = String::from_utf8(segment.to_vec()).unwrap();
    if let Some((before, after)) = text.split_once('*') {
        return Some((literal(before.as_bytes()), String::new(), literal(after.as_bytes())));
    }
    let (before, rest) = text.split_once('{')?;
    let (name, after) = rest.split_once('}').unwrap();
    Some((literal(before.as_bytes()), name.to_owned(), literal(after.as_bytes())))
}

/// Returns the text that a valid `pattern` without escaped separators catches in `key`, by name.
pub(super) fn caught(pattern: &str, key: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    if pattern == "**" {
        return Some(Vec::new());
    }
    let both: Vec<u8> = b"/:".iter().copied().filter(|s| pattern.as_bytes().contains(s)).collect();
    let separators = if both.is_empty() { b"/".to_vec() } else { both };
    let mut wanted = cut(pattern.as_bytes(), &separators);
    let found = cut(key, &separators);
    let is_open_ended = wanted.last().unwrap().0 == b"**";
    if is_open_ended {
        wanted.pop();
    }
    if found.len() < wanted.len() || (found.len() > wanted.len() && !is_open_ended) {
        return None;
    }
    let mut all = Vec::new();
    for (at, ((want, want_end), (have, have_end))) in wanted.iter().zip(&found).enumerate() {
        let is_last = at + 1 == wanted.len();
        if want_end != have_end && !(is_last && have_end.is_none()) {
            return None;
        }
        match wildcard(want) {
            None if literal(want) == *have => {}
            None => return None,
            Some((before, name, after)) => {
                let length = have.len().checked_sub(before.len() + after.len())?;
                if !have.starts_with(&before) || !have.ends_with(&after) {
                    return None;
                }
                all.push((name, have[before.len()..before.len() + length].to_vec()));
            }
        }
    }
    Some(all)
}

/// Returns `true` if every caught text can be part of a lock.
pub(super) fn is_sound(caught: &[(String, Vec<u8>)]) -> bool {
    caught
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .all(|(_, value)| std::str::from_utf8(value).is_ok_and(|text| LockName::new(text).is_ok()))
}
