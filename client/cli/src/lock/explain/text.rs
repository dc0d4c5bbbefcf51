//! The sentences about a lock.

use fence_protocol::wire::event::{Event, ExplainedLock};
use fence_protocol::wire::lock::{HolderReply, LeaseMode, LockReply};
use fence_protocol::{Code, Owner, Token};

use super::ending::Ending;
use fence_terminal::color::{self, painted};
use fence_terminal::readable::readable;

/// Waiters that are named, at most.
const WAITERS: usize = 10;

/// `worker-1 (token 7)`.
pub(super) fn grant(owner: &Owner, token: Token) -> String {
    format!("{owner} (token {token})")
}

pub(super) fn state(now: &LockReply) -> Vec<String> {
    let lock = &now.lock;
    let Some(holder) = &now.holder else {
        return vec![match now.delayed_ms.map(readable) {
            Some(delayed) => {
                format!("{lock} has no holder, and its lock-delay ends in {delayed}.")
            }
            None => format!("{lock} is free."),
        }];
    };
    if now.lease_count > 1 {
        return together(now, holder);
    }
    let HolderReply { info, renewals, session_id, metadata, .. } = holder;
    let owner = grant(&info.owner, info.token);
    let held = readable(info.held_ms);
    let mut lines = vec![format!("{lock} is held by {owner}, for {held} now.")];
    let expires = readable(info.expires_in_ms);
    lines.push(match (session_id, renewals) {
        (Some(session), _) => format!(
            "It lives as long as session {session}, which ends in {expires} without a heartbeat."
        ),
        (None, 0) => format!("It has not been renewed yet, and expires in {expires} unless it is."),
        (None, 1) => format!("It was renewed once, and expires in {expires} unless it is again."),
        (None, n) => {
            format!("It was renewed {n} times, and expires in {expires} unless it is again.")
        }
    });
    lines.extend(metadata.as_ref().map(|metadata| format!("Its holder says: {metadata}")));
    lines
}

/// Several who hold it, the oldest first.
fn together(now: &LockReply, first: &HolderReply) -> Vec<String> {
    let kind = match now.size {
        Some(size) => format!("{} of {size} permits", now.lease_count),
        None => format!("{} {} leases", now.lease_count, first.mode.as_str()),
    };
    let mut lines = vec![format!("{} is held by {kind}:", now.lock)];
    let listed = std::iter::once(first).chain(&now.also_held).take(WAITERS);
    lines.extend(listed.map(|HolderReply { info, .. }| {
        let owner = grant(&info.owner, info.token);
        let held = readable(info.held_ms);
        let expires = readable(info.expires_in_ms);
        format!("  {owner}, for {held} now; expires in {expires} unless it is renewed.")
    }));
    let more = now.lease_count.saturating_sub(lines.len() - 1);
    if more > 0 {
        lines.push(format!("  And {more} more: fence lock show {} lists them.", now.lock));
    }
    lines
}

pub(super) fn queue(now: &LockReply) -> String {
    let named: Vec<String> = now
        .queue
        .iter()
        .take(WAITERS)
        .map(|waiter| format!("{} for {}", waiter.owner, readable(waiter.waiting_ms)))
        .collect();
    let more = match now.queue_length.saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    match now.queue_length {
        0 => "It has no waiters.".to_owned(),
        1 => format!("One waits: {}{more}.", named.join(", ")),
        count => format!("{count} wait: {}{more}.", named.join(", ")),
    }
}

pub(super) fn endings(explained: &ExplainedLock) -> Vec<String> {
    let line = |ending: Ending<'_>| {
        let who = match (ending.owner, ending.token) {
            (Some(owner), Some(token)) => grant(owner, token),
            (_, Some(token)) => format!("token {token}"),
            _ => "a lease that was never granted".to_owned(),
        };
        format!("  {who}: {}", ending.sentence())
    };
    let mut lines: Vec<String> = Ending::all(explained).map(line).collect();
    if !lines.is_empty() {
        let heading = painted(color::STRONG, "Last leases, newest first:");
        lines.splice(0..0, [String::new(), heading]);
    }
    lines
}

