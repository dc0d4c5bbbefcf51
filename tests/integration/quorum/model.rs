//! The quorum's rules under a model checker: every order of messages, losses, one amnesia.
//!
//! The nodes are the reference of the scripts (`reference`) and the proposers decide with
//! `rules::tally`: what the servers run, and what the scripts are held against. The checker walks
//! through every state that can follow within the bounds of a [`Bounds`], and looks for two leases
//! with one token, a later grant with a lower token, and two holders at once.
//!
//! Messages: a vote is under way until it is delivered, for ever if it is lost, also after its
//! proposer has continued; a reply is received or lost. That a reply may be received late needs no
//! state of its own: it only lets the proposer do later what it may do later anyway, and ends a
//! proposal later, of which every property asks less.
//!
//! Time: all clocks show the same number and advance together, whenever the checker likes, also
//! while messages are under way. So a lease ends at a node and in its holder's hands only when its
//! time is over there. That rates are equal is what L2 asks for; uniqueness and order are checked
//! in a world without time in which a node comes back without waiting: they do not rest on time.
//!
//! `FENCE_LONG=1` widens the bounds: 46 million steps in all. The dev profile takes some twenty
//! seconds of a processor for each million, so about a quarter of an hour, and little memory:
//! `FENCE_LONG=1 cargo test -p fence-tests --test integration -- quorum::model --nocapture`. With
//! `--release` after `cargo test` the steps take less, and building takes minutes.
#![expect(clippy::print_stderr, reason = "what was walked through is the outcome")]

mod bounds;
mod properties;
mod proposer;
mod world;

use std::time::Instant;

use fence_tests::seed::long_run;
use stateright::{Checker, HasDiscoveries, Model};

use self::bounds::{Bounds, Recovery};
use self::properties::{ONE_HOLDER, UNIQUE};

/// Every state within the bounds: none may show a contradiction. The count is printed.
fn exhaust(what: &str, bounds: Bounds) {
    let began = Instant::now();
    let checker = bounds.checker().spawn_dfs().join();
    eprintln!(
        "{what}: {} steps to {} states, depth {}, {} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_secs(),
    );
    checker.assert_properties();
}

/// The checker must find that a property does not hold; the way there is printed.
fn refute(what: &str, property: &'static str, bounds: Bounds) -> Vec<String> {
    let checker = bounds.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = checker.discovery(property).expect("a counter-example");
    let steps: Vec<String> = path.into_actions().iter().map(|step| format!("  {step:?}")).collect();
    eprintln!("{what} breaks \"{property}\", found after {} steps:", checker.state_count());
    eprintln!("{}", steps.join("\n"));
    steps
}

fn needs_amnesia(steps: &[String]) {
    assert!(steps.iter().any(|step| step.contains("Crash")), "it needs no amnesia");
}

/// Uniqueness and order, with a node that comes back at once: neither rests on time.
#[test]
fn two_proposers_of_two_locks_and_an_amnesia() {
    let rounds = if long_run() { 2 } else { 1 };
    exhaust("two proposers, two locks", Bounds { rounds, ..Bounds::other_locks(2) });
}

/// The same with three; in a short run no node forgets.
#[test]
fn three_proposers_of_three_locks_and_an_amnesia() {
    let full = Bounds { rounds: 1, guesses: false, ..Bounds::other_locks(3) };
    let short = Bounds { recovery: Recovery::NoLoss, ..full.clone() };
    exhaust("three proposers, three locks", if long_run() { full } else { short });
}

/// One holder at a time, while leases expire and a node comes back when all is over; in a short run
/// time does not advance, and it must not come back.
#[test]
fn two_proposers_of_one_lock_and_an_amnesia() {
    let full = Bounds { renewals: 0, releases: false, ..Bounds::one_lock(2) };
    let short = Bounds { drops: false, time_ms: 0, ..full.clone() };
    exhaust("two proposers, one lock", if long_run() { full } else { short });
}

/// Leases expire, holders renew and let go, and no node forgets; in a short run they only let go.
#[test]
fn a_holder_that_renews_or_lets_go() {
    let full = Bounds { recovery: Recovery::NoLoss, time_ms: 1, ..Bounds::one_lock(2) };
    let short = Bounds { renewals: 0, drops: false, ..full.clone() };
    exhaust("two proposers that let go", if long_run() { full } else { short });
}

/// Two servers that work on one request never give it two tokens at a time.
#[test]
fn a_request_that_is_repeated_at_another_server() {
    let full = Bounds::one_request(2);
    let short = Bounds { recovery: Recovery::NoLoss, time_ms: 0, ..full.clone() };
    exhaust("two attempts of one request", if long_run() { full } else { short });
}

/// Trap (a): a vote from before the crash completes at a node that was read too early.
#[test]
fn reading_the_highest_token_is_no_recovery() {
    let bounds =
        Bounds { recovery: Recovery::Read, tokens: 1, rounds: 1, ..Bounds::other_locks(2) };
    needs_amnesia(&refute("a rejoin with the highest token of the others", UNIQUE, bounds));
}

/// Trap (b): a vote that is under way is above what the others were raised to.
#[test]
fn raising_the_others_is_no_recovery() {
    let bounds =
        Bounds { recovery: Recovery::ReadAndRaise, tokens: 1, rounds: 1, ..Bounds::other_locks(2) };
    needs_amnesia(&refute("a rejoin that raises the others as well", UNIQUE, bounds));
}

/// The new view alone makes tokens safe, and not the lease: its votes are forgotten.
#[test]
fn coming_back_at_once_lets_two_hold_a_lock() {
    let moment = Bounds { renewals: 0, releases: false, drops: false, ..Bounds::one_lock(2) };
    let bounds = Bounds { waits: false, time_ms: 0, ..moment };
    needs_amnesia(&refute("a rejoin that does not wait", ONE_HOLDER, bounds));
}
