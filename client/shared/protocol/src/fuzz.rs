//! Fuzz targets: functions that take any bytes and panic where a parser breaks a promise.
//!
//! They are part of the tests and of fuzz builds alone; `tests/fuzz` runs them.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::{event, fence, lane, lock, session};
use crate::{
    FencingToken, Invalid, KeyId, Keyring, LeaseId, LockName, Namespace, Owner, Problem, Token,
    Ttl, credential, duration,
};

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[("tokens", tokens), ("words", words), ("wire", wire)];

const KEYS: &str = "k1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A header value, or a credential of several tokens. What is read is written in one form, means
/// the same when it is read again, and is not genuine unless it was signed.
fn tokens(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let parsed = credential::parse(text);
    if let Ok(header) = text.parse::<FencingToken>() {
        is_canonical(&header);
        assert!(parsed.is_ok_and(|tokens| tokens == [header]), "a header value is a credential");
        return;
    }
    let Ok(tokens) = parsed else { return };
    assert!((1..=credential::MAX_TOKENS).contains(&tokens.len()));
    for (at, token) in tokens.iter().enumerate() {
        is_canonical(token);
        assert!(tokens[..at].iter().all(|earlier| earlier.lock != token.lock), "one a lock");
    }
    let again: Vec<String> = tokens.iter().map(FencingToken::credential).collect();
    assert_eq!(again.join("."), text, "a credential has one spelling");
}

fn is_canonical(token: &FencingToken) {
    let text = token.to_string();
    assert_eq!(text.parse().as_ref(), Ok(token), "{text}");
    assert!(text.len() <= crate::header::MAX_HEADER_BYTES && text.is_ascii(), "{text}");
    assert_eq!(credential::parse(&token.credential()).as_deref(), Ok(&[token.clone()][..]));
    let Ok(keys) = Keyring::parse(KEYS) else { panic!("the keys of this test") };
    if keys.verify(token).is_ok() {
        let lock = token.lock.clone();
        let namespace = token.namespace.clone();
        assert_eq!(keys.sign(token.token, lock, token.lease, namespace), *token);
    }
}

/// Key files, names, numbers, ids and durations, a text each. What is read is written as it was.
fn words(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    key_file(text);
    assert_eq!(LockName::is_valid(input), LockName::new(text).is_ok(), "{text:?}");
    if let Ok(name) = LockName::new(text) {
        assert_eq!((name.as_str(), name.to_string().as_str()), (text, text));
    }
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.to_string(), text, "a token has one spelling");
    }
    let written =
        |written: Result<String, Invalid>| written.is_err() || written.as_deref() == Ok(text);
    assert!(written(text.parse::<Owner>().map(String::from)), "{text:?}");
    assert!(written(text.parse::<Namespace>().map(String::from)), "{text:?}");
    assert!(written(text.parse::<KeyId>().map(String::from)), "{text:?}");
    if let Ok(lease) = text.parse::<LeaseId>() {
        assert_eq!(lease.to_string().parse(), Ok(lease));
    }
    if let Ok(read) = duration::parse(text) {
        assert!(read <= duration::LONGEST);
        assert_eq!(duration::parse(&duration::show(read)), Ok(read), "{text:?}");
    }
    if let Ok(ms) = text.parse::<u64>()
        && let Ok(ttl) = Ttl::from_ms(ms)
    {
        assert_eq!(ttl.ms(), ms);
    }
}

/// A key file that is taken has nothing but keys, comments and blank lines.
fn key_file(text: &str) {
    let Ok(keys) = Keyring::parse(text) else { return };
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut key_ids = keys.key_ids();
    for line in lines {
        let (key_id, key) = line.split_once(':').unwrap_or_default();
        assert_eq!(key_ids.next().map(KeyId::as_str), Some(key_id));
        assert!(key.len() >= 64 && key.bytes().all(|digit| digit.is_ascii_hexdigit()), "{line:?}");
    }
    assert!(key_ids.next().is_none());
}

/// A JSON text as each type that travels. What is read is written so that it is read again as the
/// same.
fn wire(input: &[u8]) {
    survives::<lock::AcquireRequest>(input);
    survives::<lock::RenewRequest>(input);
    survives::<lock::RevokeRequest>(input);
    survives::<lock::LeaseReply>(input);
    survives::<lock::LockReply>(input);
    survives::<lock::LockPage>(input);
    survives::<session::SessionRequest>(input);
    survives::<session::SessionReply>(input);
    survives::<event::Event>(input);
    survives::<event::RefusalsReport>(input);
    survives::<fence::FencePage>(input);
    survives::<fence::FenceReply>(input);
    survives::<lane::LanePage>(input);
    survives::<lane::QuarantineRequest>(input);
    survives::<Problem>(input);
}

fn survives<T: DeserializeOwned + Serialize + PartialEq + Debug>(input: &[u8]) {
    let Ok(read) = serde_json::from_slice::<T>(input) else { return };
    let Ok(text) = serde_json::to_string(&read) else { panic!("{read:?} cannot be written") };
    match serde_json::from_str::<T>(&text) {
        Ok(again) => assert_eq!(again, read, "{text}"),
        Err(error) => panic!("{text} cannot be read again: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::TARGETS;

    /// Inputs a target in the short run.
    const ROUNDS: u32 = 10_000;

    #[test]
    fn every_target_holds_in_a_short_run() {
        for (name, target) in TARGETS {
            fence_fuzz::short_run(name, *target, ROUNDS);
        }
    }
}
