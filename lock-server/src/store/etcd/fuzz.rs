//! Fuzz target: what etcd's gateway replies, and the values of ours in it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fence_protocol::{LeaseId, LockName, Namespace, Owner};

use super::keys::Keys;
use super::sessions::fuzz as sessions;
use super::values::{self, Ending, Granted};
use super::view::{Standing, View};
use super::wire::{KeyValue, LeaseReply, Line, Members, RangeReply, Status, TxnReply, WatchReply};

/// A reply as the gateway sends it, and the same text as the value of each key of a lock.
pub(crate) fn replies(text: &str) {
    super::gateway::fuzz::verdicts(text.as_bytes());
    let _ = serde_json::from_str::<Line<WatchReply>>(text);
    let _ = serde_json::from_str::<LeaseReply>(text);
    let _ = serde_json::from_str::<Status>(text);
    let _ = serde_json::from_str::<Members>(text);
    let _ = serde_json::from_str::<RangeReply>(text);
    if let Ok(reply) = serde_json::from_str::<TxnReply>(text) {
        let _ = sessions::session(reply.clone());
        view(reply);
    }
    value(text);
    view(reply_with(text));
    let _ = sessions::session(reply_with(text));
    key(text);
}

/// A transaction's reply whose every range has this value.
fn reply_with(value: &str) -> TxnReply {
    let encoded = STANDARD.encode(value);
    let range = format!(
        r#"{{"response_range":{{"kvs":[{{"key":"YQ==","value":"{encoded}","create_revision":"5",
        "mod_revision":"9","version":"2"}}],"count":"1"}}}}"#
    );
    let ranges = [range.as_str(); 5].join(",");
    match serde_json::from_str(&format!(r#"{{"succeeded":true,"responses":[{ranges}]}}"#)) {
        Ok(reply) => reply,
        Err(error) => panic!("a reply that was made here: {error}"),
    }
}

fn view(reply: TxnReply) {
    let Ok(view) = View::of(reply) else { return };
    let id = view.record.record.ended.first().map(|ended| ended.lease_id);
    let held = view.held.as_ref().map(|held| held.held.lease_id);
    for lease_id in [id, held, Some(LeaseId::MAX)].into_iter().flatten() {
        let Ok(owner) = Owner::new("o") else { return };
        let standing = view.standing(lease_id, &owner);
        assert!(standing != Standing::Open || view.held.is_none());
        let _ = view.gone(lease_id);
    }
    if let Some(held) = &view.held {
        let _ = held.token();
        assert_eq!(
            view.record.record.holding(held).holding(held),
            view.record.record.holding(held)
        );
    }
}

/// A value of ours: written again it is the same, and a record stays a bounded one.
fn value(text: &str) {
    let kv = KeyValue { value: text.to_owned(), mod_revision: u64::MAX, ..KeyValue::default() };
    if let Ok(meta) = values::read::<values::Meta>(&kv) {
        let kv = KeyValue { value: values::written(&meta), ..KeyValue::default() };
        assert!(values::read::<values::Meta>(&kv).is_ok_and(|again| again == meta));
    }
    let _ = values::waiter_at(&kv);
    let _ = values::held_at(&kv).map(|held| held.token());
    let Ok(at) = values::record_at(&kv) else { return };
    let Ok(owner) = Owner::new("o") else { return };
    let granted = Granted {
        lease_id: LeaseId::MAX,
        owner,
        offset: u64::MAX,
        at_ms: 5,
        session: None,
        token: None,
    };
    let next = at.record.grant(granted, "stamp");
    assert!(next.ended.len() <= at.record.ended.len().max(8));
    let ended = next.end(
        LeaseId::MAX,
        &Ending {
            reason: fence_protocol::wire::lock::EndReason::Expired,
            why: None,
            at_ms: 1,
            stamp: String::new(),
        },
    );
    assert!(ended.granted.is_none() && (1..=8).contains(&ended.ended.len()));
    assert!(ended.ended(LeaseId::MAX).is_some_and(|ended| ended.shown(0).ended_ms_ago == 0));
    let kv = KeyValue { value: values::written(&ended), ..KeyValue::default() };
    assert!(values::record_at(&kv).is_ok_and(|again| again.record == ended));
}

fn key(text: &str) {
    let keys = Keys::new(&Namespace::default());
    let _ = (keys.subject(text), keys.living(text));
    if let Ok(lock) = LockName::new(text) {
        let _ = keys.subject(&keys.waiter(&lock, LeaseId::MAX));
    }
}
