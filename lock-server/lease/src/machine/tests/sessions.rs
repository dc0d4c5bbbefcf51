//! Unit tests of sessions.

use fence_protocol::SessionId;
use fence_protocol::wire::session::SessionEndReason;

use super::*;
use crate::Reading;
use crate::Session;
use crate::{NewSession, NoSession, SessionRefusal};

const SESSION: u128 = 900;

fn session() -> SessionId {
    SessionId::new(uuid_of(SESSION)).unwrap()
}

fn new(ttl_ms: u64) -> NewSession {
    let owner = Owner::new("worker").unwrap();
    let ttl = Ttl::from_ms(ttl_ms).unwrap();
    NewSession { session_id: session(), owner, ttl, metadata: None, principal: None }
}

fn bound(name: &str, number: u128, wait_ms: u64) -> Acquire {
    Acquire {
        owner: Owner::new("worker").unwrap(),
        session: Some(session()),
        ..request(name, number, wait_ms)
    }
}

fn why<T: std::fmt::Debug>(result: Result<T, StoreError>) -> NoSession {
    match result {
        Err(StoreError::Session(SessionRefusal { why, .. })) => why,
        other => panic!("not refused for its session: {other:?}"),
    }
}

#[test]
fn a_heartbeat_is_the_time_of_every_lease_and_no_news_to_the_journal() {
    let mut machine = machine();
    machine.create_session(0, new(200)).unwrap();
    for number in 1..=50 {
        let grant = granted(machine.acquire(10, bound(&format!("l{number}"), number, 0)));
        assert_eq!(grant.remaining_ms, 190);
    }
    drop(machine.take_changes());
    drop(machine.take_session_changes());
    machine.heartbeat(150, session()).unwrap();
    assert!(!machine.has_news());
    assert_eq!(machine.next_alarm_ms(), Some(350), "one alarm for all of them");
    let line = machine
        .list(340, &crate::ListQuery { prefix: String::new(), after: None, limit: 1, owner: None });
    assert_eq!(line.locks[0].holder.as_ref().unwrap().expires_in_ms, 10);
    machine.tick(350);
    for number in 1..=50 {
        let late = machine.renew(350, &lock(&format!("l{number}")), id(number), None).unwrap_err();
        assert_eq!(
            late,
            StoreError::Lost { reason: EndReason::SessionEnded, why: None, is_known: true }
        );
    }
}

/// Two sessions end at the same time, and each waits for the other's lock.
#[test]
fn sessions_that_end_together_grant_nothing_to_each_other() {
    let mut machine = machine();
    let other = SessionId::new(uuid_of(901)).unwrap();
    machine.create_session(0, new(100)).unwrap();
    machine.create_session(0, NewSession { session_id: other, ..new(100) }).unwrap();
    granted(machine.acquire(1, bound("a", 1, 0)));
    granted(machine.acquire(1, Acquire { session: Some(other), ..bound("b", 2, 0) }));
    assert_eq!(machine.acquire(2, bound("b", 3, 500)), Reply::Queued);
    let asked = Acquire { session: Some(other), ..bound("a", 4, 500) };
    assert_eq!(machine.acquire(2, asked), Reply::Queued);
    machine.tick(100);
    let deliveries = machine.take_deliveries();
    assert_eq!(deliveries.len(), 2);
    for delivery in deliveries {
        assert_eq!(why(delivery.result), NoSession::Ended(SessionEndReason::Expired));
    }
    assert_eq!(machine.waiters, 0);
    assert_eq!(machine.counter(), 2, "no lease was granted");
}

/// The waiter stands behind a live holder: it is refused at once, not when it times out.
#[test]
fn the_waiters_of_an_ended_session_are_refused_at_once() {
    let mut machine = machine();
    machine.create_session(0, new(1_000)).unwrap();
    granted(machine.acquire(0, request("busy", 1, 0)));
    assert_eq!(machine.acquire(1, bound("busy", 2, 500)), Reply::Queued);
    machine.end_session(2, session()).unwrap();
    let delivery = machine.take_deliveries().remove(0);
    assert_eq!(delivery.lease_id, id(2));
    assert_eq!(why(delivery.result), NoSession::Ended(SessionEndReason::Ended));
    assert_eq!((machine.waiters, machine.show(3, &lock("busy")).queue_length), (0, 0));
}

