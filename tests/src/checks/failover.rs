//! Counts of a run over failovers: some engines promise less than others, and this reports how
//! often they break what they do not promise. Pure: no I/O, no clock.

use std::collections::{BTreeMap, HashMap};

use fence_protocol::LeaseId;

use crate::history::Granted;

/// Among which tokens L1 is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the namespace.
    Namespace,
    /// Those of one lock.
    Lock,
}

/// A server said that a lease is gone, which its holder had not given back.
#[derive(Clone, Debug)]
pub struct Gone {
    /// Lease that ended early.
    pub lease: LeaseId,
    /// When the answer was there.
    pub reported_ns: u64,
    /// The reason that the server gave.
    pub reason: String,
}

/// L1: the grants that have the token of another lease, or no higher one than a grant that was
/// answered before they were asked for. A grant is counted once, however many it breaks with.
pub fn token_breaks(grants: &[Granted], scope: Scope) -> Vec<String> {
    let mut apart: BTreeMap<&str, Vec<&Granted>> = BTreeMap::new();
    for grant in grants {
        let key = if scope == Scope::Lock { grant.lock.as_str() } else { "" };
        apart.entry(key).or_default().push(grant);
    }
    apart.into_values().flat_map(breaks).collect()
}

fn breaks(mut by_begin: Vec<&Granted>) -> Vec<String> {
    let mut by_end = by_begin.clone();
    by_end.sort_by_key(|grant| grant.span.returned_ns);
    by_begin.sort_by_key(|grant| grant.span.invoked_ns);
    let mut ended = by_end.into_iter().peekable();
    let mut highest: Option<&Granted> = None;
    let mut owners: HashMap<u64, &Granted> = HashMap::new();
    let mut found = Vec::new();
    for grant in by_begin {
        while let Some(done) = ended.next_if(|done| done.span.before(&grant.span)) {
            highest = Some(highest.filter(|known| known.token > done.token).unwrap_or(done));
        }
        let owner = *owners.entry(grant.token).or_insert(grant);
        if owner.lease != grant.lease {
            found.push(format!("one token, two leases: {owner:?} and {grant:?}"));
        } else if let Some(before) =
            highest.filter(|known| known.token >= grant.token && known.lease != grant.lease)
        {
            found.push(format!("a later grant has no higher token: {before:?} then {grant:?}"));
        }
    }
    found
}

/// L4 over failovers: the leases that a server called gone while their time was not over, counted
/// from before they were asked for or last renewed. What the holder itself had begun to release is
/// for the caller to leave out.
pub fn lost_leases(grants: &[Granted], gone: &[Gone]) -> Vec<String> {
    let known: HashMap<LeaseId, &Granted> = grants.iter().map(|g| (g.lease, g)).collect();
    let lost = gone.iter().filter_map(|gone| {
        let grant = known.get(&gone.lease)?;
        (gone.reported_ns < grant.until_ns()).then(|| format!("{gone:?} of {grant:?}"))
    });
    lost.collect()
}

/// For each fault, the longest time without any grant from the fault until the next one, in
/// nanoseconds. What is after the last grant does not count.
pub fn longest_gaps(grants: &[Granted], faults_ns: &[u64]) -> Vec<u64> {
    let mut granted_ns: Vec<u64> = grants.iter().map(|grant| grant.span.returned_ns).collect();
    granted_ns.sort_unstable();
    let until = faults_ns.iter().skip(1).copied().chain([u64::MAX]);
    let gaps = faults_ns.iter().zip(until).map(|(fault, next)| {
        let within = granted_ns.iter().filter(|at| (*fault..next).contains(*at));
        let mut last = *fault;
        within.map(|at| at - std::mem::replace(&mut last, *at)).max().unwrap_or(0)
    });
    gaps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Span;
    use crate::key_file::lease_id;

    const MS: u64 = 1_000_000;

    fn grant(lock: &str, token: u64, from_ms: u64, to_ms: u64) -> Granted {
        Granted {
            lock: lock.to_owned(),
            lease: lease_id(),
            token,
            ttl_ms: 100,
            span: Span { invoked_ns: from_ms * MS, returned_ns: to_ms * MS },
            released_ns: None,
            kept_ns: None,
        }
    }

    #[test]
    fn planted_tokens_are_found_and_counted() {
        let rising = [grant("a", 1, 0, 1), grant("b", 2, 2, 3), grant("a", 3, 4, 5)];
        assert!(token_breaks(&rising, Scope::Namespace).is_empty());
        let repeated = [grant("a", 1, 0, 1), grant("a", 2, 2, 3), grant("a", 2, 4, 5)];
        assert_eq!(token_breaks(&repeated, Scope::Lock).len(), 1);
        // Even if the order is unknown.
        let at_once = [grant("a", 2, 0, 5), grant("a", 2, 1, 4)];
        assert_eq!(token_breaks(&at_once, Scope::Lock).len(), 1);
        let fallen = [grant("a", 9, 0, 1), grant("a", 4, 2, 3), grant("a", 5, 4, 5)];
        assert_eq!(token_breaks(&fallen, Scope::Lock).len(), 2, "each of them is below 9");
        // Calls that overlap may be answered in either order.
        let mixed = [grant("a", 2, 0, 5), grant("a", 1, 2, 3)];
        assert!(token_breaks(&mixed, Scope::Namespace).is_empty());
        let apart = [grant("a", 9, 0, 1), grant("b", 4, 2, 3)];
        assert!(token_breaks(&apart, Scope::Lock).is_empty());
        assert_eq!(token_breaks(&apart, Scope::Namespace).len(), 1);
    }

    #[test]
    fn a_lease_that_is_gone_too_early_is_found() {
        let lease = grant("a", 1, 0, 1);
        let gone = |at_ms: u64| Gone {
            lease: lease.lease,
            reported_ns: at_ms * MS,
            reason: "expired".to_owned(),
        };
        assert_eq!(lost_leases(std::slice::from_ref(&lease), &[gone(99)]).len(), 1);
        assert!(lost_leases(std::slice::from_ref(&lease), &[gone(100)]).is_empty());
        let kept = Granted { kept_ns: Some(150 * MS), ..lease.clone() };
        assert_eq!(lost_leases(&[kept], &[gone(149)]).len(), 1);
        assert!(lost_leases(&[], &[gone(1)]).is_empty(), "no holder was notified");
    }

    #[test]
    fn the_longest_silence_after_each_fault_is_found() {
        let at = |ms: u64| grant("a", ms, ms - 1, ms);
        let grants = [at(5), at(12), at(40), at(41), at(55), at(56)];
        assert_eq!(longest_gaps(&grants, &[10 * MS, 42 * MS]), [28 * MS, 13 * MS]);
        assert_eq!(longest_gaps(&grants, &[57 * MS]), [0]);
    }
}
