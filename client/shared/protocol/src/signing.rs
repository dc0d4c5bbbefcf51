//! Signing and verifying tokens: HMAC-SHA256 with named keys.
//!
//! Without a signature anyone who can reach the guard could present the largest token and lock
//! everybody out, and a token of one lock could open another. The signature binds the number to
//! its namespace, lock and lease. It covers these bytes, each field ended by a line feed, which
//! none of them can contain:
//!
//! ```text
//! fencepost-token-v1 LF namespace LF lock LF token LF lease LF kid LF
//! ```
//!
//! The key file has a line a key, `kid:hex`, at least 32 bytes a key; empty lines and lines that
//! begin with `#` are skipped. The first key signs and all of them verify, so a key is rotated by
//! adding the new one below, then moving it to the top, then removing the old one. Test vectors:
//! docs/reference/fencing-token.md.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::header::{SIGNATURE_BYTES, Signature};
use crate::wire::version::KeyDigest;
use crate::{FencingToken, Invalid, KeyId, LeaseId, LockName, Namespace, Token};

/// The shortest key, in bytes.
pub const MIN_KEY_BYTES: usize = 32;
/// Label whose MAC is the digest of a key.
const DIGEST_LABEL: &[u8] = b"fencepost-key-digest-v1\n";
/// Length of a digest, in bytes: enough to distinguish the few keys of an installation.
const DIGEST_BYTES: usize = 8;

/// The keys that a server signs or verifies with.
///
/// `Debug` shows the names of the keys, never the keys.
#[derive(Clone)]
pub struct Keyring {
    keys: Vec<(KeyId, Hmac<Sha256>)>,
}

/// Why a token was not accepted as genuine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The header carries no signature, and this server wants one.
    #[error("the token carries no signature")]
    Missing,
    /// The header names a key that this server does not have.
    #[error("the token was signed with key \"{0}\", which this server does not have")]
    UnknownKey(KeyId),
    /// The MAC does not belong to the fields.
    #[error("the signature does not match the token's fields")]
    Mismatch,
}

impl Keyring {
    /// Reads a key file's text.
    ///
    /// # Errors
    /// [`Invalid`] where a line is not `kid:hex`, a key is shorter than 32 bytes, two keys share a
    /// name, or there is no key at all. The message never repeats key material.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut keys: Vec<(KeyId, Hmac<Sha256>)> = Vec::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key_id, key) = parse_line(line).map_err(|rule| bad_line(index + 1, &rule))?;
            if keys.iter().any(|(known, _)| *known == key_id) {
                return Err(bad_line(index + 1, &format!("repeats the key id {key_id}")));
            }
            keys.push((key_id, key));
        }
        if keys.is_empty() {
            return Err(Invalid::new("token key file", "", "has no key; write a line kid:hex"));
        }
        Ok(Self { keys })
    }

    /// Makes the header for a grant, signed with the first key.
    pub fn sign(
        &self,
        token: Token,
        lock: LockName,
        lease: LeaseId,
        namespace: Namespace,
    ) -> FencingToken {
        let mut fencing = FencingToken { token, lock, lease, namespace, signature: None };
        if let Some((key_id, key)) = self.keys.first() {
            let mac = authenticate(key, &fencing, key_id).finalize().into_bytes();
            fencing.signature = Some(Signature { key_id: key_id.clone(), mac: mac.into() });
        }
        fencing
    }

    /// Checks that the token was signed by a holder of one of the keys. Constant time in the MAC.
    ///
    /// # Errors
    /// [`SignatureError`]; the token must then not be used.
    pub fn verify(&self, fencing: &FencingToken) -> Result<(), SignatureError> {
        let signature = fencing.signature.as_ref().ok_or(SignatureError::Missing)?;
        let key = self
            .keys
            .iter()
            .find_map(|(key_id, key)| (*key_id == signature.key_id).then_some(key))
            .ok_or_else(|| SignatureError::UnknownKey(signature.key_id.clone()))?;
        authenticate(key, fencing, &signature.key_id)
            .verify_slice(&signature.mac)
            .map_err(|_| SignatureError::Mismatch)
    }

    /// The names of the keys; the first one signs.
    pub fn key_ids(&self) -> impl Iterator<Item = &KeyId> {
        self.keys.iter().map(|(key_id, _)| key_id)
    }

    /// Name and digest of every key, in the order of the file, to compare two servers' keys.
    ///
    /// A digest may be published. HMAC-SHA256 is a pseudorandom function, so without the key its
    /// value says nothing about the key or about the MAC of any other text; and no token's fields
    /// begin as the label does, so the digest is the beginning of no signature. It serves to check
    /// a guess of the key, as every signed token does: keys have to be random.
    pub fn digests(&self) -> impl Iterator<Item = KeyDigest> {
        self.keys.iter().map(|(key_id, key)| {
            let mac = key.clone().chain_update(DIGEST_LABEL).finalize().into_bytes();
            let digest = mac.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
            KeyDigest { kid: key_id.clone(), digest }
        })
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.key_ids()).finish()
    }
}

fn bad_line(number: usize, rule: &str) -> Invalid {
    Invalid::new("token key file line", number.to_string(), rule)
}

