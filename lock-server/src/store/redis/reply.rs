//! Reading what the scripts answer.

use ::redis::Value;
use fence_protocol::wire::lock::{
    EndReason, EndedLease, EndedReply, HolderInfo, HolderReply, LockReply, LockState, WaiterReply,
};
use fence_protocol::{Invalid, LeaseId, LockName, Owner, Token};
use service_kit::redis_link::text_fields;

mod session;

use fence_protocol::wire::session::SessionReply;

use crate::store::{Grant, Mode, NoTakeover, StoreError, Takeover};

/// What a script answered to its caller.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Granted(Grant),
    Queued { expires_in_ms: u64 },
    Held { holder: HolderInfo, queue_length: usize },
    Lost(EndReason),
    Conflict(Owner),
    Refused { why: NoTakeover, holder: HolderInfo },
    NoSession(StoreError),
    Live(Box<SessionReply>),
    Gone { bonds: usize, left: usize },
    Ended { lease_id: LeaseId, token: Token, reason: EndReason },
    Free,
    Limit,
    Exhausted,
    Next(Option<u64>),
    Shown(Box<Shown>),
}

/// What `show.lua` says of a lock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    holder: Option<HolderReply>,
    queue_length: usize,
    queue: Vec<WaiterReply>,
    history: Vec<EndedLease>,
}

impl Answer {
    /// Scripts do not repeat the id that they were called with.
    pub(super) fn of(self, lease_id: LeaseId) -> Self {
        match self {
            Self::Granted(grant) => Self::Granted(Grant { lease_id, ..grant }),
            other => other,
        }
    }

