//! Login of a server at the store behind it: user, password and certificates.

use std::fmt;
use std::path::Path;

use https_client::{TlsOptions, read_bounded};

/// Longer passwords are refused, in bytes.
const PASSWORD_BYTES_MAX: usize = 4096;

/// A password. Neither its text nor its `Debug` shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Reads the one line that a file holds.
    ///
    /// # Errors
    /// A sentence that begins with the file and does not repeat what is in it.
    pub fn read(file: &Path) -> Result<Self, String> {
        let refuse = |why: &str| format!("{} {why}", file.display());
        let bytes = read_bounded(file, PASSWORD_BYTES_MAX as u64 + 2)?;
        let text = String::from_utf8(bytes).map_err(|_| refuse("is no UTF-8 text"))?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        match text {
            "" => Err(refuse("is empty; write the password into its first line")),
            text if text.contains(['\n', '\r', '\0']) => {
                Err(refuse("has several lines; write the password alone into it"))
            }
            text if text.len() > PASSWORD_BYTES_MAX => Err(refuse("is longer than 4096 bytes")),
            text => Ok(Self(text.to_owned())),
        }
    }

    /// The password itself, for the code that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Error of a store without a network that is given any of these flags.
pub const NO_LOGIN: &str = "--store-ca, --store-cert, --store-key, --store-user, \
    --store-password-file and --sentinel-password-file are for a store behind a network; \
    leave them out";

/// Login of a store, beside its URL.
#[derive(Clone, Debug, Default)]
pub struct StoreLogin {
    /// The user's name.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Password>,
    /// The password of Redis sentinels, where they have another one than Redis itself.
    pub sentinel_password: Option<Password>,
    /// Whom to trust over TLS, and what to show.
    pub tls: TlsOptions,
}

impl StoreLogin {
    /// True if every field is empty.
    pub fn is_empty(&self) -> bool {
        let Self { user, password, sentinel_password, tls } = self;
        user.is_none() && password.is_none() && sentinel_password.is_none() && tls.is_default()
    }
}

/// A URL with `***` in place of user, password and query: what errors and logs may show. A
/// malformed one, as `user:password@host`, hides them as well; other text, as the rule
/// `a:b=@open`, is left as it is.
pub fn without_password(url: &str) -> String {
    let shown = match url.rsplit_once('@') {
        Some((before, host)) if before.contains(':') && !before.ends_with('=') => {
            match before.split_once(':') {
                Some((scheme, rest)) if rest.starts_with("//") => format!("{scheme}://***@{host}"),
                Some((scheme, _)) if SCHEMES.iter().any(|known| scheme.starts_with(known)) => {
                    format!("{scheme}:***@{host}")
                }
                _ => format!("***@{host}"),
            }
        }
        _ => url.to_owned(),
    };
    match shown.split_once('?') {
        Some((shown, _)) if shown.contains("://") => format!("{shown}?***"),
        _ => shown,
    }
}

/// First part of the schemes of URLs that may hold a password.
const SCHEMES: [&str; 4] = ["redis", "etcd", "http", "postgres"];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Password, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, bytes).unwrap();
        Password::read(&file)
    }

    #[test]
    fn a_password_is_one_line() {
        for text in ["hunter2", "hunter2\n", "hunter2\r\n"] {
            assert_eq!(read(text.as_bytes()).unwrap().expose(), "hunter2");
        }
        assert_eq!(read(b" a b ").unwrap().expose(), " a b ", "blanks are part of it");
        let long = "x".repeat(PASSWORD_BYTES_MAX);
        assert_eq!(read(format!("{long}\r\n").as_bytes()).unwrap().expose(), long);
    }

    #[test]
    fn files_without_one_are_refused_and_not_repeated() {
        for (bytes, reason) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"hunter2\nhunter3", "several lines"),
            (b"hunter2\xff", "no UTF-8"),
            (&[b'x'; 4097], "longer than 4096"),
            (&[b'x'; 9000], "longer than"),
        ] {
            let error = read(bytes).unwrap_err();
            assert!(error.contains(reason) && !error.contains("hunter2"), "{error}");
        }
        let error = Password::read(Path::new("/nonexistent/p")).unwrap_err();
        assert!(error.starts_with("/nonexistent/p cannot be read"), "{error}");
        assert_eq!(format!("{:?}", Password::from("hunter2")), "***");
        let error = Password::read(Path::new("-----BEGIN PRIVATE KEY-----\nabc")).unwrap_err();
        assert!(error.contains("name the file") && !error.contains("abc"), "{error}");
    }

    #[test]
    fn a_password_is_hidden_in_a_malformed_url_too() {
        for (url, shown) in [
            ("redis://u:hunter2@host/1", "redis://***@host/1"),
            ("redis:/u:hunter2@host", "redis:***@host"),
            ("rediss:u:hunter2@host", "rediss:***@host"),
            ("redis:/u:hunter2@a,redis://b@c", "redis:***@c"),
            ("redis-quorum:redis://u:hunter2@a,redis://b", "redis-quorum:***@a,redis://b"),
            ("http://u:hunter2@host", "http://***@host"),
            ("u:hunter2@host:6379", "***@host:6379"),
            (":hunter2@host", "***@host"),
            ("//u:hunter2@host", "***@host"),
            ("rediss://host?password=hunter2", "rediss://host?***"),
            ("http://u:hunter2@host/?api-key=hunter2", "http://***@host/?***"),
            ("redis:/u:hunter2?x@a/master", "redis:***@a/master"),
            ("orders:{id}:**=@open", "orders:{id}:**=@open"),
            ("worker-1@host:7", "worker-1@host:7"),
            ("jobs/*=@deny", "jobs/*=@deny"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
