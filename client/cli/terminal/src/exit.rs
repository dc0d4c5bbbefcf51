//! Exit codes and failures of the command.

use std::fmt;

use crate::wording;
use fence_client::{Error, ErrorKind};
use fence_protocol::{Invalid, Problem};

/// The codes, from sysexits where one fits.
pub mod code {
    /// Done.
    pub const OK: u8 = 0;
    /// There is no such thing; for `doctor --strict`, there are warnings.
    pub const NOTHING: u8 = 1;
    /// Wrong usage.
    pub const USAGE: u8 = 64;
    /// A server or its store cannot be reached.
    pub const UNAVAILABLE: u8 = 69;
    /// A defect.
    pub const INTERNAL: u8 = 70;
    /// Unknown outcome.
    pub const UNKNOWN: u8 = 74;
    /// The lock was not acquired: another holds it.
    pub const NOT_ACQUIRED: u8 = 75;
    /// The lease was lost.
    pub const LOST: u8 = 76;
    /// A server refused: the caller has no right, the token is stale, or the object has another
    /// version.
    pub const REFUSED: u8 = 77;
    /// Name of a failure, for programs.
    pub(crate) fn name(code: u8) -> &'static str {
        match code {
            NOTHING => "nothing",
            USAGE => "usage",
            UNAVAILABLE => "unavailable",
            INTERNAL => "internal",
            UNKNOWN => "outcome-unknown",
            NOT_ACQUIRED => "not-acquired",
            LOST => "lease-lost",
            REFUSED => "refused",
            _ => "ended",
        }
    }

    /// The job's program cannot be executed, as in a shell.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The job's program is not there, as in a shell.
    pub const NOT_FOUND: u8 = 127;
    /// Ended by signal n: this and n, as in a shell.
    pub const SIGNAL_BASE: u8 = 128;
}

/// Why the command ends without having done what it should.
#[derive(Debug)]
pub struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    pub(crate) problem: Option<Box<Problem>>,
}

impl Failure {
    /// An exit code between 0 and 255 and the message for stderr.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), problem: None }
    }

    /// Exit code 64.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(code::USAGE, message)
    }

    /// Exit code 70.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(code::INTERNAL, message)
    }

    /// Ends with this code and says nothing.
    pub fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    /// The same with another exit code.
    #[must_use]
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The same with another message.
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// The line for stderr; empty for [`Failure::silent`].
    pub fn message(&self) -> &str {
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
        let problem = error.problem();
        let code = match problem.map(|problem| problem.status) {
            Some(401 | 403) => code::REFUSED,
            _ => code_of(error.kind()),
        };
        let problem = problem.map(|problem| Box::new(wording::reworded(problem)));
        Self { code, message: wording::message(&error), problem }
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Self::usage(wording::in_flags(&invalid.to_string()))
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
