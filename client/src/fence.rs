//! What a fenced call has to show.

use fence_protocol::{FencingToken, Invalid, Token};

use crate::Error;

/// Proof of a grant: what every fenced call takes, so that a write without a token does not
/// compile.
///
/// Implemented by [`Lease`](crate::Lease), [`SessionLease`](crate::SessionLease) and [`HandedToken`], and by nothing else.
pub trait Fence: sealed::Sealed + Sync {
    /// The value of the `Fencing-Token` header.
    fn fencing_token(&self) -> &str;

    /// The number that the guard compares.
    fn token(&self) -> Token;

    /// Whether the grant may be used now, as far as is known here. The guard has the last word.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`](crate::ErrorKind::LeaseLost) where it may not.
    fn check(&self) -> Result<(), Error>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The token of a lease that somebody else holds and watches: a child of `fence run` gets it in
/// `FENCE_HEADER`. Its holder ends the process when the lease is lost, and the guard refuses the
/// token once it is stale; nothing is checked here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedToken {
    header: String,
    token: FencingToken,
}

impl HandedToken {
    /// A token from the value of the `Fencing-Token` header.
    ///
    /// # Errors
    /// [`Invalid`] where it is malformed.
    pub fn new(header: impl Into<String>) -> Result<Self, Invalid> {
        let header = header.into();
        let token = header.parse()?;
        Ok(Self { header, token })
    }

    /// The token in `FENCE_HEADER`, where `fence run` puts it.
    ///
    /// # Errors
    /// [`Invalid`] where the variable is unset or malformed.
    pub fn from_env() -> Result<Self, Invalid> {
        let header = crate::config::variable("FENCE_HEADER").ok_or_else(|| {
            Invalid::new("FENCE_HEADER", "", "is not set; run this under `fence run`")
        })?;
        Self::new(header)
    }

    /// What the header says. Whether it is genuine only the guard knows.
    pub fn says(&self) -> &FencingToken {
        &self.token
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
