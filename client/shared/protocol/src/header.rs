//! The `Fencing-Token` header: how a token travels from the lock server to the guard.
//!
//! An RFC 9651 item: the token as an integer, everything else as parameters.
//!
//! ```text
//! Fencing-Token: 34;lock="orders/42";lease="67e5…";ns="default";kid="k1";sig=:base64:
//! ```
//!
//! `lock` and `lease` are required. `ns` defaults to `default`. `kid` and `sig` come together or
//! not at all; without them the token is unsigned. Unknown and repeated parameters are refused: a
//! guard must never act on a header that another reader could understand differently.

use std::fmt;
use std::str::FromStr;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use sfv::visitor::ParameterVisitor;
use sfv::{BareItemFromInput, KeyRef, Parser};

use crate::{Invalid, KeyId, LeaseId, LockName, Namespace, Token};

/// The request header that carries the token.
pub const FENCING_TOKEN: &str = "fencing-token";
/// The reply header with the lock's mark after the operation.
pub const FENCING_MARK: &str = "fencing-mark";
/// The reply header that says what the guard guarantees for the store: `atomic`, `bounded` or
/// `observe`.
pub const FENCING_GUARANTEE: &str = "fencing-guarantee";
/// The request header with the sender's name for an operation, by which a repeat is recognised.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The reply header, `true`, of an operation that had been done before under its name.
pub const IDEMPOTENCY_REPLAYED: &str = "idempotency-replayed";

/// The longest header value that is read, in bytes. A full-length name, namespace and signature
/// need about 520.
pub const MAX_HEADER_BYTES: usize = 1024;

/// The length of a signature: HMAC-SHA256.
pub const SIGNATURE_BYTES: usize = 32;

/// Content of the `Fencing-Token` header. A value proves that the header was well formed, not that
/// it is genuine: for that see [`Keyring::verify`](crate::Keyring::verify).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencingToken {
    /// The number that the guard compares.
    pub token: Token,
    /// The lock that the token was granted for.
    pub lock: LockName,
    /// Lease of the grant; distinguishes two holders of one number.
    pub lease: LeaseId,
    /// The name space of the lock.
    pub namespace: Namespace,
    /// Key and signature, where the issuer signs.
    pub signature: Option<Signature>,
}

/// Key name and MAC. `Debug` shows the name alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Signature {
    /// The key's name.
    pub key_id: KeyId,
    /// HMAC-SHA256 over the other fields (see [`crate::signing`]).
    pub mac: [u8; SIGNATURE_BYTES],
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signature").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl FromStr for FencingToken {
    type Err = Invalid;

    /// Parses a header value.
    ///
    /// # Errors
    /// [`Invalid`] for everything that is not exactly the form above; the message says what is
    /// wrong with it.
    fn from_str(value: &str) -> Result<Self, Invalid> {
        let refuse = |rule: String| Invalid::new("Fencing-Token", value, rule);
        if value.len() > MAX_HEADER_BYTES {
            return Err(refuse(format!("is longer than {MAX_HEADER_BYTES} bytes")));
        }
        Parser::new(value)
            .parse_item_with_visitor(|item: BareItemFromInput<'_>| match item {
                BareItemFromInput::Integer(number) => {
                    let number = i64::from(number);
                    let token = number.to_string().parse().map_err(Refused::invalid)?;
                    Ok(Fields::new(token))
                }
                _ => Err(Refused("must begin with an integer, the token".to_owned())),
            })
            .map_err(|error| refuse(format!("is malformed: {error}")))
    }
}

impl fmt::Display for FencingToken {
    /// The header value in its canonical order: lock, lease, ns, kid, sig. No value needs an
    /// escape: names, ids and base64 have neither quotes nor backslashes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, lock, lease, namespace, signature } = self;
        write!(f, "{token};lock=\"{lock}\";lease=\"{lease}\";ns=\"{namespace}\"")?;
        if let Some(Signature { key_id, mac }) = signature {
            let mac = Base64Display::new(mac, &STANDARD);
            write!(f, ";kid=\"{key_id}\";sig=:{mac}:")?;
        }
        Ok(())
    }
}

/// Why the visitor stopped.
#[derive(Debug)]
struct Refused(String);

impl Refused {
    fn invalid(error: Invalid) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// The parameters as they come in. RFC 9651 would let the last of two equal keys win; a repeated
/// key is refused here, because a reader that keeps the first would be fooled.
struct Fields {
    token: Token,
    lock: Option<LockName>,
    lease: Option<LeaseId>,
    namespace: Option<Namespace>,
    key_id: Option<KeyId>,
    mac: Option<[u8; SIGNATURE_BYTES]>,
}

impl Fields {
    fn new(token: Token) -> Self {
        Self { token, lock: None, lease: None, namespace: None, key_id: None, mac: None }
    }
}

impl<'de> ParameterVisitor<'de> for Fields {
    type Out = FencingToken;
    type Error = Refused;