fn parse_line(line: &str) -> Result<(KeyId, Hmac<Sha256>), String> {
    let (key_id, hex) = line.split_once(':').ok_or("is not of the form kid:hex")?;
    let key_id = KeyId::new(key_id).map_err(|error| error.to_string())?;
    let bytes = from_hex(hex).ok_or("has a key that is not hexadecimal")?;
    if bytes.len() < MIN_KEY_BYTES {
        return Err(format!(
            "has a key of {} bytes; at least {MIN_KEY_BYTES} are required",
            bytes.len()
        ));
    }
    let key = Hmac::<Sha256>::new_from_slice(&bytes).map_err(|error| error.to_string())?;
    Ok((key_id, key))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    // A digit, because from_str_radix takes a sign too.
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

fn authenticate(key: &Hmac<Sha256>, fencing: &FencingToken, key_id: &KeyId) -> Hmac<Sha256> {
    let mut mac = key.clone();
    let token = fencing.token.to_string();
    let lease = fencing.lease.to_string();
    for field in [
        "fencepost-token-v1",
        fencing.namespace.as_str(),
        fencing.lock.as_str(),
        &token,
        &lease,
        key_id.as_str(),
    ] {
        mac.update(field.as_bytes());
        mac.update(b"\n");
    }
    mac
}

const _: () = assert!(SIGNATURE_BYTES == 32);

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "# rotated yearly\nk1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n\nk0:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\n";

    fn signed(keys: &Keyring) -> FencingToken {
        keys.sign(
            Token::new(34).unwrap(),
            LockName::new("orders/42").unwrap(),
            "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap(),
            Namespace::default(),
        )
    }

    /// The vector that docs/reference/fencing-token.md publishes.
    #[test]
    fn a_sign_is_no_hexadecimal_digit() {
        let key = "+f".repeat(MIN_KEY_BYTES);
        let error = Keyring::parse(&format!("k1:{key}")).unwrap_err();
        assert!(error.to_string().contains("not hexadecimal"), "{error}");
    }

    #[test]
    fn published_vector() {
        let keys = Keyring::parse(KEYS).unwrap();
        assert_eq!(
            signed(&keys).to_string(),
            "34;lock=\"orders/42\";lease=\"67e55044-10b1-426f-9247-bb680e5fe0c8\";ns=\"default\";\
             kid=\"k1\";sig=:63KWHbk9003A2IQtZUzMtxBUCkkRmpjYdlJ5w4lhkG8=:"
        );
    }

    #[test]
    fn every_field_is_bound() {
        let keys = Keyring::parse(KEYS).unwrap();
        let genuine = signed(&keys);
        assert_eq!(keys.verify(&genuine), Ok(()));
        let forgeries: [fn(&mut FencingToken); 5] = [
            |t| t.token = Token::new(35).unwrap(),
            |t| t.lock = LockName::new("orders/43").unwrap(),
            |t| t.lease = "67e55044-10b1-426f-9247-bb680e5fe0c9".parse().unwrap(),
            |t| t.namespace = Namespace::new("other").unwrap(),
            |t| t.signature.as_mut().unwrap().key_id = KeyId::new("k0").unwrap(),
        ];
        for forge in forgeries {
            let mut forged = genuine.clone();
            forge(&mut forged);
            assert_eq!(keys.verify(&forged), Err(SignatureError::Mismatch), "{forged}");
        }
    }

    #[test]
    fn missing_and_unknown_keys_are_distinguished() {
        let keys = Keyring::parse(KEYS).unwrap();
        let mut token = signed(&keys);
        token.signature.as_mut().unwrap().key_id = KeyId::new("k9").unwrap();
        assert!(matches!(keys.verify(&token), Err(SignatureError::UnknownKey(_))));
        token.signature = None;
        assert_eq!(keys.verify(&token), Err(SignatureError::Missing));
    }

    #[test]
    fn equal_keys_have_equal_digests_and_others_do_not() {
        let digests =
            |text: &str| -> Vec<KeyDigest> { Keyring::parse(text).unwrap().digests().collect() };
        let both = digests(KEYS);
        assert_eq!(both.iter().map(|key| key.kid.as_str()).collect::<Vec<_>>(), ["k1", "k0"]);
        assert_ne!(both[0].digest, both[1].digest);
        let renamed = digests(&KEYS.replace("k1:", "k9:"));
        assert_eq!(renamed[0].digest, both[0].digest, "the digest is of the key alone");
        assert_eq!(both[0].digest.len(), DIGEST_BYTES * 2);
        // The label is no token's text, and the digest is no key's beginning.
        assert!(!DIGEST_LABEL.starts_with(b"fencepost-token-v1\n"));
        assert!(!KEYS.contains(&both[0].digest));
    }

    #[test]
    fn rotation_keeps_old_tokens_valid() {
        let old = Keyring::parse(KEYS).unwrap();
        let token = signed(&old);
        let swapped: String = KEYS.lines().rev().map(|line| format!("{line}\n")).collect();
        let new = Keyring::parse(&swapped).unwrap();
        assert_eq!(new.verify(&token), Ok(()));
        assert_eq!(signed(&new).signature.unwrap().key_id.as_str(), "k0");
    }

    #[test]
    fn bad_key_files_are_refused_without_showing_keys() {
        for (text, reason) in [
            ("", "has no key"),
            ("k1", "kid:hex"),
            ("k1:zz", "not hexadecimal"),
            ("k1:abc", "not hexadecimal"),
            ("k1:deadbeef", "has a key of 4 bytes"),
            ("k 1:00", "key id"),
            (&format!("{KEYS}k0:{}", "00".repeat(32)), "repeats the key id k0"),
        ] {
            let error = Keyring::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains("deadbeef"));
        }
        assert_eq!(
            format!("{:?}", Keyring::parse(KEYS).unwrap()),
            "[KeyId(\"k1\"), KeyId(\"k0\")]"
        );
    }
}
