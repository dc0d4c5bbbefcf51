//! Sessions: one heartbeat keeps every lease, and one end ends them all.

use fence_protocol::SessionId;
use fence_protocol::wire::session::{SessionEndReason, SessionReply};
use lock_server::store::{NewSession, NoSession, SessionRefusal};

use super::*;
use crate::key_file::session_id;

fn new_session(ttl_ms: u64) -> NewSession {
    NewSession {
        session_id: session_id(),
        owner: owner("conformance"),
        ttl: Ttl::from_ms(ttl_ms).expect("a time to live"),
        metadata: Some(r#"{"pod":7}"#.to_owned()),
        principal: None,
    }
}

pub(super) async fn begin(store: &Store, ttl_ms: u64) -> SessionId {
    let new = new_session(ttl_ms);
    store.create_session(new.clone()).await.expect("a session").session_id
}

/// A session that ends soon, and may have ended when the reply about it comes.
async fn begin_briefly(store: &Store) -> SessionId {
    until("a session", || async {
        match store.create_session(new_session(SHORT_MS)).await {
            Ok(session) => Some(session.session_id),
            Err(StoreError::Session(SessionRefusal {
                why: NoSession::Ended(SessionEndReason::Expired),
                ..
            })) => None,
            Err(error) if is_late(&error) => None,
            Err(other) => panic!("{other:?}"),
        }
    })
    .await
}

/// A request that is bound to the session. Its own time to live is short, and says nothing.
fn bound(session: SessionId, lock: &str, wait_ms: u64) -> Acquire {
    Acquire { session: Some(session), ..request(lock, SHORT_MS, wait_ms) }
}

async fn hold(store: &Store, session: SessionId, lock: &str) -> Grant {
    store.acquire(bound(session, lock, 0)).await.expect("the lock is free")
}

/// A session that ends soon, and its lease, however late the replies are.
async fn hold_briefly(store: &Store, lock: &str) -> (SessionId, Grant) {
    until("a lease of a session that ends soon", || async {
        let session = begin_briefly(store).await;
        let grant = store.acquire(bound(session, lock, 0)).await;
        grant.ok().map(|grant| (session, grant))
    })
    .await
}

fn why<T: std::fmt::Debug>(outcome: Result<T, StoreError>) -> NoSession {
    match outcome {
        Err(StoreError::Session(SessionRefusal { why, .. })) => why,
        other => panic!("expected a refused session: {other:?}"),
    }
}

/// Waits until the session is over, without looking at any lock.
async fn until_over(store: &Store, session: SessionId) -> NoSession {
    until("the session to end", || async { store.show_session(session).await.err() }).await;
    why(store.heartbeat(session).await)
}

/// A session shows what was requested, and a retry, as after a lost reply, is the same session.
pub async fn a_session_is_created_once(store: &Store) {
    let new = new_session(LONG_MS);
    let first = store.create_session(new.clone()).await.unwrap();
    assert_eq!((first.session_id, &first.owner), (new.session_id, &new.owner));
    assert!(first.expires_in_ms <= LONG_MS && first.expires_in_ms > 0);
    assert_eq!((first.ttl_ms, first.heartbeats, first.lease_count), (LONG_MS, 0, 0));
    store.heartbeat(new.session_id).await.unwrap();
    let again = store.create_session(new.clone()).await.unwrap();
    assert_eq!((again.heartbeats, again.metadata.unwrap()["pod"].as_u64()), (1, Some(7)));
    assert_eq!(first.principal, None);
    let theirs = NewSession { owner: owner("another owner"), ..new.clone() };
    assert_eq!(why(store.create_session(theirs).await), NoSession::OtherOwner(new.owner.clone()));
    store.end_session(new.session_id).await.unwrap();
    let ended = NoSession::Ended(SessionEndReason::Ended);
    assert_eq!(why(store.create_session(new).await), ended);
    assert_eq!(why(store.heartbeat(session_id()).await), NoSession::Unknown);
}

/// The principal of a session stays as at its beginning, in every reply; with metadata or
/// without. The store keeps it and checks no request against it.
pub async fn a_session_keeps_its_principal(store: &Store) {
    for metadata in [None, Some(r#"{"pod":"a\tb"}"#.to_owned())] {
        let new = NewSession {
            principal: Some("team.eu-1".to_owned()),
            metadata: metadata.clone(),
            ..new_session(LONG_MS)
        };
        let id = new.session_id;
        let theirs = NewSession { principal: Some("other".to_owned()), ..new.clone() };
        let replies = [
            store.create_session(new).await.unwrap(),
            store.create_session(theirs).await.unwrap(),
            store.heartbeat(id).await.unwrap(),
            store.look_session(id).await.unwrap(),
            store.show_session(id).await.unwrap(),
            store.block_session(id, owner("why")).await.unwrap(),
            store.list_sessions(None, 1).await.unwrap().sessions.remove(0),
        ];
        for reply in replies {
            assert_eq!(reply.principal.as_deref(), Some("team.eu-1"));
            let metadata = metadata.as_deref().map(|text| serde_json::from_str(text).unwrap());
            assert_eq!(reply.metadata, metadata);
        }
        store.end_session(id).await.unwrap();
        assert_eq!(why(store.look_session(id).await), NoSession::Ended(SessionEndReason::Ended));
    }
}

/// Leases outlive their own time to live on heartbeats alone; a session without them ends by
/// itself, and its lease ends with it and says why.
pub async fn a_heartbeat_keeps_every_lease(store: &Store) {
    let session = begin(store, LONG_MS).await;
    let locks: Vec<String> = (0..20).map(|number| format!("kept/{number}")).collect();
    let mut grants = Vec::new();
    for lock in &locks {
        let grant = hold(store, session, lock).await;
        assert!(grant.remaining_ms > SHORT_MS, "{} ms of its own", grant.remaining_ms);
        grants.push(grant);
    }
    brief(store, request("kept-apart", LONG_MS, 0)).await;
    until_true("a longer time than their own to pass", || async {
        let beat = store.heartbeat(session).await.expect("a heartbeat");
        assert_eq!(beat.lease_count, 20);
        store.show(&name("kept-apart")).await.unwrap().holder.is_none()
    })
    .await;
    for (lock, grant) in locks.iter().zip(&grants) {
        let renewed = store.renew(&name(lock), grant.lease_id, None).await.unwrap();
        assert_eq!(renewed.token, grant.token);
        assert!(renewed.remaining_ms <= LONG_MS);
    }
    let (short, held) = hold_briefly(store, "kept-briefly").await;
    assert_eq!(until_over(store, short).await, NoSession::Ended(SessionEndReason::Expired));
    let late = store.renew(&name("kept-briefly"), held.lease_id, None).await;
    assert_eq!(lost(late), EndReason::SessionEnded);
}

/// Everything of the session is free in the step that ends it, and its waiters are woken: those of
/// others get the locks, its own are refused.
pub async fn the_end_of_a_session_frees_its_leases_together(store: &Store) {
    let session = begin(store, LONG_MS).await;
    let other = begin(store, LONG_MS).await;
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for number in 0..30 {
        let lock = format!("together/{number}");
        held.push((lock.clone(), hold(store, session, &lock).await));
        if number % 3 == 0 {
            waiting.push(enqueue(store, request(&lock, LONG_MS, LONG_MS)).await);
        }
    }
    let busy = hold(store, other, "together/busy").await;
    let own = enqueue(store, bound(session, "together/busy", LONG_MS)).await;
    assert_eq!(store.show_session(session).await.unwrap().lease_count, 31);
    let ended = store.end_session(session).await.unwrap();
    assert_eq!((ended.reason, ended.lease_count), (SessionEndReason::Ended, 31));
    for (lock, grant) in &held {
        let late = store.release(&name(lock), grant.lease_id).await.unwrap_err();
        assert_eq!(
            late,
            StoreError::Lost { reason: EndReason::SessionEnded, why: None, is_known: true }
        );
    }
    for waiter in waiting {
        granted(waiter).await;
    }
    let refused = soon("its own waiter to be refused", own).await.unwrap();
    assert_eq!(why(refused), NoSession::Ended(SessionEndReason::Ended));
    assert_eq!(store.show(&name("together/busy")).await.unwrap().queue_length, 0);
    assert_eq!(released(store, "together/busy", busy.lease_id).await, busy.token);
    let again = NoSession::Ended(SessionEndReason::Ended);
    assert_eq!(why(store.end_session(session).await), again);
}

/// Without a release and without a read the waiter gets the lock when the session's time has
/// passed.
pub async fn an_expired_session_wakes_the_waiters(store: &Store) {
    let (_, first) = hold_briefly(store, "session-wakes").await;
    let waiting = enqueue(store, request("session-wakes", LONG_MS, LONG_MS)).await;
    assert!(granted(waiting).await.token > first.token);
    let history = store.show(&name("session-wakes")).await.unwrap().history;
    assert_eq!((history[0].lease_id, history[0].reason), (first.lease_id, EndReason::SessionEnded));
}

/// A session that has ended is granted nothing more, also where its request waited already.
pub async fn an_ended_session_is_granted_nothing(store: &Store) {
    let session = begin_briefly(store).await;
    let held = grant(store, "too-late", LONG_MS).await;
    let asked = bound(session, "too-late", LONG_MS);
    let waiting = enqueue(store, asked.clone()).await;
    let ended = NoSession::Ended(SessionEndReason::Expired);
    assert_eq!(until_over(store, session).await, ended);
    released(store, "too-late", held.lease_id).await;
    assert_eq!(why(soon("the waiter to be refused", waiting).await.unwrap()), ended);
    assert_eq!(why(store.acquire(asked).await), ended);
    assert_eq!(why(store.acquire(bound(session, "too-late/b", 0)).await), ended);
    let unknown = bound(session_id(), "too-late", 0);
    assert_eq!(why(store.acquire(unknown).await), NoSession::Unknown);
    grant(store, "too-late", LONG_MS).await;
}

/// A blocked session keeps what it has until its time has passed, and gets nothing more.
pub async fn a_blocked_session_ends_at_its_time(store: &Store) {
    let session = begin(store, LONG_MS).await;
    let held = hold(store, session, "blocked").await;
    let busy = grant(store, "blocked/busy", LONG_MS).await;
    let own = enqueue(store, bound(session, "blocked/busy", LONG_MS)).await;
    let waiting = enqueue(store, request("blocked", LONG_MS, LONG_MS)).await;
    let reply = store.block_session(session, owner("host is replaced")).await.unwrap();
    assert_eq!(reply.blocked, Some(owner("host is replaced")));
    let blocked = |refusal: NoSession| match refusal {
        NoSession::Blocked { reason, .. } => assert_eq!(reason, owner("host is replaced")),
        other => panic!("not blocked: {other:?}"),
    };
    blocked(why(store.heartbeat(session).await));
    blocked(why(store.acquire(bound(session, "blocked/new", 0)).await));
    blocked(why(soon("its own waiter to be refused", own).await.unwrap()));
    // The first reason stays, and the holder is live all the while.
    let again = store.block_session(session, owner("other")).await.unwrap();
    assert_eq!(again.blocked, Some(owner("host is replaced")));
    assert_eq!(store.show(&name("blocked")).await.unwrap().holder.unwrap().lease_id, held.lease_id);
    assert!(!waiting.is_finished(), "the lock was pulled from under its holder");
    released(store, "blocked/busy", busy.lease_id).await;
    // One that ends soon and was blocked before.
    let short = until("a session that is blocked before its end", || async {
        let (session, _) = hold_briefly(store, "blocked/short").await;
        let waiting = enqueue(store, request("blocked/short", LONG_MS, LONG_MS)).await;
        let is_blocked = store.block_session(session, owner("host is replaced")).await.is_ok();
        let next = granted(waiting).await;
        released(store, "blocked/short", next.lease_id).await;
        is_blocked.then_some(session)
    })
    .await;
    assert_eq!(why(store.heartbeat(short).await), NoSession::Ended(SessionEndReason::Blocked));
}

/// A lease of a session can be released and revoked like any other, and is no bond any more then;
/// it has no time of its own.
pub async fn a_bound_lease_is_a_lease(store: &Store) {
    let session = begin(store, LONG_MS).await;
    let released_one = hold(store, session, "bound/a").await;
    let revoked_one = hold(store, session, "bound/b").await;
    let last_one = hold(store, session, "bound/c").await;
    let shown = store.show_session(session).await.unwrap();
    let locks: Vec<&str> = shown.leases.iter().map(|lease| lease.lock.as_str()).collect();
    assert_eq!(locks, ["bound/a", "bound/b", "bound/c"]);
    assert_eq!(shown.leases[0].lease_id, released_one.lease_id);
    let holder = store.show(&name("bound/a")).await.unwrap().holder.unwrap();
    assert_eq!((holder.session_id, holder.ttl_ms), (Some(session), LONG_MS));
    let ttl = Ttl::from_ms(LONG_MS).ok();
    let longer = store.renew(&name("bound/a"), released_one.lease_id, ttl).await;
    assert_eq!(why(longer), NoSession::Bound);
    released(store, "bound/a", released_one.lease_id).await;
    assert_eq!(
        store.revoke(&name("bound/b"), Revoke::default()).await.unwrap()[0].token,
        revoked_one.token
    );
    assert_eq!(store.heartbeat(session).await.unwrap().lease_count, 1);
    assert_eq!(released(store, "bound/c", last_one.lease_id).await, last_one.token);
    assert_eq!(store.end_session(session).await.unwrap().lease_count, 0);
}

/// A lease of a session can be taken over like any other, and is no bond any more then.
pub async fn a_bound_lease_is_taken_over(store: &Store) {
    let session = begin(store, LONG_MS).await;
    let taken_one = hold(store, session, "bound/taken").await;
    let heir = Acquire {
        takeover: Takeover::Of(taken_one.lease_id),
        ..request("bound/taken", LONG_MS, 0)
    };
    let heir = store.acquire(heir).await.unwrap();
    assert_eq!(store.heartbeat(session).await.unwrap().lease_count, 0);
    assert_eq!(store.end_session(session).await.unwrap().lease_count, 0);
    assert_eq!(released(store, "bound/taken", heir.lease_id).await, heir.token);
}

/// A session is used by its owner alone, and a lease id that is live is the same grant.
pub async fn a_session_belongs_to_its_owner(store: &Store) {
    let session = begin(store, LONG_MS).await;
    let thief = Acquire { owner: owner("thief"), ..bound(session, "session-owner", 0) };
    let refused = why(store.acquire(thief).await);
    assert_eq!(refused, NoSession::OtherOwner(owner("conformance")));
    let asked = bound(session, "session-owner", 0);
    let grant = store.acquire(asked.clone()).await.unwrap();
    assert_eq!(store.acquire(asked).await.unwrap().token, grant.token);
    assert_eq!(store.heartbeat(session).await.unwrap().lease_count, 1);
}

/// Locks are handed from one session to another, and each ends what is its own.
pub async fn sessions_hand_locks_to_each_other(store: &Store) {
    let first = begin(store, LONG_MS).await;
    let second = begin(store, LONG_MS).await;
    hold(store, first, "relay").await;
    let waiting = enqueue(store, bound(second, "relay", LONG_MS)).await;
    store.end_session(first).await.unwrap();
    let grant = granted(waiting).await;
    assert!(grant.remaining_ms > SHORT_MS, "{} ms of its own", grant.remaining_ms);
    let shown: SessionReply = store.show_session(second).await.unwrap();
    assert_eq!((shown.lease_count, shown.leases[0].lease_id), (1, grant.lease_id));
    store.end_session(second).await.unwrap();
    until_free(store, "relay").await;
}

/// `list_sessions` gives every live session once, in order, whatever the page size.
pub async fn session_pages_are_complete_and_in_order(store: &Store) {
    let mut ids = Vec::new();
    for _ in 0..7 {
        ids.push(begin(store, LONG_MS).await);
    }
    store.end_session(ids.pop().unwrap()).await.unwrap();
    ids.sort_unstable();
    for limit in [1, 4, 6, 100] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = store.list_sessions(after, limit).await.unwrap();
            assert!(page.sessions.len() <= limit);
            seen.extend(page.sessions.iter().map(|session| session.session_id));
            after = page.next_after;
            if after.is_none() || seen.len() > ids.len() {
                break;
            }
        }
        assert_eq!(seen, ids, "pages of {limit}");
    }
}

/// More leases than one step of any store clears away: all are gone at once, every waiter is woken.
pub async fn a_large_session_ends_as_one(store: &Store) {
    let session = begin(store, LONG_MS).await;
    for number in 0..600 {
        hold(store, session, &format!("large/{number}")).await;
    }
    assert_eq!(store.heartbeat(session).await.unwrap().lease_count, 600);
    let waiting = enqueue(store, request("large/599", LONG_MS, LONG_MS)).await;
    assert_eq!(store.end_session(session).await.unwrap().lease_count, 600);
    let mut reasons = std::collections::BTreeSet::new();
    for number in 0..599 {
        let shown = store.show(&name(&format!("large/{number}"))).await.unwrap();
        assert!(shown.holder.is_none(), "large/{number} is held still");
        // A slow store may have forgotten the last ones by now.
        reasons.extend(shown.history.first().map(|ended| ended.reason.as_str()));
    }
    assert_eq!(reasons, [EndReason::SessionEnded.as_str()].into());
    granted(waiting).await;
}
