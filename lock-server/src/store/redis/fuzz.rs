//! Fuzz target: what our scripts in Redis reply.

use ::redis::Value;
use fence_protocol::{LeaseId, LockName};

use super::reply;
use crate::store::Limits;

/// A reply of a script, of a scan and of each of them to every question.
pub(crate) fn replies(value: &Value) {
    let _ = reply::scan(value.clone());
    let Ok((answer, _)) = reply::read(value.clone()) else { return };
    let Ok(lock) = LockName::new("orders/42") else { return };
    let answer = answer.of(LeaseId::MAX, &Limits::default());
    assert!(answer.tokens().len() <= answer.clone().into_grants().map_or(1, |grants| grants.len()));
    let _ = (answer.lives_ms(), answer.paused_ms());
    let _ = answer.clone().into_grant();
    let _ = answer.clone().into_ended(&lock);
    let _ = answer.clone().into_revoked(&lock);
    let _ = answer.clone().into_line(lock.clone());
    if let Ok(shown) = answer.into_lock(&lock) {
        assert!(serde_json::to_string(&shown).is_ok());
    }
}
