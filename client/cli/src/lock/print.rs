//! Leases and locks as tables.

use fence_protocol::LockName;
use fence_protocol::wire::lock::{HolderInfo, LeaseReply, LockPage, LockReply, RevokedReply};

use crate::readable::readable;
use crate::table::{Facts, listing};

pub(super) fn lease(reply: &LeaseReply) -> String {
    Facts::new()
        .fact("lock", &reply.lock)
        .fact("token", reply.token)
        .fact("lease_id", reply.lease_id)
        .fact("owner", &reply.owner)
        .fact("expires in", readable(reply.ttl_ms))
        .fact("waited", readable(reply.waited_ms))
        .fact("credential", &reply.fencing_credential)
        .fact("Fencing-Token", &reply.fencing_token)
        .text()
}

pub(super) fn revoked(lock: &LockName, reply: &RevokedReply) -> String {
    let facts = Facts::new().fact("lock", lock);
    let facts = match &reply.ended {
        Some(ended) => facts
            .fact("token", ended.token)
            .fact("lease_id", ended.lease_id)
            .fact("ended", ended.reason.as_str()),
        None => facts,
    };
    let facts = reply.others.iter().fold(facts, |facts, ended| {
        facts.fact("and", format!("token {}, lease {}", ended.token, ended.lease_id))
    });
    let facts = match reply.delay_lifted {
        true => facts.fact("lock-delay", "lifted"),
        false => facts,
    };
    let guards = reply.guards.iter().map(|seal| {
        let said = match (&seal.problem, seal.mark) {
            (Some(problem), _) => format!("NOT SEALED: {problem}"),
            (None, Some(mark)) => format!("sealed at {mark}: refuses what came before"),
            (None, None) => "no answer".to_owned(),
        };
        format!("{} {said}", seal.guard)
    });
    guards.fold(facts, |facts, guard| facts.fact("guard", guard)).text()
}

pub(super) fn lock(reply: &LockReply) -> String {
    let Some(holder) = &reply.holder else {
        let text = Facts::new().fact("lock", &reply.lock).fact("state", "free").text();
        return text + &history(reply);
    };
    let facts = Facts::new()
        .fact("lock", &reply.lock)
        .fact("state", "held")
        .fact("owner", &holder.info.owner)
        .fact("token", holder.info.token)
        .fact("lease_id", holder.lease_id)
        .fact("held for", readable(holder.info.held_ms))
        .fact("expires in", readable(holder.info.expires_in_ms))
        .fact("renewals", holder.renewals)
        .fact("waiting", reply.queue_length);
    let metadata = holder.metadata.iter().fold(facts, |facts, data| facts.fact("metadata", data));
    metadata.text() + &queue(reply) + &history(reply)
}

fn queue(reply: &LockReply) -> String {
    if reply.queue.is_empty() {
        return String::new();
    }
    let rows = reply.queue.iter().map(|waiter| {
        [waiter.owner.to_string(), readable(waiter.waiting_ms), waiter.lease_id.to_string()]
    });
    format!("\n{}", listing(["WAITS", "FOR", "LEASE"], rows))
}

fn history(reply: &LockReply) -> String {
    if reply.history.is_empty() {
        return String::new();
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = reply.history.iter().map(|ended| {
        [
            or_dash(ended.token.map(|token| token.to_string())),
            or_dash(ended.owner.as_ref().map(ToString::to_string)),
            ended.reason.as_str().to_owned(),
            readable(ended.held_ms),
            format!("{} ago", readable(ended.ended_ms_ago)),
        ]
    });
    format!("\n{}", listing(["TOKEN", "OWNER", "ENDED", "HELD", "WHEN"], rows))
}

pub(super) fn page(page: &LockPage) -> String {
    let rows = page.locks.iter().map(|line| {
        let HolderInfo { owner, token, held_ms, expires_in_ms } = &line.holder;
        [
            line.lock.to_string(),
            token.to_string(),
            owner.to_string(),
            readable(*held_ms),
            readable(*expires_in_ms),
            line.queue_length.to_string(),
        ]
    });
    let mut text = listing(["LOCK", "TOKEN", "OWNER", "HELD", "EXPIRES IN", "WAITING"], rows);
    if let Some(after) = &page.next_after {
        text.push_str(&format!("more: --after {after}\n"));
    }
    text
}
