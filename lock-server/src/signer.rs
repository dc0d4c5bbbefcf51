//! Signing of fencing tokens.

use fence_protocol::{FencingToken, Keyring, LeaseId, LockName, Namespace, Token};

/// Signs tokens of one namespace for its guards.
#[derive(Clone, Debug)]
pub(crate) struct Signer {
    namespace: Namespace,
    /// `None` leaves tokens unsigned.
    keys: Option<Keyring>,
}

impl Signer {
    pub(crate) fn new(namespace: Namespace, keys: Option<Keyring>) -> Self {
        Self { namespace, keys }
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Keys of the tokens; `None` leaves them unsigned.
    pub(crate) fn keys(&self) -> Option<&Keyring> {
        self.keys.as_ref()
    }

    /// Value of the `Fencing-Token` header.
    pub(crate) fn sign(&self, token: Token, lock: LockName, lease: LeaseId) -> FencingToken {
        let namespace = self.namespace.clone();
        match &self.keys {
            Some(keys) => keys.sign(token, lock, lease, namespace),
            None => FencingToken { token, lock, lease, namespace, signature: None },
        }
    }
}
