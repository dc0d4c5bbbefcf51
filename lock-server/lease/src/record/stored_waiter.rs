//! Stored form of a waiter: an item of the record, named by its queue position.

use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use serde::{Deserialize, Serialize};

use super::stored::{StoredMode, is_zero};
use super::{GroupId, Reading, Waiter};
use crate::{Acquire, Mode, Takeover};

/// Returns the name of the item at a queue position: names sort like positions.
pub fn place_name(place: u64) -> String {
    format!("{place:016x}")
}

/// Parses the queue position from the name of an item.
pub fn place_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name, 16).ok().filter(|_| name.len() == 16)
}

/// Form of a waiter in a store that keeps text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredWaiter {
    #[serde(rename = "v")]
    server: u32,
    #[serde(rename = "i")]
    lease_id: LeaseId,
    #[serde(rename = "o")]
    owner: Owner,
    #[serde(rename = "l")]
    ttl_ms: Ttl,
    #[serde(rename = "f")]
    since_ms: u64,
    #[serde(rename = "u")]
    until_ms: u64,
    #[serde(rename = "w")]
    wait_ms: u64,
    #[serde(rename = "m", default, skip_serializing_if = "StoredMode::is_exclusive")]
    mode: StoredMode,
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<Owner>,
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    min_token: Option<Token>,
    #[serde(rename = "d", default, skip_serializing_if = "is_zero")]
    lock_delay_ms: u64,
    #[serde(rename = "q", default, skip_serializing_if = "Option::is_none")]
    group: Option<StoredGroup>,
}

/// The request for several locks that a waiter is a part of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredGroup {
    #[serde(rename = "i")]
    id: GroupId,
    #[serde(rename = "p")]
    parts: Vec<(LockName, StoredMode)>,
}

impl StoredWaiter {
    /// Encodes a waiter with the parts of its group.
    pub fn new(waiter: &Waiter, parts: Option<&[(LockName, Mode)]>) -> Self {
        let Acquire { lease_id, owner, ttl, wait_ms, metadata, min_token, .. } = &waiter.request;
        let stored = |(lock, mode): &(LockName, Mode)| (lock.clone(), (*mode).into());
        let group = waiter
            .group
            .zip(parts)
            .map(|(id, parts)| StoredGroup { id, parts: parts.iter().map(stored).collect() });
        Self {
            server: waiter.server,
            lease_id: *lease_id,
            owner: owner.clone(),
            ttl_ms: *ttl,
            since_ms: waiter.since_ms,
            until_ms: waiter.until_ms,
            wait_ms: *wait_ms,
            mode: waiter.request.mode.into(),
            session: waiter.request.session,
            incarnation: waiter.request.incarnation.clone(),
            metadata: metadata.clone(),
            principal: waiter.request.principal.clone(),
            min_token: *min_token,
            lock_delay_ms: waiter.request.lock_delay_ms,
            group,
        }
    }

    /// Returns the server that the waiter is connected to, which alone writes it, and the begin of
    /// the wait by the clock of its writer.
    pub fn origin(&self) -> (u32, u64) {
        (self.server, self.since_ms)
    }

    /// Decodes the waiter and the parts of its group.
    pub fn read(
        self,
        lock: &LockName,
        place: u64,
        reading: Reading,
    ) -> (Waiter, Option<Vec<(LockName, Mode)>>) {
        let request = Acquire {
            wait_ms: self.wait_ms,
            metadata: self.metadata,
            min_token: self.min_token,
            session: self.session,
            incarnation: self.incarnation,
            takeover: Takeover::Never,
            mode: self.mode.into(),
            lock_delay_ms: self.lock_delay_ms,
            principal: self.principal,
            ..Acquire::new(lock.clone(), self.lease_id, self.owner, self.ttl_ms)
        };
        let waiter = Waiter {
            request,
            group: self.group.as_ref().map(|group| group.id),
            place,
            server: self.server,
            since_ms: reading.past(self.since_ms),
            until_ms: reading.past(self.until_ms),
        };
        let mode = |(lock, mode): (LockName, StoredMode)| (lock, mode.into());
        (waiter, self.group.map(|group| group.parts.into_iter().map(mode).collect()))
    }
}