    fn parameter(
        &mut self,
        key: &'de KeyRef,
        value: BareItemFromInput<'de>,
    ) -> Result<(), Refused> {
        match key.as_str() {
            "lock" => set(&mut self.lock, key, parsed(key, &value)?),
            "lease" => set(&mut self.lease, key, parsed(key, &value)?),
            "ns" => set(&mut self.namespace, key, parsed(key, &value)?),
            "kid" => set(&mut self.key_id, key, parsed(key, &value)?),
            "sig" => set(&mut self.mac, key, mac(&value)?),
            other => Err(Refused(format!("has an unknown parameter {other}"))),
        }
    }

    fn finish(self) -> Result<FencingToken, Refused> {
        let missing = |name: &str| Refused(format!("lacks the parameter {name}"));
        let signature = match (self.key_id, self.mac) {
            (Some(key_id), Some(mac)) => Some(Signature { key_id, mac }),
            (None, None) => None,
            _ => return Err(Refused("has only one of kid and sig".to_owned())),
        };
        Ok(FencingToken {
            token: self.token,
            lock: self.lock.ok_or_else(|| missing("lock"))?,
            lease: self.lease.ok_or_else(|| missing("lease"))?,
            namespace: self.namespace.unwrap_or_default(),
            signature,
        })
    }
}

fn set<T>(slot: &mut Option<T>, key: &KeyRef, value: T) -> Result<(), Refused> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refused(format!("repeats the parameter {}", key.as_str()))),
    }
}

fn parsed<T: FromStr<Err = Invalid>>(
    key: &KeyRef,
    value: &BareItemFromInput<'_>,
) -> Result<T, Refused> {
    match value {
        BareItemFromInput::String(text) => text.as_str().parse().map_err(Refused::invalid),
        _ => Err(Refused(format!("parameter {} must be a quoted string", key.as_str()))),
    }
}

fn mac(value: &BareItemFromInput<'_>) -> Result<[u8; SIGNATURE_BYTES], Refused> {
    match value {
        BareItemFromInput::ByteSequence(bytes) => bytes
            .as_slice()
            .try_into()
            .map_err(|_| Refused(format!("parameter sig must be {SIGNATURE_BYTES} bytes"))),
        _ => Err(Refused("parameter sig must be a byte sequence, :base64:".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEASE: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

    fn refusal(value: &str) -> String {
        value.parse::<FencingToken>().expect_err(value).to_string()
    }

    #[test]
    fn prints_the_canonical_form() {
        let value = format!("34;lock=\"orders/42\";lease=\"{LEASE}\";ns=\"default\"");
        let token: FencingToken = value.parse().unwrap();
        assert_eq!(token.token.get(), 34);
        assert_eq!(token.to_string(), value);
    }

    #[test]
    fn reads_other_orders_and_spaces_and_the_default_namespace() {
        let token: FencingToken = format!(" 34; lease=\"{LEASE}\"; lock=\"a\" ").parse().unwrap();
        assert_eq!(token.namespace, Namespace::default());
        assert_eq!(token.lock.as_str(), "a");
    }

    #[test]
    fn refuses_malformed_values_with_a_reason() {
        let tail = format!(";lock=\"a\";lease=\"{LEASE}\"");
        for (value, reason) in [
            (format!("0{tail}"), "must be an integer from 1"),
            (format!("-1{tail}"), "must be an integer from 1"),
            (format!("1000000000000000{tail}"), "malformed"),
            (format!("1.5{tail}"), "must begin with an integer"),
            (format!("\"34\"{tail}"), "must begin with an integer"),
            ("34".to_owned(), "lacks the parameter lock"),
            ("34;lock=\"a\"".to_owned(), "lacks the parameter lease"),
            (format!("34;lock=\"a\"{tail}"), "repeats the parameter lock"),
            (format!("34{tail};color=\"red\""), "unknown parameter color"),
            (format!("34{tail};kid=\"k1\""), "only one of kid and sig"),
            (format!("34{tail};kid=\"k1\";sig=:AAAA:"), "must be 32 bytes"),
            (format!("34{tail};kid=\"k1\";sig=\"AAAA\""), "byte sequence"),
            (format!("34;lock=\"a/../b\";lease=\"{LEASE}\""), "segment"),
            ("34;lock=\"a\";lease=\"nope\"".to_owned(), "is not a UUID"),
            (format!("34{tail}, 35{tail}"), "malformed"),
            (format!("34{tail};x=\"{}\"", "y".repeat(2000)), "longer than"),
            (String::new(), "malformed"),
        ] {
            let text = refusal(&value);
            assert!(text.contains(reason), "{value}: {text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(value in "\\PC{0,80}") {
            let _ = value.parse::<FencingToken>();
        }

        #[test]
        fn round_trips(
            number in 1..=Token::MAX,
            lock in "[A-Za-z0-9._:-]{1,20}(/[A-Za-z0-9_:-]{1,20}){0,3}",
            lease in 1..=u128::MAX,
            mac in proptest::option::of(proptest::array::uniform32(any::<u8>())),
        ) {
            prop_assume!(LockName::new(&lock).is_ok());
            let token = FencingToken {
                token: Token::new(number).unwrap(),
                lock: LockName::new(&lock).unwrap(),
                lease: LeaseId::new(uuid::Uuid::from_u128(lease)).unwrap(),
                namespace: Namespace::default(),
                signature: mac.map(|mac| Signature { key_id: KeyId::new("k1").unwrap(), mac }),
            };
            prop_assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
        }
    }
}
