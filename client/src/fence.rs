//! The proof of a grant that a fenced call takes.

use std::fmt;

use fence_protocol::{FencingToken, Invalid, Token};

use crate::Error;

/// Proof of a grant. Every fenced call takes one, so that a write without a token does not compile.
///
/// Implemented by [`Lease`](crate::Lease), [`SessionLease`](crate::SessionLease) and
/// [`HandedToken`], and by nothing else.
pub trait Fence: sealed::Sealed + Sync {
    /// Returns the value of the `Fencing-Token` header.
    fn fencing_token(&self) -> &str;

    /// Returns the number that the guard compares.
    fn token(&self) -> Token;

    /// Checks that the grant can be trusted now, as far as this process knows. The guard decides.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`](crate::ErrorKind::LeaseLost) if it cannot.
    fn check(&self) -> Result<(), Error>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// Token of a lease that another process holds and watches: a child of `fence run` gets it in
/// `FENCE_HEADER`. The holder ends the child when the lease is lost, and the guard refuses the
/// token once it is stale; [`check`](Fence::check) always succeeds. `Debug` shows no signature.
#[derive(Clone, PartialEq, Eq)]
pub struct HandedToken {
    header: String,
    token: FencingToken,
}

impl HandedToken {
    /// Parses the value of a `Fencing-Token` header.
    ///
    /// # Errors
    /// [`Invalid`] if it is malformed.
    pub fn new(header: impl Into<String>) -> Result<Self, Invalid> {
        let header = header.into();
        let token = header.parse()?;
        Ok(Self { header, token })
    }

    /// Reads the token from `FENCE_HEADER`, which `fence run` sets.
    ///
    /// # Errors
    /// [`Invalid`] if the variable is unset or malformed.
    pub fn from_env() -> Result<Self, Invalid> {
        let header = crate::config::variable("FENCE_HEADER").ok_or_else(|| {
            Invalid::new("FENCE_HEADER", "", "is not set; run this under `fence run`")
        })?;
        Self::new(header)
    }

    /// The parsed header. Its signature is not verified: only the guard can do that.
    pub fn parsed(&self) -> &FencingToken {
        &self.token
    }
}

impl fmt::Debug for HandedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandedToken").field(&self.token).finish()
    }
}

impl sealed::Sealed for HandedToken {}

impl Fence for HandedToken {
    fn fencing_token(&self) -> &str {
        &self.header
    }

    fn token(&self) -> Token {
        self.token.token
    }

    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}