pub(super) fn reported(explained: &ExplainedLock) -> Vec<String> {
    let mut lines = Vec::new();
    if !explained.recent.refusals.is_empty() {
        lines.extend([String::new(), painted(color::BAD, "Refused by guards, newest first:")]);
        lines.extend(refusals(&explained.recent.refusals));
    }
    if let Some(gap) = &explained.recent.gap {
        let missed =
            gap.missed.map(|count| format!("{count} events at least, ")).unwrap_or_default();
        let (text, ago) =
            (gap.text.as_deref().unwrap_or("events are missing"), readable(gap.ms_ago));
        lines.push(String::new());
        let gap = format!("This report is incomplete: {text} ({missed}{ago} ago).");
        lines.push(painted(color::WARNING, gap));
    }
    lines
}

/// Renders a line for each refusal; equal ones in succession share a line.
pub(super) fn refusals(refused: &[Event]) -> impl Iterator<Item = String> {
    let same = |a: &Event, b: &Event| {
        (a.lease_id, a.token, a.mark, &a.text) == (b.lease_id, b.token, b.mark, &b.text)
    };
    refused.chunk_by(same).map(|group| {
        let event = &group[0];
        let number = |token: Option<Token>| token.map_or("?".to_owned(), |token| token.to_string());
        let owner = event.owner.as_ref().map(|owner| format!(" of {owner}")).unwrap_or_default();
        let times = match group.len() {
            1 => String::new(),
            count => format!(", {count} times"),
        };
        let mark = match is_of_script(event) {
            true => String::new(),
            false => format!(" met the mark {}", number(event.mark)),
        };
        format!(
            "  {} ago{times}: {} (token {}{owner}{mark})",
            readable(event.happened_ms_ago()),
            event.text.as_deref().unwrap_or("an operation"),
            number(event.token),
        )
    })
}

/// Returns `true` if a script was refused a key or command that its token does not cover; the token
/// itself was good.
pub(super) fn is_of_script(refused: &Event) -> bool {
    has_code(refused, Code::Forbidden)
}

fn has_code(refused: &Event, code: Code) -> bool {
    refused.text.as_deref().is_some_and(|text| text.ends_with(code.as_str()))
}

/// Returns `true` if the next request for a permit is granted at once.
fn has_permits(now: &LockReply) -> bool {
    let has_room = now.size.is_some_and(|size| now.lease_count < size as usize);
    has_room && now.delayed_ms.is_none()
}

/// Renders the conclusion for a client that wants the lock.
pub(super) fn meaning(explained: &ExplainedLock) -> Vec<String> {
    let now = &explained.now;
    let mut lines = vec![String::new()];
    lines.push(match (&now.holder, now.queue_length) {
        (None, _) if now.delayed_ms.is_some() => {
            "The next acquire is granted after its lock-delay.".to_owned()
        }
        (None, waiting @ 1..) => format!("The next acquire waits behind {waiting}."),
        (None, 0) => {
            "The next acquire is granted at once, with a higher token than any before.".to_owned()
        }
        (Some(_), 0) if has_permits(now) => {
            "The next request for a permit is granted at once.".to_owned()
        }
        (Some(first), 0) if first.mode == LeaseMode::Shared => {
            "The next shared acquire is granted at once; a writer waits for all holders.".to_owned()
        }
        (Some(_), 0) => "The next acquire is granted when it is released or expires.".to_owned(),
        (Some(_), n) => format!("The next acquire waits behind {n}."),
    });
    let refusals = &explained.recent.refusals;
    if refusals.iter().any(|event| has_code(event, Code::TokenCollision)) {
        lines.push(
            "Two leases presented one token. That must not happen: check the lineage of the lock \
             server's store before anything else."
                .to_owned(),
        );
    } else if refusals.iter().any(|event| !is_of_script(event)) {
        lines.push(
            "A former holder continued after the lock had passed on. Refused operations were not \
             applied; --lease shows the outcome of one lease."
                .to_owned(),
        );
    }
    lines
}
