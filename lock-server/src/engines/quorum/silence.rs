//! Calls of a node without a reply that can be read.

use redis_link::LinkError;

/// Why a node gave no answer that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It was certainly not asked, or certainly did nothing.
    NotDone(String),
    /// It may have done what it was asked.
    Unknown(String),
}

impl Silence {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::NotDone(reason) | Self::Unknown(reason) => reason,
        }
    }

    pub(super) fn from_link_error(error: LinkError) -> Self {
        match error {
            LinkError::Down(reason) => Self::NotDone(reason),
            LinkError::Unknown(reason) => Self::Unknown(reason),
            // A script that failed half-way has perhaps written; every other refusal comes first.
            LinkError::Server { code, message } if code == "ERR" || code == "WRONGTYPE" => {
                Self::Unknown(format!("a script failed in Redis: {code} {message}"))
            }
            LinkError::Server { code, message } => {
                Self::NotDone(format!("Redis refuses to work: {code} {message}"))
            }
        }
    }
}
