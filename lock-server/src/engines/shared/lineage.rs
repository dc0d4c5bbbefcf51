//! Is this still the database that issued our tokens? The verdict; pure: no I/O.
//!
//! A lineage is a stretch of a database's life in which no commit can have been lost. Its id stands
//! beside the counter, and every commit is refused where it is not the one that this server
//! verified. Where commits may be lost, a new lineage begins with the counter lifted above
//! everything that may have been issued (see [`tokens::restart_floor`]), and no lease begins for as
//! long as a lost one may live.
//!
//! An engine reads what its database shows ([`Found`]), [`judge`] decides, and the engine writes
//! the [`Adoption`] on the condition that nothing else was written meanwhile; [`keeper`] does these
//! steps in their order.

pub(crate) mod keeper;

use fence_protocol::Token;
use lease::tokens;

/// Evidence in a database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Id of the lineage; empty where none is stored.
    pub(crate) id: String,
    /// The counter; 0 where none is stored.
    pub(crate) counter: u64,
    /// The counter at a former verification; 0 where none is stored.
    pub(crate) verified_counter: u64,
    /// The namespace was in use: anything of it is stored.
    pub(crate) is_used: bool,
    /// First sign that commits may be lost, of those that only this kind of database has.
    pub(crate) sign: Option<&'static str>,
    /// All of it may have been restored from a backup, which leaves no sign.
    pub(crate) may_be_restored: bool,
    /// The clock of the database, in ms since 1970.
    pub(crate) clock_ms: u64,
    /// Distance of that clock ahead of the time of the records, in ms.
    pub(crate) ahead_ms: i64,
    /// No lease lives after it, by the time of the records.
    pub(crate) lives_until_ms: u64,
}

/// Knowledge of this server.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownLineage {
    /// Id of the lineage that it verified last; empty before the first.
    pub(crate) id: String,
    /// The highest counter that it has seen.
    pub(crate) seen: u64,
    /// The highest mark that a guard has reported.
    pub(crate) mark: u64,
    /// Its clock, in ms since 1970.
    pub(crate) wall_ms: u64,
    /// A lease that it knows of may live for so long.
    pub(crate) lives_ms: u64,
    /// Grants wait for leases that may be lost.
    pub(crate) waits: bool,
    /// The time of the records; 0 where it is not known.
    pub(crate) now_ms: u64,
    /// Error of `now_ms`, at most.
    pub(crate) limit_ms: u64,
    /// An operator vouches that the namespace has never issued a token.
    pub(crate) vouches: bool,
}

/// Change to the record of a lineage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adoption {
    /// Why a new lineage begins; none where the lineage continues.
    pub(crate) reason: Option<String>,
    /// The counter rises by one at least, and to this at least; none where it stays.
    pub(crate) lifted_to: Option<u64>,
    /// No lease begins for so long; 0 where none is waited for.
    pub(crate) pause_ms: u64,
    /// Distance of the clock ahead of the time of the records, where that changes.
    pub(crate) ahead_ms: Option<i64>,
}

/// The outcome of [`judge`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This is to be written.
    Adopt(Adoption),
    /// An operator vouched for a namespace that is in use.
    Used,
    /// No token is left above those that may have been issued.
    Exhausted,
}

