//! Old holders that stall, vanish or hammer, directly at the server: the seal ends what they have
//! open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::postgres_client::PostgresClient;
use fence_tests::psql::DONE;
use fence_tests::wait::until_true;

use super::race::session;
use super::*;

/// A machine that is gone closes no connection: the server has its transaction open still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_machine_vanished_is_rolled_back() {
    let server = installed().await;
    for fault in [None, Some(Fault::Blackhole), Some(Fault::DropReplies)] {
        let proxy = FaultProxy::before(&server.address()).await;
        let token = server.sql("select coalesce(max(token), 0) + 1 from fence.marks").await;
        let token: u64 = token.parse().unwrap();
        let mut old = session(&proxy.address()).await;
        old.query("begin").await.unwrap();
        old.query(&enter("docs/1", token, OLD)).await.unwrap();
        old.query("update docs set v = 'old' where id = 1").await.unwrap();
        match fault {
            Some(fault) => proxy.set(fault),
            None => proxy.strand(),
        }
        let open = "select count(*) from pg_stat_activity where state = 'idle in transaction'";
        assert_eq!(server.sql(open).await, "1");
        assert_eq!(app(&server).run(&seal("docs/1", token + 1, NEW, 1)).await, DONE);
        assert_eq!(server.sql(open).await, "0");
        old.send(&fence_tests::postgres_client::frame(b'Q', b"commit\0")).await;
        proxy.heal();
        if fault.is_some() {
            assert!(old.rows().await.is_err());
        }
        assert_eq!(document(&server).await, "first");
    }
}

/// Transactions of a stale holder's pool overlap, and none stalls: those that have begun may end,
/// and no more enter once a seal waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_pool_does_not_keep_a_seal_waiting() {
    let server = installed().await;
    assert_eq!(app(&server).run(&seal("docs/1", 33, OLD, 1)).await, DONE);
    let is_over = Arc::new(AtomicBool::new(false));
    let entered = Arc::new(AtomicUsize::new(0));
    let pool: Vec<_> = (0..8)
        .map(|_| {
            let address = server.address();
            tokio::spawn(work(address, is_over.clone(), entered.clone()))
        })
        .collect();
    until_true("the pool to work", || async { entered.load(Ordering::SeqCst) > 50 }).await;
    assert_eq!(app(&server).run(&seal("docs/1", 34, NEW, 30_000)).await, DONE);
    is_over.store(true, Ordering::SeqCst);
    for client in pool {
        // Refused, and not ended.
        assert_eq!(client.await.unwrap(), "FE412");
    }
}

/// Transactions one after the other, each long enough to overlap with the others'. Returns the
/// error that ends them.
async fn work(address: String, is_over: Arc<AtomicBool>, entered: Arc<AtomicUsize>) -> String {
    let mut client: PostgresClient = session(&address).await;
    loop {
        let is_late = is_over.load(Ordering::SeqCst);
        client.query("begin").await.unwrap();
        if let Err(error) = client.query(&enter("docs/1", 33, OLD)).await {
            return error.code().to_owned();
        }
        assert!(!is_late, "entered after the seal");
        entered.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = client.query("select pg_sleep(0.03)").await {
            return error.code().to_owned();
        }
        client.query("commit").await.unwrap();
    }
}

/// An application may use advisory locks, which may look like the token of a transaction.
#[tokio::test]
async fn an_advisory_lock_of_the_application_hides_no_holder() {
    let server = installed().await;
    let bits = server.sql("select hashtextextended('default docs/1', 6497) & 16383").await;
    let mut old = app(&server);
    assert_eq!(old.run(&seal("docs/1", 33, OLD, 1)).await, DONE);
    let own = format!(
        "select pg_advisory_xact_lock(({bits}::bit(14) || 7::bit(18))::bit(32)::integer, 7);"
    );
    assert_eq!(old.run(&format!("begin; {own} {}", enter("docs/1", 33, OLD))).await, DONE);
    assert_eq!(app(&server).run(&seal("docs/1", 34, NEW, 1)).await, DONE);
    assert_eq!(document(&server).await, "first");
}

/// A transaction that has entered does not wait for the seal that waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_may_enter_again_while_a_seal_waits() {
    let server = installed().await;
    let mut old = app(&server);
    let mut new = app(&server);
    assert_eq!(old.run(&seal("docs/1", 33, OLD, 1)).await, DONE);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    let waits = new.send(&seal("docs/1", 34, NEW, 30_000));
    let waiting = "select count(*) > 0 from pg_locks where not granted";
    until_true("the seal to wait", || async { server.sql(waiting).await == "t" }).await;
    // Another one waits behind the seal, and is stale then.
    let mut other = app(&server);
    let queued = other.send(&enter("docs/1", 33, OLD));
    let two = "select count(*) > 1 from pg_locks where not granted";
    until_true("the other one to wait", || async { server.sql(two).await == "t" }).await;
    assert_eq!(old.run(&enter("docs/1", 33, OLD)).await, DONE);
    assert_eq!(old.run("update docs set v = 'old' where id = 1; commit;").await, DONE);
    assert_eq!(new.result(waits).await, DONE);
    assert_eq!(other.result(queued).await, "FE412");
    assert_eq!(document(&server).await, "old");
}

/// A prepared transaction has no session to end, and outlives a restart: it holds its mark, and the
/// seal names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_holds_its_mark_until_it_is_resolved() {
    let mut server = installed_with(&[("max_prepared_transactions", "2")], &pack::sql()).await;
    for (resolve, expected) in [("rollback", "first"), ("commit", "old")] {
        let token = if resolve == "rollback" { 33 } else { 43 };
        let mut old = app(&server);
        assert_eq!(old.run(&seal("docs/1", token, OLD, 1)).await, DONE);
        assert_eq!(old.run(&format!("begin; {}", enter("docs/1", token, OLD))).await, DONE);
        assert_eq!(old.run("update docs set v = 'old' where id = 1;").await, DONE);
        assert_eq!(old.run("prepare transaction 'stale one';").await, DONE);
        drop(old);
        server.kill();
        server.start_again().await;
        let mut new = app(&server);
        assert_eq!(new.run(&seal("docs/1", token + 1, NEW, 1)).await, "55P03");
        assert!(new.process().stderr().contains("prepared transactions: 'stale one'"));
        assert_eq!(document(&server).await, "first");
        server.sql(&format!("{resolve} prepared 'stale one'")).await;
        assert_eq!(new.run(&seal("docs/1", token + 1, NEW, 1)).await, DONE);
        assert_eq!(document(&server).await, expected);
    }
}
