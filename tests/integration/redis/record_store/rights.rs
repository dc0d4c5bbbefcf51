//! The least rights of a user.

use fence_tests::conformance::record_store;

use super::*;

/// Every right that the error names, and no other command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_that_the_error_names_are_enough() {
    let redis = Redis::start().await;
    // What is not needed: the settings are judged where they may be read.
    let setup = ["ACL", "SETUSER", "locks", "reset", "on", ">s3cret", "+eval", "+config|get"];
    let _: () = redis.run(&setup).await;
    let url = format!("redis://locks:s3cret@{}", redis.address());
    // Rights to commands are named once those to the keys are there.
    for _ in 0..2 {
        let error = open(&url, AfterLoss::Wait).await.unwrap_err();
        let (_, command) = error.split_once("; run ").unwrap();
        let command: Vec<&str> = command.split(' ').collect();
        let _: () = redis.run(&command).await;
    }
    let _: redis::Value = redis.run(&["ACL", "LOG", "RESET"]).await;
    let one: Store = Arc::new(open(&url, AfterLoss::Grant).await.unwrap());
    let two: Store = Arc::new(open(&url, AfterLoss::Grant).await.unwrap());
    let servers = (one, two);
    record_store::it_does_what_the_reference_does(&servers).await;
    record_store::a_later_write_decides_when_it_is_forgotten(&servers).await;
    record_store::live_servers_know_each_other(&servers).await;
    record_store::servers_are_notified(&servers).await;
    record_store::a_mark_is_exceeded(&servers).await;
    must_put(&servers.0, Version::ABSENT, put(&record_store::session(), "x")).await;
    assert_eq!(servers.0.sessions(None, 1).await.unwrap().0.len(), 1);
    let refused: Vec<redis::Value> = redis.run(&["ACL", "LOG"]).await;
    assert_eq!(refused, []);
}
