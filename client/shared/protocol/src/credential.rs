//! Tokens for the places where other protocols put a password: a URL, `AUTH`, `HELLO`.
//!
//! A header value has quotes, semicolons and slashes, which a URL would take apart. Its credential
//! has only characters that mean nothing in a URL and need no escape there:
//!
//! ```text
//! fc1_MzQ7bG9jaz0ib3JkZXJzLzQyIjs…      "fc1_" and the header value in base64url, unpadded
//! fc1_MzQ7bG9jaz0….fc1_Nzt0b2Nrcz0…     several tokens, one a lock
//! ```
//!
//! One token may also stand there as its plain header value. Test vectors:
//! docs/reference/fencing-token.md.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::{FencingToken, Invalid};

/// Prefix of a credential: its kind and version.
pub const PREFIX: &str = "fc1_";
/// Separator of two credentials. Base64url does not use it.
pub const SEPARATOR: char = '.';
/// Largest number of tokens in one credential.
pub const MAX_TOKENS: usize = 16;
/// The longest text that is read, in bytes.
pub const MAX_CREDENTIAL_BYTES: usize = 64 << 10;

impl FencingToken {
    /// The token as a credential: its header value in a form that URLs leave alone.
    pub fn credential(&self) -> String {
        of_header(&self.to_string())
    }
}

/// The credential of a token whose header value is `header`.
pub fn of_header(header: &str) -> String {
    let mut text = String::with_capacity(PREFIX.len() + header.len().div_ceil(3) * 4);
    text.push_str(PREFIX);
    URL_SAFE_NO_PAD.encode_string(header, &mut text);
    text
}

/// Reads the tokens of a credential, or the one of a plain header value; at least one.
///
/// That they are well formed is all that is known then: whether they are genuine says
/// [`Keyring::verify`](crate::Keyring::verify).
///
/// # Errors
/// [`Invalid`] where the text is longer than [`MAX_CREDENTIAL_BYTES`], a part of it is no token,
/// there are more than [`MAX_TOKENS`], or two are of one lock. What was not meant to be a token, as
/// a password of something else, is not repeated in the message.
pub fn parse(text: &str) -> Result<Vec<FencingToken>, Invalid> {
    if text.len() > MAX_CREDENTIAL_BYTES {
        let length = format!("has {} bytes; at most {MAX_CREDENTIAL_BYTES} are read", text.len());
        return Err(refused(length));
    }
    if !text.starts_with(PREFIX) {
        return plain(text).map(|token| vec![token]);
    }
    let mut tokens: Vec<FencingToken> = Vec::new();
    for part in text.split(SEPARATOR) {
        if tokens.len() == MAX_TOKENS {
            return Err(refused(format!("has more than {MAX_TOKENS} tokens")));
        }
        let token = decode(part).map_err(|rule| at(tokens.len(), &rule))?;
        if tokens.iter().any(|earlier| earlier.lock == token.lock) {
            return Err(at(tokens.len(), &format!("is of lock {}, as one before it", token.lock)));
        }
        tokens.push(token);
    }
    Ok(tokens)
}

/// A header value as it is. Only what looks like one is repeated in an error.
fn plain(text: &str) -> Result<FencingToken, Invalid> {
    if text.contains("lock=") {
        return text.parse();
    }
    Err(refused(format!(
        "is no token; it begins with {PREFIX}, or is a Fencing-Token header value"
    )))
}

fn decode(part: &str) -> Result<FencingToken, String> {
    let encoded =
        part.strip_prefix(PREFIX).ok_or_else(|| format!("does not begin with {PREFIX}"))?;
    let value =
        URL_SAFE_NO_PAD.decode(encoded).map_err(|error| format!("is not base64url: {error}"))?;
    let value = String::from_utf8(value).map_err(|_| "does not hold text".to_owned())?;
    let token: FencingToken =
        value.parse().map_err(|error: Invalid| format!("holds no token: {error}"))?;
    if token.to_string() != value {
        return Err("holds a header value that is not in its canonical form".to_owned());
    }
    Ok(token)
}

fn refused(rule: String) -> Invalid {
    Invalid::new("credential", "…", rule)
}

