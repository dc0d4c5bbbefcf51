//! Password of the port as a whole, like Redis' `requirepass`: without it, or a fencing credential,
//! a client is served nothing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fence_protocol::{Code, credential};
use service_kit::Kit;
use service_kit::health::Status;
use service_kit::login::Password;
use sha2::{Digest, Sha256};

use super::refusal::Refusal;
use super::resp::request::Command;
use super::tokens::HeldTokens;
use crate::fencing::FencingPolicy;
use crate::verdict::Fence;

/// Interval at which the file is read.
const READ_EVERY: Duration = Duration::from_millis(500);
/// Name of the readiness check.
const CHECK: &str = "redis-password-file";
/// Redis' reply to a client that has not logged in.
const NOAUTH: &str = "NOAUTH Authentication required.";
/// Redis' reply to HELLO from such a client.
pub(super) const NOAUTH_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, \
                                       otherwise the HELLO <proto> AUTH <user> <pass> option can \
                                       be used to \
                                       authenticate the client and select the RESP protocol \
                                       version at the same time";

/// Password in a file, which is read again when it changes. Clones share it.
#[derive(Clone, Debug)]
pub struct PortPassword {
    file: PathBuf,
    digest: Arc<RwLock<PasswordDigest>>,
}

/// SHA-256 of a password. It is compared in constant time; the password itself is not kept.
#[derive(Clone, Copy)]
struct PasswordDigest([u8; 32]);

impl fmt::Debug for PasswordDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl PasswordDigest {
    fn from_text(text: &[u8]) -> Self {
        Self(Sha256::digest(text).into())
    }

    fn is(self, other: Self) -> bool {
        let pairs = self.0.iter().zip(other.0);
        std::hint::black_box(pairs.fold(0, |differs, (one, two)| differs | (one ^ two))) == 0
    }
}

impl PortPassword {
    /// Reads the file.
    ///
    /// # Errors
    /// A sentence that begins with the file and does not repeat its content.
    pub fn read(file: &Path) -> Result<Self, String> {
        let digest = digest_of(file)?;
        Ok(Self { file: file.to_owned(), digest: Arc::new(RwLock::new(digest)) })
    }

    fn is(&self, text: &[u8]) -> bool {
        let digest = *self.digest.read().unwrap_or_else(PoisonError::into_inner);
        digest.is(PasswordDigest::from_text(text))
    }

    /// Applies changes of the file until shutdown. While it cannot be used, the last password stays
    /// in force. Clients that have logged in stay so.
    pub(super) async fn follow(self, kit: Kit) {
        let shutdown = kit.tasks.shutdown_token();
        kit.health.set(CHECK, Status::Ok);
        let mut problem = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(READ_EVERY) => {}
                () = shutdown.cancelled() => return,
            }
            let file = self.file.clone();
            let Ok(read) = kit.tasks.spawn_blocking(move || digest_of(&file)).await else {
                continue;
            };
            let found = match read {
                Ok(digest) => {
                    *self.digest.write().unwrap_or_else(PoisonError::into_inner) = digest;
                    None
                }
                Err(reason) => Some(format!("{reason}; the last password stays in force")),
            };
            if found != problem {
                if let Some(reason) = &found {
                    tracing::error!(reason, "the password file of the Redis port cannot be used");
                }
                kit.health.set(CHECK, found.clone().map_or(Status::Ok, Status::Warn));
                problem = found;
            }
        }
    }
}

fn digest_of(file: &Path) -> Result<PasswordDigest, String> {
    Ok(PasswordDigest::from_text(Password::read(file)?.expose().as_bytes()))
}

/// Credential of a client, for a command that takes a password.
#[derive(Debug)]
pub(super) enum Login {
    /// The password of the port.
    Password,
    /// Tokens of a fencing credential; verified.
    Tokens(Vec<Fence>),
}

impl Login {
    /// Parses a client's credential.
    ///
    /// # Errors
    /// Code of the refusal, and the error line.
    pub(super) fn read(
        text: &[u8],
        policy: &FencingPolicy,
        password: Option<&PortPassword>,
    ) -> Result<Self, (Code, Refusal)> {
        if password.is_some_and(|password| password.is(text)) {
            return Ok(Self::Password);
        }
        HeldTokens::read(text, policy).map(Self::Tokens).map_err(|(code, refusal)| {
            let is_credential = code != Code::MalformedToken || begins_as_credential(text);
            match is_credential {
                true => (code, refusal),
                false => (code, Refusal::Line(no_credential(password.is_some()).to_owned())),
            }
        })
    }

    /// Returns the tokens to hold from now on.
    pub(super) fn tokens(self) -> Vec<Fence> {
        match self {
            Self::Password => Vec::new(),
            Self::Tokens(fences) => fences,
        }
    }
}

/// Returns `true` if the text was meant to be a credential, so that the error can name its fault.
fn begins_as_credential(text: &[u8]) -> bool {
    text.starts_with(credential::PREFIX.as_bytes()) || text.windows(5).any(|part| part == b"lock=")
}

/// Makes the refusal of a text that is no credential: most likely it is a password of Redis.
fn no_credential(has_password: bool) -> &'static str {
    match has_password {
        true => {
            "WRONGPASS invalid username-password pair or user is disabled: it is neither the password of \
             this port (--redis-password-file) nor the fencing_credential of a lease"
        }
        false => {
            "WRONGTOKEN it is no fencing credential, and this port has no password. If it is the password \
             of Redis: leave it out where keys need no token, or start the guard with \
             --redis-password-file to keep it; for protected keys acquire the lock and send the \
             fencing_credential of the lease"
        }
    }
}

/// Returns the refusal of a command from a client that has not logged in; `None` if it may be sent.
/// AUTH, HELLO and FENCE bring credentials, or are refused later.
pub(super) fn before_login(command: Command<'_>) -> Option<&'static str> {
    let may_be_sent = match command.begins(&["fence"]) {
        true => !["clear", "show", "help"].iter().any(|word| command.tail(1).begins(&[word])),
        false => ["auth", "hello", "quit", "reset"].iter().any(|word| command.begins(&[word])),
    };
    (!may_be_sent).then_some(NOAUTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_compared_whole() {
        let digest = PasswordDigest::from_text(b"hunter2");
        assert!(digest.is(PasswordDigest::from_text(b"hunter2")));
        for other in [&b""[..], b"hunter", b"hunter2 ", b"Hunter2"] {
            assert!(!digest.is(PasswordDigest::from_text(other)));
        }
        let mut close = digest;
        close.0[31] ^= 1;
        assert!(!digest.is(close));
        assert_eq!(format!("{digest:?}"), "***");
    }
}
