//! What to acquire, and how: the part of a request that a lease keeps.

use std::time::Duration;

use fence_protocol::wire::lock::{LeaseMode, PERMITS_MAX};
use fence_protocol::{Invalid, LeaseId, LockName, Owner, SessionId, Token, Ttl};

use crate::limits::Limits;
use crate::{Client, Error, ErrorKind};

/// How long a server that cannot be reached is tried beyond the time to wait, unless
/// [`LockRequest::patience`](crate::LockRequest::patience) says otherwise.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(5);

/// What to acquire, and how.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) lock: LockName,
    pub(crate) ttl: Ttl,
    pub(crate) wait: Duration,
    pub(crate) patience: Duration,
    pub(crate) min_token: Option<Token>,
    pub(crate) metadata: Option<serde_json::Value>,
    pub(crate) limits: Limits,
    /// Left out where the lease is bound to a session, whose owner it then has.
    pub(crate) owner: Option<Owner>,
    pub(crate) takeover: Takeover,
    pub(crate) session: Option<SessionId>,
    pub(crate) mode: LeaseMode,
    /// Of a permit, and only there.
    pub(crate) size: Option<u32>,
}

/// Whom the lock may be taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Takeover {
    #[default]
    Never,
    /// An earlier incarnation of the same owner.
    EarlierSelf,
    /// One lease of the same owner.
    Of(LeaseId),
}

impl Spec {
    /// What is asked for unless the caller says otherwise.
    pub(crate) fn new(client: &Client, lock: LockName) -> Self {
        Self {
            lock,
            ttl: Ttl::DEFAULT,
            wait: Duration::ZERO,
            patience: DEFAULT_PATIENCE,
            min_token: None,
            metadata: None,
            limits: Limits::default(),
            owner: Some(client.owner().clone()),
            takeover: Takeover::Never,
            session: None,
            mode: LeaseMode::Exclusive,
            size: None,
        }
    }

    /// Refuses what could never be granted, before anything is sent.
    pub(crate) fn check(&self, client: &Client) -> Result<(), Error> {
        self.limits.check()?;
        if self.takeover != Takeover::Never && !self.mode.is_exclusive() {
            return Err(no_takeover_of(&self.lock, self.mode));
        }
        if self.takeover != Takeover::Never && self.session.is_none() && !client.is_owner_given() {
            let message = format!(
                "the lock {} cannot be taken over as {}: a takeover needs an owner that a restart \
                 keeps, and this one ends in the number of this process; give one to the client \
                 (ClientBuilder::owner, FENCE_OWNER)",
                self.lock,
                client.owner()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }
}

/// Whoever takes a lock over has it alone.
pub(crate) fn no_takeover_of(lock: &LockName, mode: LeaseMode) -> Error {
    let message = format!(
        "the lock {lock} cannot be taken over in mode {}: a takeover is for exclusive leases",
        mode.as_str()
    );
    Error::new(ErrorKind::Invalid, message)
}

/// A size that a semaphore can have.
pub(crate) fn permits(size: u32) -> Result<u32, Invalid> {
    if (1..=PERMITS_MAX).contains(&size) {
        return Ok(size);
    }
    Err(Invalid::new("size", size.to_string(), format!("must be 1 to {PERMITS_MAX} permits")))
}
