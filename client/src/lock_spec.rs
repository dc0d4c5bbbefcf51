//! The lock and the options of a request, which its lease stores for a later acquire.

use fence_protocol::wire::lock::{LeaseMode, METADATA_BYTES_MAX, PERMITS_MAX};
use fence_protocol::{Invalid, LeaseId, LockName, Owner, SessionId, Token, Ttl};

use crate::limits::Limits;
use crate::retries::WaitTimes;
use crate::{Client, Error, ErrorKind};

/// Lock to acquire, and the options of the acquire.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) lock: LockName,
    pub(crate) ttl: Ttl,
    pub(crate) times: WaitTimes,
    pub(crate) min_token: Option<Token>,
    pub(crate) metadata: Option<serde_json::Value>,
    pub(crate) limits: Limits,
    /// `None` for a lease of a session, which gets the session's owner.
    pub(crate) owner: Option<Owner>,
    pub(crate) takeover: Takeover,
    pub(crate) session: Option<SessionId>,
    pub(crate) mode: LeaseMode,
    /// Number of permits of the semaphore; only for [`LeaseMode::Permit`].
    pub(crate) size: Option<u32>,
}

/// Leases from which the lock may be taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Takeover {
    #[default]
    Never,
    /// A lease of an earlier incarnation of the same owner.
    EarlierSelf,
    /// The named lease of the same owner.
    Lease(LeaseId),
}

impl Spec {
    /// Creates a spec with the default options.
    pub(crate) fn new(client: &Client, lock: LockName) -> Self {
        Self {
            lock,
            ttl: Ttl::DEFAULT,
            times: WaitTimes::default(),
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

    /// Refuses options that could never be granted, before anything is sent.
    pub(crate) fn check(&self, client: &Client) -> Result<(), Error> {
        self.limits.check()?;
        metadata(self.metadata.as_ref())?;
        if self.takeover != Takeover::Never && !self.mode.is_exclusive() {
            return Err(no_takeover_of(&self.lock, self.mode));
        }
        if self.takeover != Takeover::Never && self.session.is_none() && !client.is_owner_given() {
            let message = format!(
                "the lock {} cannot be taken over as {}: a takeover needs an owner that stays the same \
                 after a restart, and this one ends in the process id; configure one \
                 (ClientBuilder::owner, FENCE_OWNER)",
                self.lock,
                client.owner()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }
}

/// Error of a takeover in a mode that shares the lock.
pub(crate) fn no_takeover_of(lock: &LockName, mode: LeaseMode) -> Error {
    let message = format!(
        "the lock {lock} cannot be taken over in mode {}: a takeover is for exclusive leases",
        mode.as_str()
    );
    Error::new(ErrorKind::Invalid, message)
}

/// Checks the size of metadata.
pub(crate) fn metadata(metadata: Option<&serde_json::Value>) -> Result<(), Invalid> {
    let bytes = metadata.map_or(0, |metadata| metadata.to_string().len());
    if bytes <= METADATA_BYTES_MAX {
        return Ok(());
    }
    let rule = format!("must have at most {METADATA_BYTES_MAX} bytes as JSON");
    Err(Invalid::new("metadata", format!("of {bytes} bytes"), rule))
}

/// Checks the number of permits of a semaphore.
pub(crate) fn permits(size: u32) -> Result<u32, Invalid> {
    if (1..=PERMITS_MAX).contains(&size) {
        return Ok(size);
    }
    Err(Invalid::new("size", size.to_string(), format!("must be 1 to {PERMITS_MAX} permits")))
}
