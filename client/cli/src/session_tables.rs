//! Sessions as tables.

use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};

use fence_terminal::readable::readable;
use fence_terminal::table::{Facts, listing, or_dash, paged_listing};

pub(super) fn session(reply: &SessionReply) -> String {
    let facts = Facts::new()
        .fact("session_id", reply.session_id)
        .fact("owner", &reply.owner)
        .fact("expires in", readable(reply.expires_in_ms))
        .fact("time to live", readable(reply.ttl_ms))
        .fact("age", readable(reply.age_ms))
        .fact("heartbeats", reply.heartbeats)
        .fact("leases", reply.lease_count)
        .fact_if_some("blocked", reply.blocked.as_ref())
        .fact_if_some("principal", reply.principal.as_ref())
        .fact_if_some("metadata", reply.metadata.as_ref());
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
            or_dash(session.blocked.as_ref()),
        ]
    });
    let heading = ["SESSION", "OWNER", "LEASES", "AGE", "EXPIRES IN", "BLOCKED"];
    paged_listing(heading, rows, page.next_after.as_ref())
}
