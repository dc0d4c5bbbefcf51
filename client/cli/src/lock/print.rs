//! Leases and locks as tables.

use fence_protocol::LockName;
use fence_protocol::wire::lock::{
    HolderReply, LeaseMode, LeaseReply, LockLine, LockPage, LockReply, RevokedReply,
};

use fence_terminal::readable::readable;
use fence_terminal::table::{Facts, listing, or_dash, paged_listing};

pub(super) fn lease(reply: &LeaseReply) -> String {
    Facts::new()
        .fact("lock", &reply.lock)
        .fact_if_some("mode", unusual(reply.mode))
        .fact("token", reply.token)
        .fact("lease_id", reply.lease_id)
        .fact("owner", &reply.owner)
        .fact("expires in", readable(reply.ttl_ms))
        .fact("waited", readable(reply.waited_ms))
        .fact("credential", &reply.fencing_credential)
        .fact("Fencing-Token", &reply.fencing_token)
        .text()
}

/// The word for a mode that is not the usual one.
fn unusual(mode: LeaseMode) -> Option<&'static str> {
    (!mode.is_exclusive()).then_some(mode.as_str())
}

pub(super) fn revoked(lock: &LockName, reply: &RevokedReply) -> String {
    let ended = reply.ended.as_ref();
    let facts = Facts::new()
        .fact("lock", lock)
        .fact_if_some("token", ended.map(|ended| ended.token))
        .fact_if_some("lease_id", ended.map(|ended| ended.lease_id))
        .fact_if_some("ended", ended.map(|ended| ended.reason.as_str()));
    let facts = reply.others.iter().fold(facts, |facts, ended| {
        facts.fact("and", format!("token {}, lease {}", ended.token, ended.lease_id))
    });
    let facts = facts.fact_if_some("lock-delay", reply.delay_lifted.then_some("lifted"));
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
    let permits = reply.size.map(|size| format!("{} of {size} held", reply.lease_count));
    let delay = reply.delayed_ms.map(|delayed_ms| format!("{} to go", readable(delayed_ms)));
    let facts = Facts::new()
        .fact("lock", &reply.lock)
        .fact("state", reply.state.as_str())
        .fact_if_some("permits", permits)
        .fact_if_some("lock-delay", delay);
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

/// The only holder.
fn alone(facts: Facts, holder: &HolderReply) -> Facts {
    facts
        .fact_if_some("mode", unusual(holder.mode))
        .fact("owner", &holder.info.owner)
        .fact("token", holder.info.token)
        .fact("lease_id", holder.lease_id)
        .fact("held for", readable(holder.info.held_ms))
        .fact("expires in", readable(holder.info.expires_in_ms))
        .fact("renewals", holder.renewals)
        .fact_if_some("metadata", holder.metadata.as_ref())
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
    let rows = reply.history.iter().map(|ended| {
        [
            or_dash(ended.token),
            or_dash(ended.owner.as_ref()),
            ended.reason.as_str().to_owned(),
            readable(ended.held_ms),
            format!("{} ago", readable(ended.ended_ms_ago)),
        ]
    });
    format!("\n{}", listing(["TOKEN", "OWNER", "ENDED", "HELD", "WHEN"], rows))
}

pub(super) fn page(page: &LockPage) -> String {
    let rows = page.locks.iter().map(|line| {
        let holder = line.holder.as_ref();
        [
            line.lock.to_string(),
            use_of(line),
            or_dash(holder.map(|holder| holder.token)),
            or_dash(holder.map(|holder| &holder.owner)),
            or_dash(holder.map(|holder| readable(holder.held_ms))),
            or_dash(holder.map(|holder| readable(holder.expires_in_ms))),
            line.queue_length.to_string(),
            line.refusals.to_string(),
        ]
    });
    let heading = ["LOCK", "MODE", "TOKEN", "OWNER", "HELD", "EXPIRES IN", "WAITING", "REFUSED"];
    paged_listing(heading, rows, page.next_after.as_ref())
}

/// Mode and number of the leases.
fn use_of(line: &LockLine) -> String {
    match (line.lease_count, line.size, line.mode) {
        (count, Some(size), _) => format!("{count} of {size} permits"),
        (0, None, _) if line.holder.is_none() => "free".to_owned(),
        (0, None, _) => "lock-delay".to_owned(),
        (1, None, LeaseMode::Shared) => "1 reader".to_owned(),
        (count, None, LeaseMode::Shared) => format!("{count} readers"),
        (_, None, mode) => mode.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_mode_and_count() {
        let line = |json: &str| use_of(&serde_json::from_str(json).unwrap());
        let held =
            r#""lock":"a","owner":"o","token":7,"held_ms":1,"expires_in_ms":2,"queue_length":0"#;
        for (more, expected) in [
            ("", "exclusive"),
            (r#","mode":"shared","lease_count":1"#, "1 reader"),
            (r#","mode":"shared","lease_count":2"#, "2 readers"),
            (r#","mode":"permit","lease_count":3,"size":5"#, "3 of 5 permits"),
            (r#","lease_count":0"#, "lock-delay"),
        ] {
            assert_eq!(line(&format!("{{{held}{more}}}")), expected);
        }
        assert_eq!(line(r#"{"lock":"a","queue_length":0,"lease_count":0}"#), "free");
    }
}
