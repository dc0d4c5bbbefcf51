//! Reading what the scripts say of sessions.

use fence_protocol::wire::session::{SessionEndReason, SessionLease, SessionReply};
use fence_protocol::{Invalid, LeaseId, LockName, SessionId};

use super::{count, number};
use crate::store::{NoSession, StoreError};

/// Why a session does not serve.
pub(super) fn refusal(why: &str, id: SessionId, more: &[&str]) -> Result<StoreError, Invalid> {
    Ok(match (why, more) {
        ("unknown", []) => NoSession::Unknown.of(id),
        ("ended", [reason]) => {
            let reason = SessionEndReason::from_word(reason)
                .ok_or_else(|| Invalid::new("reason", *reason, "is not known"))?;
            NoSession::Ended(reason).of(id)
        }
        ("blocked", [reason, ends_in]) => {
            NoSession::Blocked { reason: reason.parse()?, ends_in_ms: number(ends_in)? }.of(id)
        }
        ("other-owner", [owner]) => NoSession::OtherOwner(owner.parse()?).of(id),
        ("bound", []) => NoSession::Bound.of(id),
        // The caller puts in the bound that it asked for.
        ("full", []) => StoreError::Limit { what: FULL, limit: 0 },
        ("many", []) => StoreError::Limit { what: MANY, limit: 0 },
        _ => return Err(Invalid::new("refusal", format!("{why} {more:?}"), "is not known")),
    })
}

/// What is bounded a session.
pub(super) const FULL: &str = "leases of this session";
/// What is bounded in all.
pub(super) const MANY: &str = "sessions live or remembered";

/// A live session.
pub(super) fn live(fields: &[&str]) -> Result<SessionReply, Invalid> {
    let [id, owner, ttl, expires_in, age, beats, blocked, bonds, rest @ ..] = fields else {
        return Err(Invalid::new("session", fields.join(" "), "is too short"));
    };
    let [metadata, principal, leases @ ..] = rest else {
        return Err(Invalid::new("session", fields.join(" "), "is too short"));
    };
    Ok(SessionReply {
        session_id: id.parse()?,
        owner: owner.parse()?,
        ttl_ms: number(ttl)?,
        expires_in_ms: number(expires_in)?,
        age_ms: number(age)?,
        heartbeats: number(beats)?,
        blocked: if blocked.is_empty() { None } else { Some(blocked.parse()?) },
        lease_count: count(bonds)?,
        leases: leases.chunks_exact(2).map(lease).collect::<Result<_, _>>()?,
        metadata: serde_json::from_str(metadata).ok(),
        principal: Some(*principal).filter(|name| !name.is_empty()).map(ToOwned::to_owned),
    })
}

fn lease(fields: &[&str]) -> Result<SessionLease, Invalid> {
    let lock: LockName = fields[0].parse()?;
    let lease_id: LeaseId = fields[1].parse()?;
    Ok(SessionLease { lock, lease_id })
}
