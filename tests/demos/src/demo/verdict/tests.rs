use super::*;

fn late(status: u16, log: &[&str]) -> LateWrite {
    LateWrite {
        old_token: 33,
        new_token: 34,
        late_taken: status < 300,
        late_status: Some(status),
        late_code: (status == 412).then(|| "stale-token".to_owned()),
        late_mark: (status == 412).then_some(34),
        new_taken: true,
        new_status: Some(204),
        old_update: "A +30".to_owned(),
        new_update: "B +50".to_owned(),
        final_balance: 0,
        final_log: log.iter().map(|&entry| entry.to_owned()).collect(),
    }
}

#[test]
fn unguarded_must_lose_the_newer_update() {
    assert!(late(204, &["opened", "A +30"]).lost().ok);
    assert!(!late(204, &["opened", "B +50"]).lost().ok, "nothing was lost");
    assert!(!late(204, &["opened", "B +50", "A +30"]).lost().ok, "both are there");
    assert!(!late(412, &["opened", "A +30"]).lost().ok, "it was refused");
    let unordered = LateWrite { new_token: 33, ..late(204, &["opened", "A +30"]) };
    assert!(!unordered.lost().ok, "the tokens did not rise");
}

#[test]
fn guarded_must_refuse_and_keep() {
    assert!(late(412, &["opened", "B +50"]).refused().ok);
    assert!(!late(204, &["opened", "A +30"]).refused().ok, "it was taken");
    assert!(!late(412, &["opened", "A +30"]).refused().ok, "refused, and applied all the same");
    assert!(!late(412, &["opened"]).refused().ok, "the newer update is gone");
    assert!(!late(412, &["opened", "B +50", "A +30"]).refused().ok);
    let other = LateWrite { late_code: None, ..late(412, &["opened", "B +50"]) };
    assert!(!other.refused().ok, "refused for another reason");
    let other = LateWrite { late_mark: Some(35), ..late(412, &["opened", "B +50"]) };
    assert!(!other.refused().ok, "refused because of a third");
}

/// Over the Redis protocol there are no statuses.
#[test]
fn a_refusal_of_the_redis_port_is_one() {
    let said = |code: Option<&str>, log: &[&str]| LateWrite {
        late_taken: code.is_none(),
        late_status: None,
        late_code: code.map(str::to_owned),
        late_mark: code.map(|_| 34),
        new_status: None,
        ..late(204, log)
    };
    assert!(said(Some("FENCED"), &["opened", "B +50"]).refused().ok);
    assert!(!said(Some("UNKNOWN"), &["opened", "B +50"]).refused().ok, "another reason");
    assert!(!said(Some("FENCED"), &["opened", "A +30"]).refused().ok, "applied all the same");
    assert!(!said(None, &["opened", "B +50"]).refused().ok, "it was taken");
    assert!(said(None, &["opened", "A +30"]).lost().ok);
    assert!(!said(Some("FENCED"), &["opened", "A +30"]).lost().ok, "it was refused");
}

#[test]
fn the_lane_must_keep_the_order() {
    let both = late(204, &["opened", "A +30", "B +50"]);
    assert!(both.in_order(true).ok);
    assert!(!both.in_order(false).ok, "the newer one was not held back");
    assert!(!late(204, &["opened", "B +50", "A +30"]).in_order(true).ok);
    assert!(!late(204, &["opened", "B +50"]).in_order(true).ok);
}

#[test]
fn amnesia_turns_the_fence_round_only_where_the_counter_restarts() {
    let naive =
        Amnesia { tokens_before: vec![1, 2, 3], token_after: 1, new_status: 412, old_status: 204 };
    assert!(naive.forgot().ok && !naive.rose().ok);
    let lifted =
        Amnesia { tokens_before: vec![7], token_after: 900, new_status: 204, old_status: 412 };
    assert!(lifted.rose().ok && !lifted.forgot().ok);
    let taken = Amnesia { old_status: 204, ..lifted };
    assert!(!taken.rose().ok, "the old holder still writes");
    assert!(!Amnesia::default().rose().ok && !Amnesia::default().forgot().ok);
}

#[test]
fn a_stampede_loses_nothing_under_the_lock() {
    let exact = Stampede {
        workers: 100,
        processes: 4,
        acknowledged: 100,
        started_at: 100,
        ended_at: 0,
        served_in_order: 100,
    };
    assert!(exact.exact().ok && !exact.lost().ok);
    let lossy = Stampede { ended_at: 96, ..exact.clone() };
    assert!(lossy.lost().ok && !lossy.exact().ok);
    assert!(lossy.lost().text.contains("96 are lost"), "{}", lossy.lost().text);
    assert!(!Stampede { served_in_order: 99, ..exact.clone() }.exact().ok);
    assert!(!Stampede { acknowledged: 99, ended_at: 1, ..exact }.exact().ok);
}
