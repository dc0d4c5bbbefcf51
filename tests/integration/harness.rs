//! The tools themselves, over something real.

use std::time::Duration;

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::redis_server::Redis;
use fence_tests::wait::until_true;
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn redis_keeps_what_it_answered_over_kill_9() {
    let mut redis = Redis::start().await;
    let _: () = redis.run(&["SET", "a", "1"]).await;
    redis.kill();
    redis.start_again().await;
    let value: String = redis.run(&["GET", "a"]).await;
    assert_eq!(value, "1");
}

#[tokio::test]
async fn a_dropped_reply_was_applied() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let mut stream = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Fault::DropReplies);
    stream.write_all(b"INCR n\r\n").await.unwrap();
    until_true("a swallowed reply", || async { proxy.dropped() > 0 }).await;
    let n: u64 = redis.run(&["GET", "n"]).await;
    assert_eq!(n, 1);
    let nothing = tokio::time::timeout(Duration::from_millis(50), stream.readable()).await;
    assert!(nothing.is_err(), "the reply came through");
    proxy.cut();
    tokio::time::timeout(Duration::from_secs(20), stream.readable()).await.unwrap().unwrap();
}
