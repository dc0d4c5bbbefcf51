//! The bearer token, which authenticates the caller. Not a fencing token, which orders the holders
//! of a lock.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use reqwest::header::HeaderValue;

use crate::{Error, ErrorKind};

/// Longest bearer token that a server accepts, in bytes.
const BYTES_MAX: usize = 256;

/// A bearer token, which authenticates the client. Its `Debug` output hides the value.
#[derive(Clone, Debug)]
pub struct BearerToken(HeaderValue);

impl BearerToken {
    /// Parses a token as `fence auth new` prints it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is empty, longer than 256 bytes or not one printable ASCII
    /// word. The error does not contain the token.
    pub fn new(secret: &str) -> Result<Self, Error> {
        let is_word = secret.bytes().all(|byte| byte.is_ascii_graphic());
        let header = HeaderValue::from_str(&format!("Bearer {secret}"));
        match header {
            Ok(mut header) if is_word && (1..=BYTES_MAX).contains(&secret.len()) => {
                header.set_sensitive(true);
                Ok(Self(header))
            }
            _ => Err(Error::new(
                ErrorKind::Invalid,
                "a bearer token is one word of 1 to 256 printable characters".to_owned(),
            )),
        }
    }

    /// Reads a token from a file; surrounding white space is ignored. Blocks on the read.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], naming the path, if the file cannot be read or holds no valid token.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let refuse = |error: String| {
            let message = format!("bearer token file {}: {error}", path.display());
            Error::new(ErrorKind::Invalid, message)
        };
        let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
        let mut text = String::new();
        let mut bounded = file.take(2 * BYTES_MAX as u64);
        bounded.read_to_string(&mut text).map_err(|error| refuse(error.to_string()))?;
        Self::new(text.trim()).map_err(|error| refuse(error.to_string()))
    }

    /// Returns the value of the `Authorization` header, marked as sensitive.
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_one_word_and_stays_hidden() {
        let token = BearerToken::new("fencepost_abc").unwrap();
        assert_eq!(token.header().to_str().unwrap(), "Bearer fencepost_abc");
        assert!(!format!("{token:?}").contains("abc"), "{token:?}");
        for bad in ["", "two words", "line\nline", "ü", &"a".repeat(257)] {
            let error = BearerToken::new(bad).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Invalid);
            assert!(bad.is_empty() || !error.to_string().contains(bad), "{error}");
        }
        let error = BearerToken::from_file("/nonexistent/secret").unwrap_err().to_string();
        assert!(error.contains("/nonexistent/secret"), "{error}");
    }
}
