//! Reading what `show.lua` says of a lock.

use fence_protocol::wire::lock::{
    EndedLease, HolderInfo, HolderReply, LockLine, LockReply, LockState, WaiterReply,
};
use fence_protocol::{Invalid, LockName};

use super::{count, end_reason, holder_info, kind, mode, number, said};
use crate::store::Kind;

/// How many waiters a reply lists.
pub(in super::super) const WAITERS_SHOWN: usize = 100;
/// How many leases a reply lists: the first one and a hundred beside it.
pub(in super::super) const LEASES_SHOWN: usize = 101;
const LEASE_FIELDS: usize = 11;

/// What there is to know of a lock.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Shown {
    kind: Option<Kind>,
    lease_count: usize,
    delayed_ms: Option<u64>,
    closed: Option<HolderInfo>,
    leases: Vec<HolderReply>,
    queue_length: usize,
    queue: Vec<WaiterReply>,
    history: Vec<EndedLease>,
}

impl Shown {
    pub(super) fn into_lock(self, lock: &LockName) -> LockReply {
        let state = match (self.leases.is_empty(), self.delayed_ms) {
            (false, _) => LockState::Held,
            (true, Some(_)) => LockState::Delayed,
            (true, None) => LockState::Free,
        };
        let mut leases = self.leases.into_iter();
        LockReply {
            lock: lock.clone(),
            state,
            holder: leases.next(),
            also_held: leases.collect(),
            lease_count: self.lease_count,
            size: match self.kind {
                Some(Kind::Semaphore { size }) => Some(size),
                Some(Kind::Lock) | None => None,
            },
            delayed_ms: self.delayed_ms,
            queue_length: self.queue_length,
            queue: self.queue,
            history: self.history,
        }
    }

    pub(super) fn into_line(self, lock: LockName) -> Option<LockLine> {
        let held = self.leases.into_iter().next().map(|holder| holder.info);
        let holder = held.or(self.closed)?;
        Some(LockLine { lock, holder, queue_length: self.queue_length })
    }
}

pub(super) fn read(fields: &[&str]) -> Result<Shown, Invalid> {
    let short = || Invalid::new("answer", fields.join(" "), "is too short");
    let [word, lease_count, delayed, rest @ ..] = fields else { return Err(short()) };
    let [owner, token, held, expires_in, now, waiting, ended, shown, rest @ ..] = rest else {
        return Err(short());
    };
    let leases = count(shown)?.saturating_mul(LEASE_FIELDS);
    let (leases, waiters) = rest.split_at_checked(leases).ok_or_else(short)?;
    let now_ms = number(now)?;
    Ok(Shown {
        kind: if word.is_empty() { None } else { Some(kind(word)?) },
        lease_count: count(lease_count)?,
        delayed_ms: if delayed.is_empty() { None } else { Some(number(delayed)?) },
        closed: match *token {
            "" => None,
            _ => Some(holder_info(&[owner, token, held, expires_in])?),
        },
        leases: leases.chunks_exact(LEASE_FIELDS).map(lease).collect::<Result<_, _>>()?,
        queue_length: count(waiting)?,
        queue: waiters.chunks_exact(4).map(|w| waiter(w, now_ms)).collect::<Result<_, _>>()?,
        history: ended.lines().map(|line| ended_lease(line, now_ms)).collect::<Result<_, _>>()?,
    })
}

fn lease(fields: &[&str]) -> Result<HolderReply, Invalid> {
    let [
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
        word,
    ] = fields
    else {
        return Err(Invalid::new("lease", fields.join(" "), "does not have eleven fields"));
    };
    Ok(HolderReply {
        lease_id: lease.parse()?,
        info: holder_info(&[owner, token, held, expires_in])?,
        ttl_ms: number(ttl)?,
        renewals: number(renewals)?,
        mode: mode(word)?.wire(),
        session_id: if session.is_empty() { None } else { Some(session.parse()?) },
        incarnation: said(incarnation)?,
        metadata: serde_json::from_str(metadata).ok(),
    })
}

fn waiter(fields: &[&str], now_ms: u64) -> Result<WaiterReply, Invalid> {
    Ok(WaiterReply {
        lease_id: fields[0].parse()?,
        owner: fields[2].parse()?,
        waiting_ms: now_ms.saturating_sub(number(fields[1])?),
        mode: mode(fields[3])?.wire(),
    })
}

fn ended_lease(line: &str, now_ms: u64) -> Result<EndedLease, Invalid> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [lease, token, reason, held, at, owner, _incarnation, why] = fields.as_slice() else {
        return Err(Invalid::new("ended lease", line, "does not have eight fields"));
    };
    Ok(EndedLease {
        lease_id: lease.parse()?,
        token: if token.is_empty() { None } else { Some(token.parse()?) },
        owner: said(owner)?,
        reason: end_reason(reason)?,
        why: said(why)?,
        held_ms: number(held)?,
        ended_ms_ago: now_ms.saturating_sub(number(at)?),
    })
}
