//! Leases whose server has become unreachable.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use fence_protocol::Ttl;

use super::*;
use crate::ids;
use crate::limits::Limits;

/// An address on which no process listens.
const NOWHERE: &str = "http://127.0.0.1:1";

/// A lease whose server has become unreachable.
fn orphaned(ttl_ms: u64, store: &str) -> Lease {
    orphaned_under(ttl_ms, store, Limits::default())
}

fn orphaned_under(ttl_ms: u64, store: &str, limits: Limits) -> Lease {
    let client = Client::builder().lock_server(NOWHERE).fenced_store(store).build().unwrap();
    let lock = LockName::new("a").unwrap();
    let lease_id = ids::lease_id();
    let header = format!("7;lock=\"a\";lease=\"{lease_id}\"");
    let token: fence_protocol::FencingToken = header.parse().unwrap();
    let grant = LeaseReply {
        fencing_credential: token.credential(),
        fencing_token: header,
        lock,
        lease_id,
        mode: Default::default(),
        token: Token::new(7).unwrap(),
        ttl_ms,
        owner: client.owner().clone(),
        waited_ms: 0,
    };
    let window = Window::new(clock::now(), ttl_ms);
    let ttl = Ttl::from_ms(ttl_ms).unwrap();
    let spec = Spec { ttl, limits, ..Spec::new(&client, grant.lock.clone()) };
    Lease::begin(client, grant, window, spec)
}

#[tokio::test]
async fn debug_output_has_no_credential() {
    let signature = "MGHm16chho4qIp830493S42w7uOFrokcQIib_GcABA0";
    let mut lease = orphaned(3_000, NOWHERE);
    lease.grant.fencing_credential = format!("fc1_MTts.{signature}");
    lease.grant.fencing_token = format!("7;lock=\"a\";sig=:{signature}:");
    let shown = format!("{lease:?} {lease:#?} {:?}", lease.grant);
    assert!(shown.contains("token: Token(7)") && !shown.contains(signature), "{shown}");
    let header = format!(
        "7;lock=\"a\";lease=\"{}\";kid=\"k1\";sig=:MGHm16chho4qIp830493S42w7uOFrokcQIib/GcABA0=:",
        lease.grant.lease_id
    );
    let handed = crate::HandedToken::new(header).unwrap();
    let shown = format!("{handed:?}");
    assert!(
        shown.contains("k1") && !shown.contains("MGHm") && !shown.contains("48, 97"),
        "{shown}"
    );
}

const LOST: ErrorKind = ErrorKind::LeaseLost { reason: LostReason::Deadline };

#[tokio::test]
async fn an_unreachable_server_means_lost_at_the_deadline_and_the_work_is_dropped() {
    struct Dropped<'a>(&'a AtomicBool);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = AtomicBool::new(false);
    let lease = orphaned(3_000, NOWHERE);
    let deadline = lease.deadline();
    let outcome = lease
        .run(async |_| {
            let _work = Dropped(&dropped);
            std::future::pending::<()>().await;
        })
        .await;
    assert_eq!(*outcome.unwrap_err().kind(), LOST);
    assert!(clock::now() >= deadline);
    assert!(dropped.load(Ordering::SeqCst));
}

/// Pending once, and woken at once: the next poll comes before any timer or other task.
async fn next_step() {
    let mut is_first = true;
    poll_fn(|context| {
        if std::mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn work_that_slept_through_the_deadline_takes_no_further_step() {
    let resumed = Arc::new(AtomicBool::new(false));
    let lease = orphaned(100, NOWHERE);
    let seen = Arc::clone(&resumed);
    // Simulates a stopped process: no timer and no other task runs meanwhile.
    let work = lease.run(async move |lease| {
        while clock::now() < lease.deadline() {
            std::hint::spin_loop();
        }
        next_step().await;
        seen.store(true, Ordering::SeqCst);
    });
    let outcome = tasks::spawn(work).await.unwrap();
    assert_eq!(*outcome.unwrap_err().kind(), LOST);
    assert!(!resumed.load(Ordering::SeqCst));
}

#[tokio::test]
async fn work_that_ended_after_the_deadline_is_not_called_a_success() {
    let outcome = orphaned(100, NOWHERE)
        .run(async |lease| {
            while clock::now() < lease.deadline() {
                std::hint::spin_loop();
            }
        })
        .await;
    assert_eq!(*outcome.unwrap_err().kind(), LOST);
}

#[tokio::test]
async fn a_fenced_call_with_a_lost_lease_sends_nothing() {
    let store = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let lease = orphaned(50, &format!("http://{}", store.local_addr().unwrap()));
    let was_called = Arc::new(AtomicBool::new(false));
    let called = Arc::clone(&was_called);
    let _store = tasks::spawn_until_dropped(async move {
        while store.accept().await.is_ok() {
            called.store(true, Ordering::SeqCst);
        }
    });
    assert_eq!(lease.lost().await, LostReason::Deadline);
    assert_eq!(lease.remaining(), Duration::ZERO);
    let lock = lease.lock().clone();
    let put = lease.objects().put(&lease, "a", "late").await.unwrap_err();
    let get = lease.objects().get(&lease, "a").await.unwrap_err();
    let delete = lease.objects().delete(&lease, "a").await.unwrap_err();
    let seal = lease.objects().seal(&lease, &lock).await.unwrap_err();
    for error in [put, get, delete, seal] {
        assert_eq!(*error.kind(), LOST);
    }
    assert!(!was_called.load(Ordering::SeqCst));
}

/// Runs the watch with the real clock; the tests of the rules use a manual one.
#[tokio::test]
async fn work_that_reports_continues_and_work_that_hangs_is_dropped() {
    let within = Duration::from_secs(3);
    let limits = Limits {
        progress_within: Some(within),
        warn_before: Some(Duration::from_millis(2900)),
        max_hold: None,
    };
    let lease = orphaned_under(60_000, NOWHERE, limits);
    let mut warnings = lease.warnings();
    let mut warned = Vec::new();
    for _ in 0..3 {
        let warning = warnings.next().await;
        warned.push(warning.ends_at);
        assert_eq!(warning.reason, LostReason::NoProgress { within });
        lease.report_progress().unwrap();
    }
    assert!(warned.is_sorted() && warned[0] < warned[2], "{warned:?}");
    let outcome = lease.run(async |_| std::future::pending::<()>().await).await;
    let reason = LostReason::NoProgress { within };
    assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::LeaseLost { reason });
}

#[tokio::test]
async fn nothing_is_held_for_longer_than_allowed() {
    let max = Duration::from_millis(50);
    let limits = Limits { max_hold: Some(max), ..Limits::default() };
    let lease = orphaned_under(60_000, NOWHERE, limits);
    assert_eq!(lease.lost().await, LostReason::HeldTooLong { max });
    let refused = lease.report_progress().unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::LeaseLost { reason: LostReason::HeldTooLong { max } });
    assert_eq!(lease.remaining(), Duration::ZERO);
}

#[test]
fn dropping_outside_of_the_runtime_does_not_panic_or_block() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lease = runtime.block_on(async { orphaned(60_000, NOWHERE) });
    drop(lease);
    let late = runtime.block_on(async { orphaned(60_000, NOWHERE) });
    drop(runtime);
    drop(late);
}