fn at(index: usize, rule: &str) -> Invalid {
    refused(format!("cannot be read: token {} of it {rule}", index + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{MAX_HEADER_BYTES, Signature};
    use crate::{KeyId, LeaseId, LockName, Namespace, Token};
    use proptest::prelude::*;

    fn token(number: u64, lock: &str) -> FencingToken {
        FencingToken {
            token: Token::new(number).unwrap(),
            lock: LockName::new(lock).unwrap(),
            lease: "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap(),
            namespace: Namespace::default(),
            signature: None,
        }
    }

    fn several(count: usize) -> (Vec<FencingToken>, String) {
        let tokens: Vec<_> = (0..count).map(|n| token(7, &format!("lock-{n}"))).collect();
        let texts: Vec<_> = tokens.iter().map(FencingToken::credential).collect();
        (tokens, texts.join("."))
    }

    #[test]
    fn several_tokens_are_read_in_their_order_up_to_the_limit() {
        let (tokens, text) = several(MAX_TOKENS);
        assert_eq!(parse(&text).unwrap(), tokens);
        let error = parse(&several(MAX_TOKENS + 1).1).unwrap_err().to_string();
        assert!(error.contains("more than 16 tokens"), "{error}");
    }

    #[test]
    fn a_plain_header_value_is_taken_alone() {
        let value = token(34, "a.b").to_string();
        assert_eq!(parse(&value).unwrap(), [token(34, "a.b")]);
        let other = token(7, "b");
        assert!(parse(&format!("{value}.{}", other.credential())).is_err());
        assert!(parse(&format!("{}.{value}", other.credential())).is_err());
    }

    #[test]
    fn the_longest_tokens_fit() {
        let long = FencingToken {
            signature: Some(Signature {
                key_id: KeyId::new("k".repeat(KeyId::MAX_BYTES)).unwrap(),
                mac: [255; 32],
            }),
            namespace: Namespace::new("n".repeat(Namespace::MAX_BYTES)).unwrap(),
            ..token(Token::MAX, &"l".repeat(LockName::MAX_BYTES))
        };
        assert_eq!(parse(&long.credential()).unwrap(), [long]);
        // Base64 takes four characters for three bytes.
        let full = MAX_TOKENS * (PREFIX.len() + MAX_HEADER_BYTES.div_ceil(3) * 4 + 1);
        assert!(full < MAX_CREDENTIAL_BYTES, "{full}");
    }

    #[test]
    fn what_is_no_credential_is_refused_with_a_reason() {
        let good = token(34, "a").credential();
        let encode = |text: &str| format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(text));
        for (text, reason) in [
            (String::new(), "is no token"),
            ("hunter2".to_owned(), "is no token"),
            ("12345".to_owned(), "is no token"),
            ("34;lock=a".to_owned(), "must be a quoted string"),
            (PREFIX.to_owned(), "token 1 of it holds no token"),
            (format!("{good}="), "is not base64url"),
            (format!("{good}+"), "is not base64url"),
            (format!("{good}."), "token 2 of it does not begin with fc1_"),
            (format!("{good}.{good}"), "token 2 of it is of lock a, as one before it"),
            (format!("{good}.{}", token(35, "a").credential()), "as one before it"),
            (encode("34"), "lacks the parameter lock"),
            (encode(&format!("{} ", token(34, "a"))), "canonical form"),
            (encode(&token(34, "a").to_string().to_uppercase()), "token 1 of it holds no token"),
            (encode(&format!("34{}", " ".repeat(MAX_HEADER_BYTES))), "is longer than"),
            (format!("{PREFIX}_w"), "does not hold text"),
            (format!("{PREFIX}{}", "A".repeat(MAX_CREDENTIAL_BYTES)), "at most 65536 are read"),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            assert!(error.contains(reason), "{text:.80}: {error}");
        }
    }

    #[test]
    fn a_password_of_something_else_is_not_repeated() {
        for secret in ["hunter2", "34;hunter2", "fc1-hunter2", &"hunter2".repeat(20_000)] {
            let error = parse(secret).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    /// A changed character gives another token or none: a token has one spelling.
    #[test]
    fn one_token_has_one_spelling() {
        let token = token(34, "a");
        let good = token.credential();
        for at in 0..good.len() {
            for to in (b' '..=b'~').map(char::from) {
                let mut changed = good.clone();
                changed.replace_range(at..=at, to.encode_utf8(&mut [0; 4]));
                let is_same = parse(&changed).is_ok_and(|tokens| tokens[0] == token);
                assert_eq!(is_same, changed == good, "{changed}");
            }
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "(fc1_)?[\\PC.]{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn round_trips_in_characters_that_urls_leave_alone(
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
            let text = token.credential();
            let is_unreserved = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
            prop_assert!(text.chars().all(is_unreserved), "{}", text);
            prop_assert!(!text.contains(SEPARATOR), "{}", text);
            prop_assert_eq!(parse(&text).unwrap(), vec![token]);
        }
    }
}