/// Decides whether the lineage continues, by what is found and what is known.
pub(crate) fn judge(found: &Found, known: &KnownLineage) -> Verdict {
    if known.vouches && found.is_used {
        // Leases may be left, whatever else is known of the namespace.
        return Verdict::Used;
    }
    let counter = found.counter;
    let reason = if let Some(sign) = found.sign {
        Some(sign.to_owned())
    } else if counter < known.seen.max(found.verified_counter) {
        Some(format!("the counter fell to {counter}"))
    } else if counter < known.mark {
        let mark = known.mark;
        Some(format!("the counter {counter} is below {mark}, which a guard has seen"))
    } else {
        None
    };
    let begins = reason.is_some();
    let lifts = !known.vouches && begins || found.may_be_restored;
    let lifted_to = lifts.then(|| {
        let floor = tokens::restart_floor(found.clock_ms.max(known.wall_ms));
        (counter.saturating_add(1)).max(floor).max(known.seen.saturating_add(1)).max(known.mark)
    });
    if lifted_to.unwrap_or(counter) >= Token::MAX {
        return Verdict::Exhausted;
    }
    // The time of the records continues, whatever the clock of this database shows.
    let shown_ms = found.clock_ms.saturating_add_signed(found.ahead_ms.saturating_neg());
    let is_other = known.now_ms > 0 && shown_ms.abs_diff(known.now_ms) > known.limit_ms;
    let at_ms = if is_other { known.now_ms } else { shown_ms };
    let lives_ms = found.lives_until_ms.saturating_sub(at_ms).max(known.lives_ms);
    // Who began this lineage may not have known of leases that this server knows of.
    let is_of_another = !known.id.is_empty() && known.id != found.id;
    let waits = known.waits && (begins || is_of_another);
    let ahead_ms = found.clock_ms.cast_signed().saturating_sub(known.now_ms.cast_signed());
    Verdict::Adopt(Adoption {
        reason,
        lifted_to,
        pause_ms: if waits { lives_ms } else { 0 },
        ahead_ms: (begins && is_other).then_some(ahead_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = tokens::EPOCH_2025_MS + 1_000_000;

    /// A database in which nothing was lost, with a lease of a minute.
    fn found() -> Found {
        Found {
            id: "one".to_owned(),
            counter: 40,
            verified_counter: 30,
            is_used: true,
            sign: None,
            may_be_restored: false,
            clock_ms: NOW_MS,
            ahead_ms: 0,
            lives_until_ms: NOW_MS + 60_000,
        }
    }

    fn known() -> KnownLineage {
        KnownLineage {
            id: "one".to_owned(),
            seen: 40,
            mark: 40,
            wall_ms: NOW_MS - 5,
            lives_ms: 1_000,
            waits: true,
            now_ms: NOW_MS + 10,
            limit_ms: 20,
            vouches: false,
        }
    }

    fn adopted(found: &Found, known: &KnownLineage) -> Adoption {
        match judge(found, known) {
            Verdict::Adopt(adoption) => adoption,
            other => panic!("{other:?}"),
        }
    }

    const STAYS: Adoption = Adoption { reason: None, lifted_to: None, pause_ms: 0, ahead_ms: None };

    #[test]
    fn every_verdict_on_a_lineage() {
        let floor = tokens::restart_floor(NOW_MS);
        let begins = |reason: &str| Adoption {
            reason: Some(reason.to_owned()),
            lifted_to: Some(floor),
            pause_ms: 60_000,
            ahead_ms: None,
        };
        let lifted = Adoption { lifted_to: Some(floor), ..STAYS };
        let waits = Adoption { pause_ms: 60_000, ..STAYS };
        let gone = "it is gone";
        let fell = begins("the counter fell to 39");
        let below = begins("the counter 40 is below 41, which a guard has seen");
        let sign = Found { sign: Some(gone), ..found() };
        for (name, found, known, adoption) in [
            ("nothing was lost", found(), known(), STAYS),
            ("it is seen first", found(), KnownLineage { seen: 0, mark: 0, ..known() }, STAYS),
            ("a sign", sign.clone(), known(), begins(gone)),
            ("a sign comes first", Found { counter: 39, ..sign.clone() }, known(), begins(gone)),
            ("below what was seen", Found { counter: 39, ..found() }, known(), fell.clone()),
            (
                "below a former verification",
                Found { counter: 39, verified_counter: 40, ..found() },
                KnownLineage::default(),
                Adoption { pause_ms: 0, ..fell },
            ),
            ("below a mark", found(), KnownLineage { mark: 41, ..known() }, below),
            ("a backup", Found { may_be_restored: true, ..found() }, known(), lifted),
            ("of another", found(), KnownLineage { id: "two".to_owned(), ..known() }, waits),
            ("known by none", found(), KnownLineage { id: String::new(), ..known() }, STAYS),
        ] {
            assert_eq!(adopted(&found, &known), adoption, "{name}");
        }
    }

    /// Whatever is the highest of what is known: the next token is above it.
    #[test]
    fn a_lifted_counter_is_above_every_witness() {
        let lost = Found { sign: Some("lost"), ..found() };
        let far = tokens::restart_floor(NOW_MS) + 1_000;
        for (found, known, least) in [
            (Found { counter: far, ..lost.clone() }, known(), far + 1),
            (lost.clone(), KnownLineage { seen: far, ..known() }, far + 1),
            (lost.clone(), KnownLineage { mark: far, ..known() }, far),
            (
                Found { clock_ms: NOW_MS + 7, ..lost.clone() },
                known(),
                tokens::restart_floor(NOW_MS + 7),
            ),
            (
                lost.clone(),
                KnownLineage { wall_ms: NOW_MS + 9, ..known() },
                tokens::restart_floor(NOW_MS + 9),
            ),
        ] {
            assert_eq!(adopted(&found, &known).lifted_to, Some(least));
        }
    }

    #[test]
    fn grants_wait_for_the_longest_lease_that_may_be_lost() {
        let lost = Found { sign: Some("lost"), ..found() };
        let pause = |found: &Found, known: &KnownLineage| adopted(found, known).pause_ms;
        assert_eq!(pause(&lost, &known()), 60_000);
        assert_eq!(pause(&lost, &KnownLineage { lives_ms: 70_000, ..known() }), 70_000);
        let over = Found { lives_until_ms: NOW_MS - 1, ..lost.clone() };
        assert_eq!(pause(&over, &KnownLineage { lives_ms: 0, ..known() }), 0);
        assert_eq!(pause(&lost, &KnownLineage { waits: false, ..known() }), 0);
        // By the time of the records, of which this server knows where the clock jumped.
        let jumped = Found { clock_ms: NOW_MS + 500_000, ..lost.clone() };
        let adoption = adopted(&jumped, &known());
        assert_eq!((adoption.pause_ms, adoption.ahead_ms), (59_990, Some(499_990)));
        let known_jump = Found { ahead_ms: 500_000, ..jumped.clone() };
        let adoption = adopted(&known_jump, &known());
        assert_eq!((adoption.pause_ms, adoption.ahead_ms), (60_000, None));
        let stranger = KnownLineage { now_ms: 0, lives_ms: 0, ..known() };
        assert_eq!(pause(&jumped, &stranger), 0);
        // A clock that went back.
        let back = Found { clock_ms: NOW_MS - 500_000, ..lost };
        let adoption = adopted(&back, &known());
        assert_eq!((adoption.pause_ms, adoption.ahead_ms), (59_990, Some(-500_010)));
    }

    #[test]
    fn an_operator_vouches_for_an_empty_namespace_alone() {
        let vouches = KnownLineage { vouches: true, ..KnownLineage::default() };
        assert_eq!(judge(&found(), &vouches), Verdict::Used);
        let empty = Found { sign: Some("nothing is stored"), clock_ms: NOW_MS, ..Found::default() };
        let adoption = adopted(&empty, &vouches);
        assert_eq!(adoption.reason.as_deref(), Some("nothing is stored"));
        assert_eq!(adoption.lifted_to, None);
    }

    #[test]
    fn the_last_token_is_not_given() {
        for (counter, is_left) in [(Token::MAX - 1, true), (Token::MAX, false)] {
            let found = Found { counter, ..found() };
            assert_eq!(judge(&found, &known()) != Verdict::Exhausted, is_left);
        }
        let lost = Found { sign: Some("lost"), counter: Token::MAX - 1, ..found() };
        assert_eq!(judge(&lost, &known()), Verdict::Exhausted);
    }
}
