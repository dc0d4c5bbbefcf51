//! A checker that cannot fail is worthless: each is shown a history that breaks its invariant.

use std::collections::BTreeMap;

use super::*;
use crate::history::Span;
use crate::key_file::lease_id;

fn grant(token: u64, invoked_ns: u64, returned_ns: u64) -> Granted {
    Granted {
        lock: "a".to_owned(),
        lease: lease_id(),
        token,
        ttl_ms: 1,
        span: Span { invoked_ns, returned_ns },
        released_ns: None,
        kept_ns: None,
    }
}

fn write(token: u64, value: &str, outcome: OperationResult, at: (u64, u64)) -> Operation {
    Operation {
        lock: "a".to_owned(),
        token,
        action: Action::Write { key: "k".to_owned(), value: value.to_owned() },
        outcome,
        span: Span { invoked_ns: at.0, returned_ns: at.1 },
    }
}

fn finally(value: Option<&str>) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([("k".to_owned(), value.map(str::to_owned))])
}

#[test]
fn tokens_that_repeat_or_fall_are_found() {
    assert!(tokens_rise(&[grant(1, 0, 1), grant(2, 2, 3)]).is_ok());
    assert!(tokens_rise(&[grant(1, 0, 1), grant(1, 2, 3)]).is_err());
    assert!(tokens_rise(&[grant(2, 0, 1), grant(1, 2, 3)]).is_err());
    // Calls that overlap in time may be answered in either order.
    assert!(tokens_rise(&[grant(2, 0, 5), grant(1, 2, 3)]).is_ok());
    // The first call is the one that everybody later must exceed, however long ago it was.
    let long_ago = [grant(9, 0, 1), grant(10, 2, 3), grant(11, 4, 5), grant(8, 6, 7)];
    assert!(tokens_rise(&long_ago).is_err());
    let same = grant(4, 0, 1);
    let repeat = Granted { span: Span { invoked_ns: 5, returned_ns: 6 }, ..same.clone() };
    assert!(tokens_rise(&[same.clone(), repeat.clone()]).is_ok());
    // A repeat is answered with the old token, however many others were granted since.
    assert!(tokens_rise(&[same.clone(), grant(5, 2, 3), repeat]).is_ok());
    assert!(tokens_rise(&[same, grant(3, 2, 3)]).is_err());
}

#[test]
fn two_lives_at_once_are_found() {
    let first = grant(1, 0, 10);
    assert_eq!(overlaps(&[first.clone(), grant(2, 20, 30)]).len(), 1);
    assert!(overlaps(&[first.clone(), grant(2, 20, 1_000_001)]).is_empty());
    let kept = Granted { kept_ns: Some(2_000_000), ..first.clone() };
    assert_eq!(overlaps(&[kept.clone(), grant(2, 20, 1_000_001)]).len(), 1);
    let let_go = Granted { released_ns: Some(15), ..kept };
    assert!(overlaps(&[let_go, grant(2, 20, 1_000_001)]).is_empty());
    let released = Granted { released_ns: Some(15), ..first };
    assert!(overlaps(&[released, grant(2, 20, 30)]).is_empty());
}

#[test]
fn an_id_with_two_tokens_is_found() {
    let first = grant(1, 0, 10);
    assert!(one_grant_an_id(&[first.clone(), first.clone(), grant(2, 20, 30)]).is_ok());
    let again = Granted { token: 2, ..first.clone() };
    assert!(one_grant_an_id(&[first.clone(), again]).is_err());
    let elsewhere = Granted { lock: "b".to_owned(), ..first.clone() };
    assert!(one_grant_an_id(&[first, elsewhere]).is_err());
}

#[test]
fn a_log_that_falls_is_found() {
    let log = |tokens: &[u64]| -> Vec<(String, u64)> {
        tokens.iter().map(|token| ("a".to_owned(), *token)).collect()
    };
    assert!(applied_in_order(&log(&[1, 1, 2, 5])).is_ok());
    assert!(applied_in_order(&log(&[1, 33, 34, 33])).is_err());
}

#[test]
fn a_stale_success_is_found() {
    use OperationResult::{Applied, Refused, Unknown};
    let high = write(34, "y", Applied, (0, 5));
    assert!(nothing_stale(&[high.clone(), write(33, "x", Applied, (6, 7))]).is_err());
    assert!(nothing_stale(&[high.clone(), write(33, "x", Refused, (6, 7))]).is_ok());
    assert!(nothing_stale(&[high.clone(), write(33, "x", Applied, (4, 7))]).is_ok());
    let raise = Operation { action: Action::Raise, ..high };
    assert!(nothing_stale(&[raise, write(33, "x", Applied, (6, 7))]).is_err());
    let unknown = write(34, "y", Unknown, (0, 5));
    assert!(nothing_stale(&[unknown, write(33, "x", Applied, (6, 7))]).is_ok());
}

#[test]
fn a_lost_write_is_found() {
    use OperationResult::{Applied, Refused, Unknown};
    let both = [write(1, "x", Applied, (0, 1)), write(1, "y", Applied, (2, 3))];
    assert!(nothing_lost(&both, &finally(Some("y"))).is_ok());
    assert!(nothing_lost(&both, &finally(Some("x"))).is_err());
    assert!(nothing_lost(&both, &finally(None)).is_err());
    assert!(nothing_lost(&both, &finally(Some("z"))).is_err());
    let refused = [write(1, "x", Applied, (0, 1)), write(1, "y", Refused, (2, 3))];
    assert!(nothing_lost(&refused, &finally(Some("y"))).is_err());
    let unknown = [write(1, "x", Applied, (0, 1)), write(1, "y", Unknown, (2, 3))];
    assert!(nothing_lost(&unknown, &finally(Some("y"))).is_ok());
    assert!(nothing_lost(&unknown, &finally(Some("x"))).is_ok());
    // A higher token's acknowledged write may never be under a lower one's, whenever they ran.
    let overtaken = [write(2, "y", Applied, (0, 9)), write(1, "x", Unknown, (1, 9))];
    assert!(nothing_lost(&overtaken, &finally(Some("x"))).is_err());
}
