//! Many leases whose time is over in the same moment.

use super::gated::Gated;
use super::turn::until;
use super::*;

const LEASES: usize = 100;

/// A driver over a store that lets so many commits pass.
fn shared(commits: usize) -> (Arc<ManualClock>, Arc<Gated>, Driver) {
    let clock = Arc::new(ManualClock::new(1_000, 0));
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let gated = Arc::new(Gated::new(&kit, commits));
    let driver = Driver::shared(gated.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
    (clock, gated, driver)
}

/// Lets a commit pass if one waits.
fn let_one_commit(driver: &Driver, gated: &Gated) {
    let waits = driver.inner.state().core.in_flight.count() > 0;
    gated.gate.add_permits(usize::from(waits && gated.gate.available_permits() == 0));
}

fn held(driver: &Driver) -> usize {
    driver.inner.state().core.held().locks
}

/// Acquires locks whose leases end together.
async fn fill(driver: &Driver) {
    for at in 0..LEASES {
        driver.acquire(request(&format!("l{at:03}"), 0)).await.unwrap();
    }
    assert_eq!(held(driver), LEASES);
}

/// Each commit ends a few of them and carries what others ask for; a lock that is asked for is
/// free at once, however late its turn is.
#[tokio::test]
async fn others_are_served_in_every_slice() {
    let (clock, gated, driver) = shared(LEASES);
    fill(&driver).await;
    clock.advance(35_000);
    let mut served = 0;
    while held(&driver) > served {
        let last = format!("l{:03}", LEASES - 1);
        let name = if served == 0 { last } else { format!("other{served}") };
        let asking = {
            let driver = driver.clone();
            spawn(async move { driver.acquire(request(&name, 0)).await })
        };
        // It comes with the commit that waits now, or with the next one.
        until("the grant", || {
            let_one_commit(&driver, &gated);
            asking.is_finished()
        })
        .await;
        asking.await.unwrap().unwrap();
        served += 1;
    }
    assert!(served >= LEASES / gated.ends_max() / 4, "{served} were served between the ends");
}

/// A group that times out leaves a lock whose lease is over, in the turn of another: that lock is
/// settled with it, and the holder of the first one renews.
#[tokio::test]
async fn a_group_leaves_beside_a_lease_that_is_over() {
    let (clock, gated, driver) = shared(LEASES + 100);
    fill(&driver).await;
    let ttl = Ttl::from_ms(300_000).unwrap();
    let held_long = driver.acquire(Acquire { ttl, ..request("a", 0) }).await.unwrap();
    driver.acquire(request("z", 0)).await.unwrap();
    let first = request("a", 200_000);
    let group = [request("a", 34_000), request("z", 34_000)];
    let group = vec![group[0].clone(), Acquire { lease_id: group[0].lease_id, ..group[1].clone() }];
    let one = driver.clone();
    let waiting = spawn(async move { one.acquire(first).await });
    until_queued(&driver, "a", 1).await;
    let two = driver.clone();
    let together = spawn(async move { two.acquire_all(group).await });
    until_queued(&driver, "a", 2).await;
    gated.gate.forget_permits(gated.gate.available_permits());
    clock.advance(35_000);
    let renewing = {
        let driver = driver.clone();
        spawn(async move { driver.renew(&lock("a"), held_long.lease_id, None).await })
    };
    until("the renewal", || {
        let_one_commit(&driver, &gated);
        renewing.is_finished() && together.is_finished()
    })
    .await;
    renewing.await.unwrap().unwrap();
    assert!(together.await.unwrap().is_err());
    assert!(held(&driver) > LEASES / 2, "it took the turns of {} leases", LEASES - held(&driver));
    waiting.abort();
}

/// A session ends at once, although a lock that it waits for has a lease whose turn is late: that
/// lease is settled with it.
#[tokio::test]
async fn a_session_ends_beside_a_lease_that_is_over() {
    let (clock, gated, driver) = shared(LEASES + 100);
    let id = service_kit::ids::session_id();
    let session = NewSession {
        session_id: id,
        owner: Owner::new("me").unwrap(),
        ttl: Ttl::from_ms(300_000).unwrap(),
        metadata: None,
        principal: None,
    };
    driver.create_session(session).await.unwrap();
    fill(&driver).await;
    driver.acquire(request("z", 0)).await.unwrap();
    let waits = Acquire { session: Some(id), ..request("z", 60_000) };
    let waiting = {
        let driver = driver.clone();
        spawn(async move { driver.acquire(waits).await })
    };
    until_queued(&driver, "z", 1).await;
    gated.gate.forget_permits(gated.gate.available_permits());
    clock.advance(35_000);
    let ending = {
        let driver = driver.clone();
        spawn(async move { driver.end_session(id).await })
    };
    until("the end", || {
        let_one_commit(&driver, &gated);
        ending.is_finished()
    })
    .await;
    ending.await.unwrap().unwrap();
    assert!(held(&driver) > LEASES / 2, "it took the turns of {} leases", LEASES - held(&driver));
    assert!(waiting.await.unwrap().is_err());
}
