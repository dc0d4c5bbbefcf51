//! Reading what the scripts of a node answer.

use ::redis::Value;
use fence_protocol::wire::lock::{EndReason, EndedLease, HolderInfo};
use fence_protocol::{Invalid, LockName, Owner};
use redis_link::{LinkError, text_fields};

use super::rules::view::{Accepted, MemberReply, Meta, NodeProbe, NodeState, View};
use super::rules::{Bucket, NodeReply, Refusal, Seen, SeenLease};

/// A node's reply that cannot be read: it is another version, or no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node's answer \"{answer}\" cannot be read: {why}")]
pub struct Unreadable {
    answer: String,
    why: String,
}

/// Names of locks and the cursor of the next page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// 0 at the end.
    pub cursor: u64,
    /// Held or not; a name may come twice.
    pub names: Vec<LockName>,
}

/// Takes the reply to a batch of so many operations apart: for each its reply, or the error of the
/// command that failed in it.
///
/// # Errors
/// [`Unreadable`].
pub fn read_batch(value: Value, count: usize) -> Result<Vec<Result<Value, LinkError>>, Unreadable> {
    let Value::Array(replies) = value else {
        return Err(Unreadable { answer: String::new(), why: "it is no list".to_owned() });
    };
    if replies.len() != count {
        let why = format!("it has {} replies to {count} operations", replies.len());
        return Err(Unreadable { answer: String::new(), why });
    }
    Ok(replies.into_iter().map(failure).collect())
}

/// The reply, or the error where it is that a command failed.
fn failure(reply: Value) -> Result<Value, LinkError> {
    let word = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let text = match &reply {
        Value::Array(fields) if fields.len() == 2 && word(&fields[0]) == "FAILED" => {
            word(&fields[1])
        }
        _ => return Ok(reply),
    };
    let is_code = |code: &str| code.chars().all(|c| c.is_ascii_uppercase());
    let (code, message) = match text.split_once(' ').filter(|(code, _)| is_code(code)) {
        Some((code, message)) => (code.to_owned(), message.to_owned()),
        None => ("ERR".to_owned(), text),
    };
    Err(LinkError::Server { code, message })
}

/// Reads the reply to an operation, but not to [`Operation::Read`](super::rules::Operation::Read).
///
/// # Errors
/// [`Unreadable`].
pub fn read_reply(value: Value) -> Result<NodeReply, Unreadable> {
    read(value, reply)
}

/// Reads the answer to init, doubt, adopt, bump, rejoin, ready and advance.
///
/// # Errors
/// [`Unreadable`].
pub fn read_member(value: Value) -> Result<MemberReply, Unreadable> {
    read(value, member)
}

/// Reads the reply to a probe.
///
/// # Errors
/// [`Unreadable`].
pub fn read_probe(value: Value) -> Result<NodeProbe, Unreadable> {
    read(value, probe)
}

/// Reads the reply to [`Operation::Read`](super::rules::Operation::Read): what the node knows of
/// the lock, or why it does not take part.
///
/// # Errors
/// [`Unreadable`].
pub fn read_seen(value: Value) -> Result<Result<Seen, Refusal>, Unreadable> {
    read(value, |fields| match fields {
        ["SEEN", rest @ ..] => seen(rest).map(Ok),
        other => refusal(other).map(Err),
    })
}

/// Reads the answer to names: some of them, or why the node does not take part.
///
/// # Errors
/// [`Unreadable`].
pub fn read_names(value: Value) -> Result<Result<Names, Refusal>, Unreadable> {
    read(value, |fields| match fields {
        ["NAMES", cursor, names @ ..] => {
            let names = names.iter().filter_map(|name| LockName::new(name).ok()).collect();
            Ok(Ok(Names { cursor: number(cursor)?, names }))
        }
        other => refusal(other).map(Err),
    })
}

