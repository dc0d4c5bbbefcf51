//! Reading what the scripts answer.

use ::redis::Value;
use fence_protocol::wire::lock::{EndReason, EndedReply, HolderInfo, LockLine, LockReply};
use fence_protocol::{Invalid, LeaseId, LockName, Owner, Token};
use service_kit::redis_link::text_fields;

mod session;
mod shown;
mod words;

use fence_protocol::wire::session::SessionReply;

use self::shown::Shown;
pub(super) use self::shown::{LEASES_SHOWN, WAITERS_SHOWN};
use self::words::{end_reason, kind, mode, no_takeover, said};
pub(super) use self::words::{locks, mode_word, takeover_word};
use crate::store::{Grant, Kind, Limits, NoTakeover, StoreError};

/// What a script answered to its caller.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Granted(Grant),
    Several(Vec<Grant>),
    Queued { expires_in_ms: u64, paused_ms: u64 },
    Held { holder: HolderInfo, queue_length: usize },
    Lost(EndReason, Option<Owner>),
    Conflict(Owner),
    OtherKind(Kind),
    Refused { why: NoTakeover, holder: HolderInfo },
    Part(LockName, Box<Answer>),
    NoSession(StoreError),
    Live(Box<SessionReply>),
    Gone { bonds: usize, left: usize },
    Ended { lease_id: LeaseId, token: Token, reason: EndReason },
    Revoked(Vec<(LeaseId, Token)>),
    Minted(Token),
    Free,
    Kept,
    Limit(u64),
    Exhausted,
    Paused(u64),
    Unacknowledged(Token),
    RolledBack(StoreError),
    Next(Option<u64>),
    Shown(Box<Shown>),
}

/// What was handed to a waiter of this server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Handed {
    /// The lock that it waited for.
    One(LockName, Grant),
    /// All that it waited for; it asks again to learn the tokens.
    Several {
        /// The lock under which it is known here.
        known_by: LockName,
        /// The id of the grants.
        lease_id: LeaseId,
        /// All of its locks.
        locks: Vec<LockName>,
    },
}

impl Answer {
    /// Scripts do not repeat the id and the bounds that they were called with.
    pub(super) fn of(self, lease_id: LeaseId, limits: &Limits) -> Self {
        match self {
            Self::Granted(grant) => Self::Granted(Grant { lease_id, ..grant }),
            Self::Several(grants) => {
                let own = |grant| Grant { lease_id, ..grant };
                Self::Several(grants.into_iter().map(own).collect())
            }
            Self::Limit(_) => Self::Limit(limits.waiters_per_lock as u64),
            Self::NoSession(StoreError::Limit { what, .. }) => {
                Self::NoSession(StoreError::Limit { what, limit: limits.session_leases as u64 })
            }
            Self::Part(lock, refusal) => Self::Part(lock, Box::new(refusal.of(lease_id, limits))),
            other => other,
        }
    }

    /// The answer `ms` milliseconds after the script ran, as far as it promises a time.
    pub(super) fn later(self, ms: u64) -> Self {
        match self {
            Self::Granted(grant) => Self::Granted(grant.later(ms)),
            Self::Several(grants) => {
                Self::Several(grants.into_iter().map(|grant| grant.later(ms)).collect())
            }
            Self::Live(mut session) => {
                session.expires_in_ms = session.expires_in_ms.saturating_sub(ms);
                Self::Live(session)
            }
            other => other,
        }
    }

    /// For how long what it tells of lives, ms.
    pub(super) fn lives_ms(&self) -> Option<u64> {
        match self {
            Self::Granted(grant) => Some(grant.remaining_ms),
            Self::Several(grants) => grants.iter().map(|grant| grant.remaining_ms).max(),
            Self::Live(session) => Some(session.expires_in_ms),
            _ => None,
        }
    }

    /// What it tells of a pause in grants, ms; 0 for nothing.
    pub(super) fn paused_ms(&self) -> u64 {
        match self {
            Self::Paused(left_ms) => *left_ms,
            Self::Queued { paused_ms, .. } => *paused_ms,
            Self::Part(_, refusal) => refusal.paused_ms(),
            _ => 0,
        }
    }

