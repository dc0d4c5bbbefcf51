//! Key files for signed tokens.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use fence_protocol::{FencingToken, Keyring, LeaseId, LockName, Namespace, SessionId, Token};
use tempfile::TempDir;

/// A key file with one key, and the key ring to sign with in a test.
#[derive(Debug)]
pub struct KeyFile {
    folder: TempDir,
    ring: Keyring,
}

impl KeyFile {
    /// A key file whose key is named `kid` and filled with `byte`.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn new(kid: &str, byte: u8) -> Self {
        let folder = crate::folder::new();
        let text = format!("{kid}:{}\n", format!("{byte:02x}").repeat(32));
        let path = folder.path().join("keys");
        std::fs::write(&path, &text).expect("a key file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode");
        let ring = Keyring::parse(&text).expect("a good key");
        Self { folder, ring }
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    /// A header of any token, properly signed: what a lock server that went wrong could issue.
    ///
    /// # Panics
    /// If the number or the name is not valid.
    pub fn sign(&self, token: u64, lock: &str, lease: LeaseId) -> String {
        let token = Token::new(token).expect("a token");
        let lock = LockName::new(lock).expect("a lock name");
        self.ring.sign(token, lock, lease, Namespace::default()).to_string()
    }
}

/// A header without a signature.
///
/// # Panics
/// If the number or the name is not valid.
pub fn unsigned(token: u64, lock: &str, lease: LeaseId) -> String {
    let token = Token::new(token).expect("a token");
    let lock = LockName::new(lock).expect("a lock name");
    let namespace = Namespace::default();
    FencingToken { token, lock, lease, namespace, signature: None }.to_string()
}

/// A new lease id.
///
/// # Panics
/// Never: a random UUID is not nil.
pub fn lease_id() -> LeaseId {
    LeaseId::new(uuid::Uuid::new_v4()).expect("not nil")
}

/// A fresh session id.
///
/// # Panics
/// Never: a random UUID is not nil.
pub fn session_id() -> SessionId {
    SessionId::new(uuid::Uuid::new_v4()).expect("not nil")
}

/// The path as text for a command line.
///
/// # Panics
/// If it is not UTF-8.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}