fn read<T>(
    value: Value,
    parse: impl FnOnce(&[&str]) -> Result<T, Invalid>,
) -> Result<T, Unreadable> {
    let fields = text_fields(value)
        .ok_or_else(|| Unreadable { answer: String::new(), why: "it is no list".to_owned() })?;
    let words: Vec<&str> = fields.iter().map(String::as_str).collect();
    parse(&words).map_err(|error| Unreadable {
        answer: words.join(" ").chars().take(200).collect(),
        why: error.to_string(),
    })
}

fn reply(fields: &[&str]) -> Result<NodeReply, Invalid> {
    Ok(match fields {
        ["ACCEPTED", p, remaining] => {
            NodeReply::Accepted { p: number(p)?, remaining_ms: number(remaining)? }
        }
        ["YOURS", token, remaining, p] => NodeReply::Yours {
            token: token.parse()?,
            remaining_ms: number(remaining)?,
            p: number(p)?,
        },
        ["CONFLICT", owner] => NodeReply::Conflict { owner: owner.parse()? },
        ["ENDED", reason, why] => NodeReply::Ended { reason: end_reason(reason)?, why: said(why)? },
        ["HELD", lease, holder @ .., p] => {
            NodeReply::Held { lease: lease.parse()?, holder: holder_info(holder)?, p: number(p)? }
        }
        ["LOW", p] => NodeReply::Low { p: number(p)? },
        ["RENEWED", token, owner, ttl, remaining, metadata] => NodeReply::Renewed {
            token: token.parse()?,
            owner: owner.parse()?,
            ttl_ms: number(ttl)?,
            remaining_ms: number(remaining)?,
            metadata: (*metadata).to_owned(),
        },
        ["NOTHING", p] => NodeReply::Nothing { p: number(p)? },
        ["ENDEDNOW", token, owner] => {
            NodeReply::EndedNow { token: token.parse()?, owner: owner.parse()? }
        }
        ["KEPT"] => NodeReply::Kept,
        ["RAISED", p] => NodeReply::Raised { p: number(p)? },
        other => NodeReply::Refused(refusal(other)?),
    })
}

fn refusal(fields: &[&str]) -> Result<Refusal, Invalid> {
    Ok(match fields {
        ["NOMEMBER"] => Refusal::NoMember,
        ["OTHER", cluster, n] => Refusal::Other { cluster: (*cluster).to_owned(), n: count(n)? },
        ["NOTREADY"] => Refusal::NotReady,
        ["STRANGER", node] => Refusal::Stranger { node: node.parse()? },
        ["VIEW", view, members] => Refusal::View { view: number(view)?, members: members.parse()? },
        _ => return Err(Invalid::new("answer", fields.join(" "), "is not known")),
    })
}

fn member(fields: &[&str]) -> Result<MemberReply, Invalid> {
    Ok(match fields {
        ["DONE"] => MemberReply::Done,
        ["KNOWN"] => MemberReply::Known,
        ["BUMPED", floor, wait, p @ ..] => MemberReply::Bumped(Accepted {
            floor: number(floor)?,
            p: buckets(p)?,
            wait_ms: number(wait)?,
        }),
        ["DOUBTED", node] => MemberReply::Doubted(node.parse()?),
        ["WAIT", ms] => MemberReply::Wait(number(ms)?),
        ["STRANGER", ""] => MemberReply::Stranger(None),
        ["STRANGER", node] => MemberReply::Stranger(Some(node.parse()?)),
        ["RUN", run_id] => MemberReply::OtherRun((*run_id).to_owned()),
        other => MemberReply::Refused(refusal(other)?),
    })
}

fn probe(fields: &[&str]) -> Result<NodeProbe, Invalid> {
    match fields {
        ["PROBE", now, "0"] => {
            Ok(NodeProbe { now_ms: number(now)?, meta: None, p: std::collections::BTreeMap::new() })
        }
        ["PROBE", now, "1", rest @ ..] => {
            let (about, p) = rest.split_at_checked(META_FIELDS).ok_or_else(|| short(fields))?;
            Ok(NodeProbe { now_ms: number(now)?, meta: Some(meta(about)?), p: buckets(p)? })
        }
        _ => Err(Invalid::new("answer", fields.join(" "), "is not known")),
    }
}