    /// The tokens of its grants, and a minted one.
    pub(super) fn tokens(&self) -> Vec<Token> {
        match self {
            Self::Granted(grant) => vec![grant.token],
            Self::Several(grants) => grants.iter().map(|grant| grant.token).collect(),
            Self::Minted(token) => vec![*token],
            _ => Vec::new(),
        }
    }

    pub(super) fn into_grant(self) -> Result<Grant, StoreError> {
        match self {
            Self::Granted(grant) => Ok(grant),
            Self::Held { holder, queue_length } => Err(StoreError::Held { holder, queue_length }),
            Self::Lost(reason, why) => Err(StoreError::Lost { reason, why }),
            Self::Conflict(owner) => Err(StoreError::IdConflict { owner }),
            Self::OtherKind(kind) => Err(StoreError::OtherKind(kind)),
            Self::Refused { why, holder } => Err(StoreError::TakeoverRefused { holder, why }),
            Self::NoSession(refusal) | Self::RolledBack(refusal) => Err(refusal),
            Self::Limit(limit) => Err(StoreError::Limit { what: "waiters of this lock", limit }),
            Self::Exhausted => Err(StoreError::Exhausted),
            Self::Paused(left_ms) => Err(StoreError::Paused { left_ms }),
            Self::Free => Err(StoreError::Unavailable(
                "nobody holds the lock; those who asked for it before are about to have it; try again"
                    .to_owned(),
            )),
            // It was asked about once, and another call has granted it anew since.
            Self::Unacknowledged(_) => Err(StoreError::Unknown(
                "the grant is not known to be with enough replicas; ask again with the same id"
                    .to_owned(),
            )),
            Self::Part(lock, refusal) => Err(match refusal.into_grant() {
                Err(refusal) => StoreError::Part { lock, refusal: Box::new(refusal) },
                Ok(grant) => unexpected(&Self::Granted(grant)),
            }),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn into_grants(self) -> Result<Vec<Grant>, StoreError> {
        match self {
            Self::Several(grants) => Ok(grants),
            other => other.into_grant().map(|grant| vec![grant]),
        }
    }

    pub(super) fn into_ended(self, lock: &LockName) -> Result<EndedReply, StoreError> {
        match self {
            Self::Ended { lease_id, token, reason } => {
                Ok(EndedReply { lock: lock.clone(), lease_id, token, reason })
            }
            Self::Lost(reason, why) => Err(StoreError::Lost { reason, why }),
            Self::NoSession(refusal) => Err(refusal),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn into_revoked(self, lock: &LockName) -> Result<Vec<EndedReply>, StoreError> {
        let reason = EndReason::Revoked;
        let ended = |(lease_id, token)| EndedReply { lock: lock.clone(), lease_id, token, reason };
        match self {
            Self::Revoked(leases) => Ok(leases.into_iter().map(ended).collect()),
            Self::Lost(reason, why) => Err(StoreError::Lost { reason, why }),
            Self::Free => Err(StoreError::NotHeld),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn into_lock(self, lock: &LockName) -> Result<LockReply, StoreError> {
        match self {
            Self::Shown(shown) => Ok(shown.into_lock(lock)),
            other => Err(unexpected(&other)),
        }
    }

    /// The lock in a listing; none where nobody holds it and nothing keeps it closed.
    pub(super) fn into_line(self, lock: LockName) -> Result<Option<LockLine>, StoreError> {
        match self {
            Self::Shown(shown) => Ok(shown.into_line(lock)),
            other => Err(unexpected(&other)),
        }
    }
}

pub(super) fn unexpected(answer: &Answer) -> StoreError {
    StoreError::Unknown(format!("a script answered out of turn: {answer:?}"))
}

/// The caller's answer, and the grants that were handed to waiters of this server.
pub(super) fn read(value: Value) -> Result<(Answer, Vec<Handed>), StoreError> {
    let malformed = || StoreError::Unknown("a script's answer cannot be read".to_owned());
    let Value::Array(parts) = value else { return Err(malformed()) };
    let mut parts = parts.into_iter().map(|part| text_fields(part).unwrap_or_default());
    let answer = parts.next().ok_or_else(malformed)?;
    let words: Vec<&str> = answer.iter().map(String::as_str).collect();
    let answer = parse(&words).map_err(|error| unreadable(&answer, &error))?;
    let handed = parts
        .map(|fields| handed(&fields).map_err(|error| unreadable(&fields, &error)))
        .collect::<Result<_, _>>()?;
    Ok((answer, handed))
}

/// The next cursor and the names of a `ZSCAN` reply.
pub(super) fn scan(value: Value) -> Result<(String, Vec<LockName>), StoreError> {
    let malformed = || StoreError::Unavailable("a scan's answer cannot be read".to_owned());
    let Value::Array(parts) = value else { return Err(malformed()) };
    let [cursor, members] = <[Value; 2]>::try_from(parts).map_err(|_| malformed())?;
    let cursor = text_fields(Value::Array(vec![cursor])).and_then(|mut one| one.pop());
    let members = text_fields(members).ok_or_else(malformed)?;
    let names = members.iter().step_by(2).filter_map(|name| LockName::new(name).ok()).collect();
    Ok((cursor.ok_or_else(malformed)?, names))
}

fn unreadable(fields: &[String], error: &Invalid) -> StoreError {
    StoreError::Unknown(format!("a script's answer {fields:?} cannot be read: {error}"))
}

fn parse(fields: &[&str]) -> Result<Answer, Invalid> {
    match fields {
        ["GRANTED", grant @ ..] => Ok(Answer::Granted(words::grant(grant)?)),
        ["ALL", grants @ ..] => {
            let grants = grants.chunks(GRANT_FIELDS).map(words::grant);
            Ok(Answer::Several(grants.collect::<Result<_, _>>()?))
        }
        ["QUEUED", expires_in, paused] => {
            Ok(Answer::Queued { expires_in_ms: number(expires_in)?, paused_ms: number(paused)? })
        }
        ["HELD", holder @ .., waiting] => {
            Ok(Answer::Held { holder: holder_info(holder)?, queue_length: count(waiting)? })
        }
        ["REFUSED", why, holder @ .., _] => {
            Ok(Answer::Refused { why: no_takeover(why)?, holder: holder_info(holder)? })
        }
        ["SESSION", why, id, more @ ..] => {
            Ok(Answer::NoSession(session::refusal(why, id.parse()?, more)?))
        }
        ["LIVE", rest @ ..] => Ok(Answer::Live(Box::new(session::live(rest)?))),
        ["GONE", bonds, left] => Ok(Answer::Gone { bonds: count(bonds)?, left: count(left)? }),
        ["LOST", reason, why] => Ok(Answer::Lost(end_reason(reason)?, said(why)?)),
        ["CONFLICT", owner] => Ok(Answer::Conflict(owner.parse()?)),
        ["KIND", word] => Ok(Answer::OtherKind(kind(word)?)),
        ["PART", lock, refusal @ ..] => {
            Ok(Answer::Part(LockName::new(lock)?, Box::new(parse(refusal)?)))
        }
        ["REVOKED", leases @ ..] => {
            let lease = |pair: &[&str]| Ok((pair[0].parse()?, pair[1].parse()?));
            Ok(Answer::Revoked(leases.chunks_exact(2).map(lease).collect::<Result<_, Invalid>>()?))
        }
        ["MINTED", token] => Ok(Answer::Minted(token.parse()?)),
        ["ENDED", lease, token, reason] => Ok(Answer::Ended {
            lease_id: lease.parse()?,
            token: token.parse()?,
            reason: end_reason(reason)?,
        }),
        ["FREE"] => Ok(Answer::Free),
        ["KEPT"] => Ok(Answer::Kept),
        ["LIMIT"] => Ok(Answer::Limit(0)),
        ["UNACKNOWLEDGED", token] => Ok(Answer::Unacknowledged(token.parse()?)),
        ["EXHAUSTED"] => Ok(Answer::Exhausted),
        ["PAUSED", left] => Ok(Answer::Paused(number(left)?)),
        ["NEXT", ""] => Ok(Answer::Next(None)),
        ["NEXT", ms] => Ok(Answer::Next(Some(number(ms)?))),
        ["LOCK", about @ ..] => Ok(Answer::Shown(Box::new(shown::read(about)?))),
        _ => Err(Invalid::new("answer", fields.join(" "), "is not known")),
    }
}

fn holder_info(fields: &[&str]) -> Result<HolderInfo, Invalid> {
    let [owner, token, held, expires_in] = fields else {
        return Err(Invalid::new("holder", fields.join(" "), "does not have four fields"));
    };
    Ok(HolderInfo {
        owner: owner.parse()?,
        token: token.parse()?,
        held_ms: number(held)?,
        expires_in_ms: number(expires_in)?,
    })
}

/// Stands in for the id that the caller knows; [`Answer::of`] puts the real one there.
const PLACEHOLDER: LeaseId = LeaseId::MAX;
/// Token, rest, owner, mode.
const GRANT_FIELDS: usize = 4;

fn handed(fields: &[String]) -> Result<Handed, Invalid> {
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    match fields.as_slice() {
        [lock, lease, names] => Ok(Handed::Several {
            known_by: LockName::new(lock)?,
            lease_id: lease.parse()?,
            locks: locks(names),
        }),
        [lock, lease, grant @ ..] => {
            let grant = Grant { lease_id: lease.parse()?, ..words::grant(grant)? };
            Ok(Handed::One(LockName::new(lock)?, grant))
        }
        _ => Err(Invalid::new("grant", fields.join(" "), "has too few fields")),
    }
}

pub(super) fn number(text: &str) -> Result<u64, Invalid> {
    text.parse().map_err(|_| Invalid::new("number", text, "is not a whole number"))
}

pub(super) fn count(text: &str) -> Result<usize, Invalid> {
    text.parse().map_err(|_| Invalid::new("count", text, "is not a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Mode;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn reads_an_answer_and_what_was_handed_on() {
        let lease = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let value = Value::Array(vec![
            Value::Array(vec![bulk("ENDED"), bulk(lease), bulk("34"), bulk("released")]),
            Value::Array(vec![
                bulk("a/b"),
                bulk(lease),
                bulk("35"),
                bulk("500"),
                bulk("zoë"),
                bulk("p3"),
            ]),
            Value::Array(vec![bulk("a"), bulk(lease), bulk("b,a")]),
        ]);
        let (answer, handed) = read(value).unwrap();
        assert!(matches!(answer, Answer::Ended { token, .. } if token.get() == 34));
        let Handed::One(lock, grant) = &handed[0] else { panic!("{handed:?}") };
        assert_eq!((lock.as_str(), grant.token.get()), ("a/b", 35));
        assert_eq!(grant.mode, Mode::Permit { size: 3 });
        let Handed::Several { known_by, locks, .. } = &handed[1] else { panic!("{handed:?}") };
        assert_eq!((known_by.as_str(), locks.len()), ("a", 2));
    }

    #[test]
    fn nonsense_is_an_unknown_outcome() {
        for value in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Array(vec![
                bulk("GRANTED"),
                bulk("0"),
                bulk("1"),
                bulk("a"),
            ])]),
            Value::Array(vec![Value::Array(vec![bulk("LOCK"), bulk("x")])]),
            Value::Array(vec![Value::Array(vec![bulk("KIND"), bulk("p0")])]),
            Value::Array(vec![Value::Array(vec![bulk("PART"), bulk("a"), bulk("nothing")])]),
        ] {
            assert!(matches!(read(value), Err(StoreError::Unknown(_))));
        }
    }
}
