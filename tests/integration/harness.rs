//! The tools themselves, over something real.

use std::time::Duration;

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::redis_server::Redis;
use fence_tests::wait::{soon, until_true};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn redis_keeps_what_it_answered_over_kill_9() {
    let mut redis = Redis::start().await;
    let _: () = redis.run(&["SET", "a", "1"]).await;
    redis.kill();
    redis.start_again().await;
    let value: String = redis.run(&["GET", "a"]).await;
    assert_eq!(value, "1");
}

/// A filter that names no test must not pass.
#[test]
fn a_phase_without_tests_is_a_failure() {
    let folder = tempfile::TempDir::new().unwrap();
    let log = folder.path().join("log");
    let counts = folder.path().join("counts");
    let ran = "test result: ok. 3 passed; 0 failed; 0 ignored; finished in 0.1s";
    std::fs::write(&log, format!("== units\n{ran}\n== renamed\n")).unwrap();
    let summary = concat!(env!("CARGO_MANIFEST_DIR"), "/summary.py");
    let output = std::process::Command::new(summary)
        .arg(&counts)
        .stdin(std::fs::File::open(&log).unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("renamed: no test ran"), "{text}");
    assert_eq!(std::fs::read_to_string(&counts).unwrap(), "3 1\n");
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
    // TCP has no holes: without the first reply there is no second one, whatever fault is next.
    proxy.set(Fault::Delay(Duration::from_millis(1)));
    stream.write_all(b"INCR n\r\n").await.unwrap();
    until_true("the second request", || async { redis.run::<u64>(&["GET", "n"]).await == 2 }).await;
    let nothing = tokio::time::timeout(Duration::from_millis(50), stream.readable()).await;
    assert!(nothing.is_err(), "the second reply came through");
    proxy.cut();
    soon("the cut", stream.readable()).await.unwrap();
}

/// A fault tool that hurts nothing would let every test of faults pass.
#[tokio::test]
async fn every_fault_hurts_and_ends() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let mut stream = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    let silent = Duration::from_millis(50);
    proxy.set(Fault::Blackhole);
    stream.write_all(b"INCR n\r\n").await.unwrap();
    assert!(tokio::time::timeout(silent, stream.readable()).await.is_err(), "not black");
    assert_eq!(redis.run::<u64>(&["EXISTS", "n"]).await, 0, "the request came through");
    proxy.set(Fault::None);
    let mut reply = [0; 4];
    soon("the held request", stream.read_exact(&mut reply)).await.unwrap();
    assert_eq!(&reply, b":1\r\n");
    proxy.set(Fault::Refuse);
    assert_eq!(soon("the cut", stream.read(&mut reply)).await.unwrap_or(0), 0, "not cut");
    let mut refused = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(soon("the refusal", refused.read(&mut reply)).await.unwrap_or(0), 0, "not refused");
}

/// A client that is not cut off must not be hurt, or a split network would be a dead one.
#[tokio::test]
async fn a_fault_hurts_whom_it_names_alone() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let connect = async |source: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
        socket.connect(proxy.address().parse().unwrap()).await.unwrap()
    };
    let mut named = connect("127.0.0.2").await;
    let mut other = connect("127.0.0.3").await;
    proxy.set_from("127.0.0.2".parse().unwrap(), Fault::Blackhole);
    let mut reply = [0; 4];
    named.write_all(b"INCR n\r\n").await.unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(50), named.readable()).await;
    assert!(silent.is_err(), "not cut off");
    other.write_all(b"INCR n\r\n").await.unwrap();
    soon("the other's reply", other.read_exact(&mut reply)).await.unwrap();
    assert_eq!(&reply, b":1\r\n", "the held request came first");
    proxy.heal();
    soon("the held request", named.read_exact(&mut reply)).await.unwrap();
    assert_eq!(&reply, b":2\r\n");
}
