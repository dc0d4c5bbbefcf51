//! How the command ends: the one place that knows the exit codes.

use std::fmt;

use fence_client::{Error, ErrorKind};
use fence_protocol::Invalid;

/// The codes, from sysexits where one fits.
pub(crate) mod code {
    /// Done.
    pub(crate) const OK: u8 = 0;
    /// There is no such thing; for `doctor --strict`, there are warnings.
    pub(crate) const NOTHING: u8 = 1;
    /// Wrong usage.
    pub(crate) const USAGE: u8 = 64;
    /// A server or its store cannot be reached.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// A defect.
    pub(crate) const INTERNAL: u8 = 70;
    /// Whether it was done is not known.
    pub(crate) const UNKNOWN: u8 = 74;
    /// The lock was not acquired: another holds it.
    pub(crate) const NOT_ACQUIRED: u8 = 75;
    /// The lease was lost.
    pub(crate) const LOST: u8 = 76;
    /// The guard refused: a stale token, or the object has another version.
    pub(crate) const REFUSED: u8 = 77;
    /// The job's program cannot be executed, as in a shell.
    pub(crate) const NOT_EXECUTABLE: u8 = 126;
    /// The job's program is not there, as in a shell.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// Ended by signal n: this and n, as in a shell.
    pub(crate) const SIGNAL_BASE: u8 = 128;
}

/// Why the command ends without having done what it should.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(code::USAGE, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(code::INTERNAL, message)
    }

    /// Ends with this code and says nothing.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code_of(error.kind()), error.to_string())
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Self::usage(invalid.to_string())
    }
}

fn code_of(kind: &ErrorKind) -> u8 {
    match kind {
        ErrorKind::Contended { .. } | ErrorKind::TakeoverRefused { .. } => code::NOT_ACQUIRED,
        ErrorKind::LeaseLost { .. } => code::LOST,
        ErrorKind::Stale { .. } | ErrorKind::Precondition => code::REFUSED,
        ErrorKind::Unavailable => code::UNAVAILABLE,
        ErrorKind::OutcomeUnknown => code::UNKNOWN,
        ErrorKind::Invalid => code::USAGE,
        _ => code::INTERNAL,
    }
}
