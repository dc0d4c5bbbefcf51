//! Leases and locks as tables.

use fence_protocol::LockName;
use fence_protocol::wire::lock::{
    HolderInfo, HolderReply, LeaseMode, LeaseReply, LockPage, LockReply, LockState, RevokedReply,
};

use fence_terminal::readable::readable;
use fence_terminal::table::{Facts, listing};

pub(super) fn lease(reply: &LeaseReply) -> String {
    let facts = Facts::new().fact("lock", &reply.lock);
    let facts = match reply.mode {
        LeaseMode::Exclusive => facts,
        mode => facts.fact("mode", mode.as_str()),
    };
    facts
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
    let facts = Facts::new().fact("lock", &reply.lock).fact("state", state(reply));
    let facts = match reply.size {
        Some(size) => facts.fact("permits", format!("{} of {size} held", reply.lease_count)),
        None => facts,
    };
    let facts = match reply.delayed_ms {
        Some(delayed_ms) => facts.fact("lock-delay", format!("{} to go", readable(delayed_ms))),
        None => facts,
    };
    let held = match (&reply.holder, &reply.also_held[..]) {
        (None, _) => facts.text(),
        (Some(holder), []) => alone(facts, holder).fact("waiting", reply.queue_length).text(),
        (Some(first), others) => {
            let facts = facts.fact("holders", reply.lease_count);
            facts.fact("waiting", reply.queue_length).text() + &together(reply, first, others)
        }
    };
    held + &queue(reply) + &history(reply)
}

fn state(reply: &LockReply) -> &'static str {
    match reply.state {
        LockState::Free => "free",
        LockState::Held => "held",
        LockState::Delayed => "delayed",
    }
}

/// The only holder.
fn alone(facts: Facts, holder: &HolderReply) -> Facts {
    let facts = match holder.mode {
        LeaseMode::Exclusive => facts,
        mode => facts.fact("mode", mode.as_str()),
    };
    let facts = facts
        .fact("owner", &holder.info.owner)
        .fact("token", holder.info.token)
        .fact("lease_id", holder.lease_id)
        .fact("held for", readable(holder.info.held_ms))
        .fact("expires in", readable(holder.info.expires_in_ms))
        .fact("renewals", holder.renewals);
    holder.metadata.iter().fold(facts, |facts, data| facts.fact("metadata", data))
}

/// Several holders, the oldest first.
fn together(reply: &LockReply, first: &HolderReply, others: &[HolderReply]) -> String {
    let rows = std::iter::once(first).chain(others).map(|holder| {
        [
            holder.info.owner.to_string(),
            holder.mode.as_str().to_owned(),
            holder.info.token.to_string(),
            readable(holder.info.held_ms),
            readable(holder.info.expires_in_ms),
            holder.lease_id.to_string(),
        ]
    });
    let heading = ["HOLDS", "MODE", "TOKEN", "FOR", "EXPIRES IN", "LEASE"];
    let mut text = format!("\n{}", listing(heading, rows));
    let more = reply.lease_count.saturating_sub(others.len() + 1);
    if more > 0 {
        text.push_str(&format!("and {more} more\n"));
    }
    text
}

fn queue(reply: &LockReply) -> String {
    if reply.queue.is_empty() {
        return String::new();
    }
    let rows = reply.queue.iter().map(|waiter| {
        [
            waiter.owner.to_string(),
            waiter.mode.as_str().to_owned(),
            readable(waiter.waiting_ms),
            waiter.lease_id.to_string(),
        ]
    });
    format!("\n{}", listing(["WAITS", "MODE", "FOR", "LEASE"], rows))
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
