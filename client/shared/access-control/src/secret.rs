//! Bearer tokens: generation, stored hash, and the `Authorization` header.
//!
//! A token is 256 random bits, of which a server stores only the plain SHA-256. A slow hash
//! protects passwords that people choose, because those can be guessed; one of 2^256 equally likely
//! values cannot, at any speed, so a slow hash would only cost time on every request. The server
//! looks up the hash of the presented token: the time of the look-up reveals something about a
//! hash, but nothing about a token.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use service_kit::ids;
use service_kit::tls::ClientNames;
use sha2::{Digest, Sha256};

/// Prefix of a token, by which people and scanners recognise it.
pub const PREFIX: &str = "fencepost_";
/// Longest accepted bearer token, in bytes.
const SECRET_BYTES_MAX: usize = 256;
/// Prefix of the text of a hash.
pub(crate) const ALGORITHM: &str = "sha256:";

/// Generates a bearer token. It is shown once and stored nowhere.
pub fn generate() -> String {
    format!("{PREFIX}{}", ids::random_hex(32))
}

/// Stored form of a bearer token: its SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// Hashes a token.
    pub fn from_secret(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALGORITHM)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SecretHash {
    type Err = &'static str;

    /// The refused text is not repeated: it may be the secret itself, put in the wrong place.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "is not sha256: and 64 hexadecimal digits; a bearer token itself does \
                             not belong into this file, only its hash (fence auth hash)";
        let digits = text.strip_prefix(ALGORITHM).ok_or(SHAPE)?.as_bytes();
        let mut hash = [0; 32];
        if digits.len() != hash.len() * 2 {
            return Err(SHAPE);
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(SHAPE);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).map_err(|_| SHAPE)?;
        }
        Ok(Self(hash))
    }
}

/// A bearer token, or the client certificate of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Credential {
    /// The hash of a bearer token.
    Token(SecretHash),
    /// The names of a client certificate.
    Certificate(ClientNames),
}

impl Credential {
    /// The bearer token of a request. Without an `Authorization` header its client certificate.
    ///
    /// # Errors
    /// A sentence if there is neither, or a token that is not valid: a certificate never stands in
    /// for that.
    pub(crate) fn from_request(
        headers: &HeaderMap,
        names: Option<&ClientNames>,
    ) -> Result<Self, String> {
        match names.filter(|names| !names.is_empty()) {
            Some(names) if !headers.contains_key(header::AUTHORIZATION) => {
                Ok(Self::Certificate(names.clone()))
            }
            _ => Ok(Self::Token(presented(headers)?)),
        }
    }
}

/// Hashes the bearer token of a request.
///
/// # Errors
/// A sentence if there is no `Authorization` header, or it is repeated or not valid.
fn presented(headers: &HeaderMap) -> Result<SecretHash, &'static str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or("no bearer token was sent")?;
    if values.next().is_some() {
        return Err("the request has more than one Authorization header");
    }
    let text = value.to_str().map_err(|_| "the Authorization header is not ASCII text")?;
    let (scheme, secret) = text.split_once(' ').unwrap_or((text, ""));
    let password;
    let secret = match scheme.to_ascii_lowercase().as_str() {
        "bearer" => secret.trim(),
        "basic" => {
            password = password_of(secret.trim())?;
            password.as_str()
        }
        _ => return Err("the Authorization header is neither of the kind Bearer nor Basic"),
    };
    match secret {
        "" => Err("the bearer token is empty"),
        secret if secret.len() > SECRET_BYTES_MAX => Err("the bearer token is too long"),
        secret => Ok(SecretHash::from_secret(secret)),
    }
}

/// Password of Basic authentication: the bearer token of a program that knows nothing else, such as
/// Terraform. Its user name has no meaning.
fn password_of(credentials: &str) -> Result<String, &'static str> {
    const SHAPE: &str = "the Basic credentials are not base64 of USER:TOKEN";
    let text = STANDARD.decode(credentials).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let text = text.ok_or(SHAPE)?;
    text.split_once(':').map(|(_, password)| password.to_owned()).ok_or(SHAPE)
}

/// Builds the value of an `Authorization` header from a file that contains a bearer token.
///
/// # Errors
/// A sentence with the path, and without the content.
pub fn authorization(file: &Path) -> Result<HeaderValue, String> {
    let mut text = String::new();
    File::open(file)
        .and_then(|opened| opened.take(2 * SECRET_BYTES_MAX as u64).read_to_string(&mut text))
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    let secret = text.trim();
    let is_word = secret.bytes().all(|byte| byte.is_ascii_graphic());
    match HeaderValue::from_str(&format!("Bearer {secret}")) {
        Ok(mut header) if is_word && (1..=SECRET_BYTES_MAX).contains(&secret.len()) => {
            header.set_sensitive(true);
            Ok(header)
        }
        _ => Err(format!("{} holds no bearer token, which is one word", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_comes_back_as_it_was() {
        let hash = SecretHash::from_secret("abc");
        // The published vector of SHA-256.
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.to_string(), text);
        assert_eq!(text.parse(), Ok(hash));
        assert_ne!(SecretHash::from_secret(&generate()), SecretHash::from_secret(&generate()));
        let secret = generate();
        assert_eq!(secret.len(), PREFIX.len() + 64, "256 bits");
        for bad in ["", "sha256:", "ba78", secret.as_str(), &text[..70], &text.replace('b', "x")] {
            let error = bad.parse::<SecretHash>().unwrap_err();
            assert!(!error.contains(&secret[PREFIX.len()..]), "{error}");
        }
    }

    #[test]
    fn a_bearer_token_is_read_from_its_header() {
        let read = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
            }
            presented(&headers)
        };
        assert_eq!(read(&[b"Bearer abc"]), Ok(SecretHash::from_secret("abc")));
        assert_eq!(read(&[b"bearer  abc "]), Ok(SecretHash::from_secret("abc")));
        let basic = format!("Basic {}", STANDARD.encode("terraform:abc"));
        assert_eq!(read(&[basic.as_bytes()]), Ok(SecretHash::from_secret("abc")));
        let empty = format!("Basic {}", STANDARD.encode("terraform:"));
        let long = format!("Bearer {}", "a".repeat(257));
        let none: &[&[u8]] = &[];
        let two: &[&[u8]] = &[b"Bearer abc", b"Bearer abc"];
        assert!(read(none).is_err() && read(two).is_err());
        for bad in [
            &b"Bearer"[..],
            b"Bearer ",
            b"Basic abc",
            b"Basic YWJj",
            b"abc",
            b"Bearer \xff",
            long.as_bytes(),
            empty.as_bytes(),
        ] {
            assert!(read(&[bad]).is_err(), "{bad:?}");
        }
    }
}