#[test]
fn nothing_remains_of_a_session() {
    let mut machine = machine();
    machine.create_session(0, new(100)).unwrap();
    granted(machine.acquire(1, bound("a", 1, 0)));
    machine.acquire(2, bound("a", 2, 500));
    machine.end_session(10, session()).unwrap();
    assert_eq!(why(machine.heartbeat(59, session())), NoSession::Ended(SessionEndReason::Ended));
    machine.tick(60);
    assert_eq!(why(machine.heartbeat(60, session())), NoSession::Unknown);
    assert_eq!(machine.next_alarm_ms(), None);
    assert!(machine.records.is_empty());
    assert!(machine.take_session_changes().iter().all(|(_, session)| session.is_none()));
}

#[test]
fn sessions_and_their_leases_are_bounded() {
    let limits = Limits { sessions: 1, session_leases: 2, ..Limits::default() };
    let mut machine = Machine::new(0, limits);
    machine.create_session(0, new(100)).unwrap();
    machine.create_session(0, new(100)).unwrap();
    let second = NewSession { session_id: SessionId::new(uuid_of(901)).unwrap(), ..new(100) };
    let refused_one = machine.create_session(0, second).unwrap_err();
    assert!(matches!(refused_one, StoreError::Limit { limit: 1, .. }));
    granted(machine.acquire(0, request("busy", 7, 0)));
    let thief = Acquire { owner: Owner::new("thief").unwrap(), ..bound("a", 9, 0) };
    let theirs = match machine.acquire(0, thief) {
        Reply::Done(outcome) => why(outcome),
        Reply::Queued => panic!("queued"),
    };
    assert_eq!(theirs, NoSession::OtherOwner(Owner::new("worker").unwrap()));
    granted(machine.acquire(0, bound("a", 1, 0)));
    assert_eq!(machine.acquire(0, bound("busy", 2, 50)), Reply::Queued);
    assert_eq!(machine.acquire(1, bound("busy", 2, 50)), Reply::Queued, "a repeat is no other");
    let refused_one = refused(machine.acquire(1, bound("b", 3, 0)));
    assert!(matches!(refused_one, StoreError::Limit { limit: 2, .. }), "{refused_one:?}");
    machine.withdraw(2, &lock("busy"), id(2));
    granted(machine.acquire(3, bound("b", 3, 0)));
}

/// A restart keeps the session and its leases, with its full time; a blocked one stays blocked, and
/// an ended one ended.
#[test]
fn sessions_outlast_a_restart() {
    let mut before = machine();
    before.create_session(0, new(100)).unwrap();
    let held = granted(before.acquire(1, bound("a", 1, 0)));
    before.block_session(2, session(), Owner::new("why").unwrap()).unwrap();
    let record = before.take_changes().remove(0).1.unwrap().to_stored(u64::MAX);
    let stored = before.take_session_changes().remove(0).1.unwrap().to_stored();
    let mut after = machine();
    after.restore_session(
        session(),
        Session::from_stored(stored.clone(), Reading::Restart { now_ms: 500 }),
    );
    after.restore(
        500,
        lock("a"),
        Record::from_stored(record.clone(), Reading::Restart { now_ms: 500 }).unwrap(),
    );
    let shown = after.show_session(510, session()).unwrap();
    assert_eq!((shown.lease_count, shown.expires_in_ms), (1, 90));
    assert!(matches!(why(after.heartbeat(510, session())), NoSession::Blocked { .. }));
    let same = after.renew(510, &lock("a"), id(1), None).unwrap();
    assert_eq!((same.token, same.remaining_ms), (held.token, 90));
    after.tick(600);
    let late = after.renew(600, &lock("a"), id(1), None).unwrap_err();
    assert_eq!(
        late,
        StoreError::Lost { reason: EndReason::SessionEnded, why: None, is_known: true }
    );
    // A lease whose session is missing has ended with it.
    let mut without = machine();
    without.restore(
        0,
        lock("a"),
        Record::from_stored(record, Reading::Restart { now_ms: 0 }).unwrap(),
    );
    let late = without.renew(1, &lock("a"), id(1), None).unwrap_err();
    assert_eq!(
        late,
        StoreError::Lost { reason: EndReason::SessionEnded, why: None, is_known: true }
    );
}
