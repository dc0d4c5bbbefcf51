//! Sessions as tables.

use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};

use fence_terminal::readable::readable;
use fence_terminal::table::{Facts, listing};

pub(super) fn session(reply: &SessionReply) -> String {
    let mut facts = Facts::new()
        .fact("session_id", reply.session_id)
        .fact("owner", &reply.owner)
        .fact("expires in", readable(reply.expires_in_ms))
        .fact("time to live", readable(reply.ttl_ms))
        .fact("age", readable(reply.age_ms))
        .fact("heartbeats", reply.heartbeats)
        .fact("leases", reply.lease_count);
    if let Some(reason) = &reply.blocked {
        facts = facts.fact("blocked", reason);
    }
    if let Some(principal) = &reply.principal {
        facts = facts.fact("principal", principal);
    }
    if let Some(metadata) = &reply.metadata {
        facts = facts.fact("metadata", metadata);
    }
    if reply.leases.is_empty() {
        return facts.text();
    }
    let rows =
        reply.leases.iter().map(|lease| [lease.lock.to_string(), lease.lease_id.to_string()]);
    format!("{}\n{}", facts.text(), listing(["LOCK", "LEASE"], rows))
}

pub(super) fn ended(reply: &SessionEndedReply) -> String {
    Facts::new()
        .fact("session_id", reply.session_id)
        .fact("ended", reply.reason.as_str())
        .fact("leases", reply.lease_count)
        .text()
}

pub(super) fn page(page: &SessionPage) -> String {
    let rows = page.sessions.iter().map(|session| {
        [
            session.session_id.to_string(),
            session.owner.to_string(),
            session.lease_count.to_string(),
            readable(session.age_ms),
            readable(session.expires_in_ms),
            session.blocked.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        ]
    });
    let heading = ["SESSION", "OWNER", "LEASES", "AGE", "EXPIRES IN", "BLOCKED"];
    let mut text = listing(heading, rows);
    if let Some(after) = &page.next_after {
        text.push_str(&format!("more: --after {after}\n"));
    }
    text
}
