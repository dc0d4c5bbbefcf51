//! Fuzz target: the journal's records and what a quorum's proposer makes of replies.

use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token};

use super::quorum::tally::{Decision, Heard, RenewDecision, Round};
use super::quorum::{Bucket, NodeReply, Vote};
use super::{Machine, Record, Session, StoredRecord, StoredSession};
use crate::store::Limits;

/// A day in milliseconds: everything that a journal may hold is over after it.
const LATER_MS: u64 = 24 * 3_600_000;

/// A record or a session in the journal. What is read is written so that it is read again as the
/// same, and a machine that took it over passes its time without a panic.
pub(crate) fn journal(text: &str) {
    let now_ms = 1_000;
    let lock = lock();
    let mut machine = Machine::new(0, Limits::default());
    if let Ok(stored) = serde_json::from_str::<StoredSession>(text) {
        let session = Session::from_stored(stored, now_ms);
        let Ok(again) = serde_json::to_string(&session.to_stored()) else { panic!("{session:?}") };
        let read = serde_json::from_str(&again).map(|stored| Session::from_stored(stored, now_ms));
        assert!(read.is_ok_and(|read| read == session), "{again}");
        machine.restore_session(SessionId::MAX, session);
    }
    if let Ok(stored) = serde_json::from_str::<StoredRecord>(text) {
        let record = Record::from_stored(stored, now_ms);
        let Ok(again) = serde_json::to_string(&record.to_stored()) else { panic!("{record:?}") };
        let read = serde_json::from_str(&again).map(|stored| Record::from_stored(stored, now_ms));
        assert!(read.is_ok_and(|read| read == record), "{again}");
        let highest = record.highest_token();
        machine.restore(now_ms, lock, record);
        assert!(machine.counter() >= highest && machine.counter() <= Token::MAX);
    }
    for at_ms in [now_ms, now_ms + 1, now_ms + LATER_MS, u64::MAX / 2] {
        machine.tick(at_ms);
    }
    drop(machine.take_changes());
    drop(machine.take_session_changes());
}

/// Replies of three nodes to a vote, a renewal, an end and a raise. Whatever they say, a majority
/// decides, and no longer than its replies allow.
pub(crate) fn round(replies: &[NodeReply]) {
    let mut round = Round::new(1, 3);
    for (node, reply) in replies.iter().take(3).enumerate() {
        round.hear(node, Heard::Replied(reply.clone()));
    }
    for _ in 0..2 {
        if let Decision::Granted { remaining_ms, .. } = round.vote(&vote()) {
            let most = replies.iter().filter_map(remaining).max();
            assert!(most.is_some_and(|most| remaining_ms <= most) && replies.len() > 1);
        }
        if let RenewDecision::Renewed { remaining_ms, .. } = round.renew() {
            let most = replies.iter().filter_map(remaining).max();
            assert!(most.is_some_and(|most| remaining_ms <= most) && replies.len() > 1);
        }
        let _ = (round.end(), round.raise());
        round.close();
    }
}

fn remaining(reply: &NodeReply) -> Option<u64> {
    match reply {
        NodeReply::Accepted { remaining_ms, .. }
        | NodeReply::Yours { remaining_ms, .. }
        | NodeReply::Renewed { remaining_ms, .. } => Some(*remaining_ms),
        _ => None,
    }
}

fn vote() -> Vote {
    let (Ok(token), Ok(owner)) = (Token::new(34), Owner::new("o")) else { panic!("a vote") };
    Vote {
        lock: lock(),
        bucket: Bucket::new(0),
        lease: LeaseId::MAX,
        token,
        ttl_ms: 1_000,
        owner,
        metadata: String::new(),
        attempt: "a".to_owned(),
        dead: Vec::new(),
        retention_ms: 1_000,
    }
}

fn lock() -> LockName {
    let Ok(lock) = LockName::new("orders/42") else { panic!("a lock") };
    lock
}
