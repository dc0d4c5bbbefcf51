//! The invariants of DESIGN, checked over a recorded history. Pure: no I/O, no clock.

pub mod failover;

use std::collections::{BTreeMap, HashMap};

use fence_protocol::LeaseId;

use crate::history::{Action, Granted, Operation, OperationResult};

/// L1: tokens are unique, and a grant that was answered before another was asked for has the
/// smaller token. Over all locks together, as embedded and redis promise. Of several answers to one
/// id the first counts: that is the grant, and the others repeat it.
///
/// # Errors
/// The two grants that break it.
pub fn tokens_rise(grants: &[Granted]) -> Result<(), String> {
    let mut seen: HashMap<u64, &Granted> = HashMap::new();
    for grant in grants {
        match seen.insert(grant.token, grant) {
            Some(other) if other.lease != grant.lease => {
                return Err(format!("one token, two leases: {other:?} and {grant:?}"));
            }
            _ => {}
        }
    }
    let mut by_end: Vec<&Granted> = first_answers(grants);
    by_end.sort_by_key(|grant| grant.span.returned_ns);
    let mut by_begin = by_end.clone();
    by_begin.sort_by_key(|grant| grant.span.invoked_ns);
    let mut ended = by_end.into_iter().peekable();
    let mut highest: Option<&Granted> = None;
    for grant in by_begin {
        while let Some(done) = ended.next_if(|done| done.span.before(&grant.span)) {
            highest = Some(highest.filter(|known| known.token > done.token).unwrap_or(done));
        }
        if let Some(earlier) =
            highest.filter(|earlier| earlier.token >= grant.token && earlier.lease != grant.lease)
        {
            return Err(format!("a later grant has no higher token: {earlier:?} then {grant:?}"));
        }
    }
    Ok(())
}

fn first_answers(grants: &[Granted]) -> Vec<&Granted> {
    let mut first: HashMap<LeaseId, &Granted> = HashMap::new();
    for grant in grants {
        let known = first.entry(grant.lease).or_insert(grant);
        if grant.span.invoked_ns < known.span.invoked_ns {
            *known = grant;
        }
    }
    first.into_values().collect()
}

/// L3: an id is granted once. A retry with it gets the same token.
///
/// # Errors
/// The two answers that break it.
pub fn one_grant_an_id(grants: &[Granted]) -> Result<(), String> {
    let mut seen: HashMap<LeaseId, &Granted> = HashMap::new();
    for grant in grants {
        let first = *seen.entry(grant.lease).or_insert(grant);
        if (first.token, &first.lock) != (grant.token, &grant.lock) {
            return Err(format!("one id, two grants: {first:?} and {grant:?}"));
        }
    }
    Ok(())
}

/// L2: the times in which two leases of one lock certainly lived at once. A lease certainly lives
/// from its answer until its time to live, counted from before it was asked for or was last
/// renewed, is over or its release began. Only for runs in which no lease was revoked.
pub fn overlaps(grants: &[Granted]) -> Vec<String> {
    let mut by_lock: BTreeMap<&str, Vec<(u64, u64, &Granted)>> = BTreeMap::new();
    for grant in grants {
        let expiry = grant.until_ns();
        let end = grant.released_ns.map_or(expiry, |released| released.min(expiry));
        if grant.span.returned_ns < end {
            let entry = (grant.span.returned_ns, end, grant);
            by_lock.entry(&grant.lock).or_default().push(entry);
        }
    }
    let mut found = Vec::new();
    for lived in by_lock.values_mut() {
        lived.sort_by_key(|(begin, _, _)| *begin);
        let mut last: Option<&(u64, u64, &Granted)> = None;
        for now in lived.iter() {
            if let Some(before) = last.filter(|b| b.1 > now.0 && b.2.lease != now.2.lease) {
                found.push(format!("{:?} and {:?}", before.2, now.2));
            }
            last = Some(last.filter(|before| before.1 > now.1).unwrap_or(now));
        }
    }
    found
}

/// G1 on a datastore's own log: the tokens of one lock never fall.
///
/// # Errors
/// The two neighbours that break it.
pub fn applied_in_order(log: &[(String, u64)]) -> Result<(), String> {
    let mut marks: HashMap<&str, (usize, u64)> = HashMap::new();
    for (place, (lock, token)) in log.iter().enumerate() {
        if let Some((earlier, mark)) = marks.get(lock.as_str()).filter(|(_, mark)| mark > token) {
            return Err(format!(
                "{lock}: token {token} was applied (entry {place}) after {mark} (entry {earlier})"
            ));
        }
        marks.insert(lock, (place, *token));
    }
    Ok(())
}

/// G1 and G2 as clients see them: once anything with token t was answered with success, nothing
/// below t that began later is.
///
/// # Errors
/// The two operations that break it.
pub fn nothing_stale(operations: &[Operation]) -> Result<(), String> {
    let mut by_lock: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations.iter().filter(|op| op.outcome == OperationResult::Applied) {
        by_lock.entry(&operation.lock).or_default().push(operation);
    }
    for applied in by_lock.values() {
        let mut by_begin = applied.clone();
        by_begin.sort_by_key(|operation| operation.span.invoked_ns);
        let mut by_end = applied.clone();
        by_end.sort_by_key(|operation| operation.span.returned_ns);
        let mut ended = by_end.into_iter().peekable();
        let mut mark: Option<&Operation> = None;
        for later in by_begin {
            while let Some(done) = ended.next_if(|done| done.span.before(&later.span)) {
                mark = Some(mark.filter(|known| known.token > done.token).unwrap_or(done));
            }
            if let Some(earlier) = mark.filter(|earlier| earlier.token > later.token) {
                return Err(format!("applied below the mark: {earlier:?} then {later:?}"));
            }
        }
    }
    Ok(())
}

/// No acknowledged write is lost: a client wrote what a key holds in the end, that write was not
/// refused, and no acknowledged write of that key began after it was answered.
///
/// # Errors
/// The value that is there, and the one that should be.
pub fn nothing_lost(
    operations: &[Operation],
    finally: &BTreeMap<String, Option<String>>,
) -> Result<(), String> {
    for (key, value) in finally {
        let writes = || {
            operations.iter().filter_map(|operation| match &operation.action {
                Action::Write { key: written, value } if written == key => Some((operation, value)),
                _ => None,
            })
        };
        let mut acknowledged = writes().filter(|(op, _)| op.outcome == OperationResult::Applied);
        let Some(value) = value else {
            if let Some((lost, _)) = acknowledged.next() {
                return Err(format!("{key} is empty, but {lost:?} was acknowledged"));
            }
            continue;
        };
        let Some((winner, _)) = writes().find(|(_, written)| *written == value) else {
            return Err(format!("{key} holds {value}, which no client wrote"));
        };
        if winner.outcome == OperationResult::Refused {
            return Err(format!("{key} holds {value}, which was refused: {winner:?}"));
        }
        let overtaken = |op: &Operation| {
            op.token > winner.token
                || (winner.outcome == OperationResult::Applied && winner.span.before(&op.span))
        };
        if let Some((lost, _)) = acknowledged.find(|(op, _)| overtaken(op)) {
            return Err(format!(
                "{key} holds the value of {winner:?}, but {lost:?} was acknowledged"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