    pub(super) fn into_grant(self) -> Result<Grant, StoreError> {
        match self {
            Self::Granted(grant) => Ok(grant),
            Self::Held { holder, queue_length } => Err(StoreError::Held { holder, queue_length }),
            Self::Lost(reason) => Err(StoreError::Lost { reason, why: None }),
            Self::Conflict(owner) => Err(StoreError::IdConflict { owner }),
            Self::Refused { why, holder } => Err(StoreError::TakeoverRefused { holder, why }),
            Self::NoSession(refusal) => Err(refusal),
            Self::Limit => Err(StoreError::Limit { what: "waiters of this lock", limit: 0 }),
            Self::Exhausted => Err(StoreError::Exhausted),
            Self::Free => Err(StoreError::Unavailable(
                "the lock came free just as the waiting time ended; try again".to_owned(),
            )),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn into_ended(self, lock: &LockName) -> Result<EndedReply, StoreError> {
        match self {
            Self::Ended { lease_id, token, reason } => {
                Ok(EndedReply { lock: lock.clone(), lease_id, token, reason })
            }
            Self::Lost(reason) => Err(StoreError::Lost { reason, why: None }),
            Self::Free => Err(StoreError::NotHeld),
            Self::NoSession(refusal) => Err(refusal),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn into_lock(self, lock: &LockName) -> Result<LockReply, StoreError> {
        match self {
            Self::Shown(shown) => Ok(LockReply {
                lock: lock.clone(),
                state: if shown.holder.is_some() { LockState::Held } else { LockState::Free },
                also_held: Vec::new(),
                lease_count: usize::from(shown.holder.is_some()),
                size: None,
                delayed_ms: None,
                holder: shown.holder,
                queue_length: shown.queue_length,
                queue: shown.queue,
                history: shown.history,
            }),
            other => Err(unexpected(&other)),
        }
    }
}

pub(super) fn unexpected(answer: &Answer) -> StoreError {
    StoreError::Unknown(format!("a script answered out of turn: {answer:?}"))
}

/// The caller's answer, and the grants that were handed to waiters of this server.
pub(super) fn read(value: Value) -> Result<(Answer, Vec<(LockName, Grant)>), StoreError> {
    let malformed = || StoreError::Unknown("a script's answer cannot be read".to_owned());
    let Value::Array(parts) = value else { return Err(malformed()) };
    let mut parts = parts.into_iter().map(|part| text_fields(part).unwrap_or_default());
    let answer = parts.next().ok_or_else(malformed)?;
    let answer = parse(&answer).map_err(|error| unreadable(&answer, &error))?;
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

fn parse(fields: &[String]) -> Result<Answer, Invalid> {
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    match fields.as_slice() {
        ["GRANTED", token, remaining, owner] => Ok(Answer::Granted(Grant {
            lease_id: PLACEHOLDER,
            token: token.parse()?,
            owner: owner.parse()?,
            remaining_ms: number(remaining)?,
            waited_ms: 0,
            mode: Mode::Exclusive,
        })),
        ["QUEUED", expires_in] => Ok(Answer::Queued { expires_in_ms: number(expires_in)? }),
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
        ["LOST", reason] => Ok(Answer::Lost(end_reason(reason)?)),
        ["CONFLICT", owner] => Ok(Answer::Conflict(owner.parse()?)),
        ["ENDED", lease, token, reason] => Ok(Answer::Ended {
            lease_id: lease.parse()?,
            token: token.parse()?,
            reason: end_reason(reason)?,
        }),
        ["FREE"] => Ok(Answer::Free),
        ["LIMIT"] => Ok(Answer::Limit),
        ["EXHAUSTED"] => Ok(Answer::Exhausted),
        ["NEXT", ""] => Ok(Answer::Next(None)),
        ["NEXT", ms] => Ok(Answer::Next(Some(number(ms)?))),
        ["FREE" | "HOLDER", ..] => Ok(Answer::Shown(Box::new(shown(&fields)?))),
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

/// What `acquire.lua` is told of a takeover.
pub(super) fn takeover_word(takeover: Takeover) -> String {
    match takeover {
        Takeover::Never => String::new(),
        Takeover::EarlierSelf => "self".to_owned(),
        Takeover::Of(lease_id) => lease_id.to_string(),
    }
}

fn no_takeover(word: &str) -> Result<NoTakeover, Invalid> {
    let found = NoTakeover::ALL.into_iter().find(|why| why.as_str() == word);
    found.ok_or_else(|| Invalid::new("refusal", word, "is not known"))
}

/// Stands in for the id that the caller knows; [`Answer::of`] puts the real one there.
const PLACEHOLDER: LeaseId = LeaseId::MAX;

fn handed(fields: &[String]) -> Result<(LockName, Grant), Invalid> {
    let [lock, lease, token, remaining, owner] = fields else {
        return Err(Invalid::new("grant", fields.join(" "), "does not have five fields"));
    };
    let grant = Grant {
        lease_id: lease.parse()?,
        token: token.parse()?,
        owner: owner.parse()?,
        remaining_ms: number(remaining)?,
        waited_ms: 0,
        mode: Mode::Exclusive,
    };
    Ok((LockName::new(lock)?, grant))
}

fn shown(fields: &[&str]) -> Result<Shown, Invalid> {
    let [
        state,
        lease,
        token,
        ttl,
        held,
        expires_in,
        renewals,
        owner,
        incarnation,
        session,
        metadata,
        rest @ ..,
    ] = fields
    else {
        return Err(Invalid::new("answer", fields.join(" "), "is too short"));
    };
    let [now, waiting, ended, waiters @ ..] = rest else {
        return Err(Invalid::new("answer", fields.join(" "), "is too short"));
    };
    let holder = match *state {
        "HOLDER" => Some(HolderReply {
            lease_id: lease.parse()?,
            info: holder_info(&[owner, token, held, expires_in])?,
            ttl_ms: number(ttl)?,
            renewals: number(renewals)?,
            mode: Mode::Exclusive.wire(),
            session_id: if session.is_empty() { None } else { Some(session.parse()?) },
            incarnation: if incarnation.is_empty() { None } else { Some(incarnation.parse()?) },
            metadata: serde_json::from_str(metadata).ok(),
        }),
        _ => None,
    };
    let now_ms = number(now)?;
    Ok(Shown {
        holder,
        queue_length: count(waiting)?,
        queue: waiters.chunks_exact(3).map(|w| waiter(w, now_ms)).collect::<Result<_, _>>()?,
        history: ended.lines().map(|line| ended_lease(line, now_ms)).collect::<Result<_, _>>()?,
    })
}

fn waiter(fields: &[&str], now_ms: u64) -> Result<WaiterReply, Invalid> {
    Ok(WaiterReply {
        lease_id: fields[0].parse()?,
        owner: fields[2].parse()?,
        waiting_ms: now_ms.saturating_sub(number(fields[1])?),
        mode: Mode::Exclusive.wire(),
    })
}

fn ended_lease(line: &str, now_ms: u64) -> Result<EndedLease, Invalid> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [lease, token, reason, held, at, owner, _incarnation] = fields.as_slice() else {
        return Err(Invalid::new("ended lease", line, "does not have seven fields"));
    };
    Ok(EndedLease {
        lease_id: lease.parse()?,
        token: if token.is_empty() { None } else { Some(token.parse()?) },
        owner: if owner.is_empty() { None } else { Some(owner.parse()?) },
        reason: end_reason(reason)?,
        why: None,
        held_ms: number(held)?,
        ended_ms_ago: now_ms.saturating_sub(number(at)?),
    })
}

fn end_reason(word: &str) -> Result<EndReason, Invalid> {
    EndReason::from_word(word).ok_or_else(|| Invalid::new("reason", word, "is not known"))
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

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn reads_an_answer_and_what_was_handed_on() {
        let lease = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let value = Value::Array(vec![
            Value::Array(vec![bulk("ENDED"), bulk(lease), bulk("34"), bulk("released")]),
            Value::Array(vec![bulk("a/b"), bulk(lease), bulk("35"), bulk("500"), bulk("zoë")]),
        ]);
        let (answer, handed) = read(value).unwrap();
        assert!(matches!(answer, Answer::Ended { token, .. } if token.get() == 34));
        assert_eq!(handed[0].0.as_str(), "a/b");
        assert_eq!(handed[0].1.token.get(), 35);
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
            Value::Array(vec![Value::Array(vec![bulk("HOLDER"), bulk("x")])]),
        ] {
            assert!(matches!(read(value), Err(StoreError::Unknown(_))));
        }
    }
}