const META_FIELDS: usize = 11;

fn meta(fields: &[&str]) -> Result<Meta, Invalid> {
    let [format, cluster, n, view, members, node, state, run_id, floor, ready_at, covered] = fields
    else {
        return Err(short(fields));
    };
    Ok(Meta {
        format: format.parse().map_err(|_| Invalid::new("format", format, "is no number"))?,
        view: View {
            cluster: (*cluster).to_owned(),
            n: count(n)?,
            view: number(view)?,
            members: members.parse()?,
        },
        node: node.parse()?,
        state: NodeState::from_word(state)?,
        run_id: (*run_id).to_owned(),
        floor: number(floor)?,
        ready_at_ms: number(ready_at)?,
        covered_ms: number(covered)?,
    })
}

fn buckets(fields: &[&str]) -> Result<std::collections::BTreeMap<Bucket, u64>, Invalid> {
    if !fields.len().is_multiple_of(2) {
        return Err(short(fields));
    }
    fields
        .chunks_exact(2)
        .map(|pair| {
            let number_of = pair[0].parse::<u8>();
            let bucket = number_of.map_err(|_| Invalid::new("bucket", pair[0], "is no bucket"))?;
            Ok((Bucket::new(bucket), number(pair[1])?))
        })
        .collect()
}

fn seen(fields: &[&str]) -> Result<Seen, Invalid> {
    let [p, now, ended, live @ ..] = fields else { return Err(short(fields)) };
    let now_ms = number(now)?;
    let live = match live {
        [] => None,
        [lease, token, owner, held, expires_in, ttl, renewals, metadata] => Some(SeenLease {
            lease: lease.parse()?,
            info: holder_info(&[owner, token, held, expires_in])?,
            ttl_ms: number(ttl)?,
            renewals: number(renewals)?,
            metadata: (*metadata).to_owned(),
        }),
        _ => return Err(short(fields)),
    };
    let ended = ended.lines().map(|line| ended_lease(line, now_ms)).collect::<Result<_, _>>()?;
    Ok(Seen { p: number(p)?, live, ended })
}

fn ended_lease(line: &str, now_ms: u64) -> Result<EndedLease, Invalid> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [lease, token, reason, held, at, owner, why] = fields.as_slice() else {
        return Err(Invalid::new("ended lease", line, "does not have seven fields"));
    };
    Ok(EndedLease {
        lease_id: lease.parse()?,
        token: if token.is_empty() { None } else { Some(token.parse()?) },
        owner: said(owner)?,
        reason: end_reason(reason)?,
        why: said(why)?,
        held_ms: number(held)?,
        ended_ms_ago: now_ms.saturating_sub(number(at)?),
    })
}

fn holder_info(fields: &[&str]) -> Result<HolderInfo, Invalid> {
    let [owner, token, held, expires_in] = fields else { return Err(short(fields)) };
    Ok(HolderInfo {
        owner: owner.parse()?,
        token: token.parse()?,
        held_ms: number(held)?,
        expires_in_ms: number(expires_in)?,
    })
}

fn end_reason(word: &str) -> Result<EndReason, Invalid> {
    EndReason::from_word(word).ok_or_else(|| Invalid::new("reason", word, "is not known"))
}

fn said(text: &str) -> Result<Option<Owner>, Invalid> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

fn number(text: &str) -> Result<u64, Invalid> {
    text.parse().map_err(|_| Invalid::new("number", text, "is not a whole number"))
}

fn count(text: &str) -> Result<usize, Invalid> {
    text.parse().map_err(|_| Invalid::new("count", text, "is not a whole number"))
}

fn short(fields: &[&str]) -> Invalid {
    Invalid::new("answer", fields.join(" "), "does not have the fields that it should")
}
