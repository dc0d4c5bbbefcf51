//! Leases and waiters belong to the principal that asked for them.

use super::*;

fn with_principal(principal: Option<&str>, request: Acquire) -> Acquire {
    Acquire { principal: principal.map(ToOwned::to_owned), ..request }
}

fn other(number: u128) -> StoreError {
    StoreError::OtherPrincipal { lease_id: id(number) }
}

fn conflict(number: u128) -> StoreError {
    StoreError::IdConflict { owner: Owner::new(format!("worker-{number}")).unwrap() }
}

#[test]
fn only_its_principal_renews_and_releases_a_lease() {
    let mut machine = machine();
    granted(machine.acquire(0, with_principal(Some("ci"), request("a", 1, 0))));
    let mut check = |caller| machine.check_principal(1, &lock("a"), id(1), caller);
    assert_eq!(check(Some("rival")), Err(other(1)));
    assert_eq!(check(Some("ci")), Ok(()));
    assert_eq!(check(None), Ok(()), "there is no access file");
    assert_eq!(machine.check_principal(1, &lock("a"), id(2), Some("rival")), Ok(()), "no lease");
    assert_eq!(machine.check_principal(1, &lock("b"), id(1), Some("rival")), Ok(()), "no lock");
    assert_eq!(machine.check_principal(100, &lock("a"), id(1), Some("rival")), Ok(()), "ended");
}

#[test]
fn a_lease_without_a_principal_is_open_to_all() {
    let mut machine = machine();
    let held = granted(machine.acquire(0, request("a", 1, 0)));
    assert_eq!(machine.check_principal(1, &lock("a"), id(1), Some("ci")), Ok(()));
    let again = machine.acquire(1, with_principal(Some("ci"), request("a", 1, 0)));
    assert_eq!(granted(again).token, held.token);
}

#[test]
fn the_id_of_another_principal_gets_no_grant() {
    let mut machine = machine();
    let held = granted(machine.acquire(0, with_principal(Some("ci"), request("a", 1, 0))));
    let stolen = with_principal(Some("rival"), request("a", 1, 0));
    assert_eq!(refused(machine.acquire(1, stolen.clone())), conflict(1));
    let parts = vec![stolen.clone(), Acquire { lock: lock("b"), ..stolen }];
    let Reply::Done(Err(StoreError::Part { refusal, .. })) = machine.acquire_all(1, parts) else {
        panic!("not refused");
    };
    assert_eq!(*refusal, conflict(1));
    let again = machine.acquire(1, with_principal(Some("ci"), request("a", 1, 0)));
    assert_eq!(granted(again).token, held.token);
}

#[test]
fn a_waiter_belongs_to_its_principal() {
    let mut machine = machine();
    granted(machine.acquire(0, with_principal(Some("ci"), request("a", 1, 0))));
    let waiter = with_principal(Some("ci"), request("a", 2, 50));
    assert_eq!(machine.acquire(1, waiter.clone()), Reply::Queued);
    let stolen = with_principal(Some("rival"), waiter.clone());
    assert_eq!(refused(machine.acquire(2, stolen)), conflict(2));
    assert_eq!(machine.check_principal(2, &lock("a"), id(2), Some("rival")), Err(other(2)));
    assert_eq!(machine.acquire(2, waiter), Reply::Queued);
    machine.release(3, &lock("a"), id(1)).unwrap();
    assert!(machine.take_deliveries()[0].result.is_ok());
    assert_eq!(machine.check_principal(3, &lock("a"), id(2), Some("rival")), Err(other(2)));
}

#[test]
fn a_waiting_group_belongs_to_its_principal() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    let parts = |principal| {
        let part = with_principal(principal, request("a", 2, 50));
        vec![part.clone(), Acquire { lock: lock("b"), ..part }]
    };
    assert_eq!(machine.acquire_all(0, parts(Some("ci"))), Reply::Queued);
    let stolen = machine.acquire_all(1, parts(Some("rival")));
    let refusal = Box::new(conflict(2));
    assert_eq!(stolen, Reply::Done(Err(StoreError::Part { lock: lock("a"), refusal })));
    assert_eq!(machine.acquire_all(1, parts(Some("ci"))), Reply::Queued);
}

#[test]
fn takeover_never_crosses_principals() {
    let mut machine = machine();
    let life = |number, life: &str, takeover, wait_ms| Acquire {
        owner: Owner::new("worker").unwrap(),
        incarnation: Owner::new(life).ok(),
        takeover,
        ..request("a", number, wait_ms)
    };
    granted(machine.acquire(0, with_principal(Some("ci"), life(1, "boot-1", Takeover::Never, 0))));
    let thief =
        |takeover, wait_ms| with_principal(Some("rival"), life(2, "boot-2", takeover, wait_ms));
    for (takeover, wait_ms) in [(Takeover::Of(id(1)), 0), (Takeover::Of(id(1)), 50)] {
        assert_eq!(refused(machine.acquire(1, thief(takeover, wait_ms))), other(1));
    }
    assert_eq!(refused(machine.acquire(1, thief(Takeover::EarlierSelf, 0))), other(1));
    assert_eq!(machine.acquire(1, thief(Takeover::EarlierSelf, 50)), Reply::Queued, "it waits");
    machine.withdraw(2, &lock("a"), id(2));

    let of_another = Acquire { may_supersede: Some(id(9)), ..thief(Takeover::EarlierSelf, 0) };
    assert_eq!(refused(machine.acquire(3, of_another)), other(1), "for one lease alone");
    let own = with_principal(Some("ci"), life(3, "boot-3", Takeover::EarlierSelf, 0));
    granted(machine.acquire(4, own));
    let may = Acquire { may_supersede: Some(id(3)), ..life(4, "boot-4", Takeover::Of(id(3)), 0) };
    granted(machine.acquire(5, with_principal(Some("ops"), may)));
    assert_eq!(machine.check_principal(6, &lock("a"), id(4), Some("ci")), Err(other(4)));
}
