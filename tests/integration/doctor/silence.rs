//! Servers that do not reply, and those that are not there: each has a remedy of its own.

use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;

use super::{about, doctor};

#[tokio::test]
async fn a_paused_server_is_distinguished_from_an_absent_one() {
    let server = Setup::lock_server("memory:").start().await;
    server.process.pause();
    let (code, checks) = doctor(&["--server", &server.base]).await;
    assert_eq!(code, 69, "{checks:?}");
    let (verdict, text) = about(&checks, "lock-server");
    assert_eq!(verdict, "failing");
    assert!(text.contains("does not reply within 5 s") && text.contains("its log"), "{text}");
    assert!(!text.contains("start it"), "{text}");
    server.process.resume();

    let absent = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    let (code, checks) = doctor(&["--server", &absent]).await;
    assert_eq!(code, 69, "{checks:?}");
    let text = about(&checks, "lock-server").1;
    assert!(text.contains("Connection refused (os error 111)"), "{text}");
    assert!(text.contains("start it, or check the address"), "{text}");
}

/// A port of another protocol is neither.
#[tokio::test]
async fn a_server_of_another_protocol_is_named_so() {
    let redis = Redis::start().await;
    let (code, checks) = doctor(&["--server", &format!("http://{}", redis.address())]).await;
    assert_eq!(code, 69, "{checks:?}");
    let text = about(&checks, "lock-server").1;
    assert!(text.contains("no HTTP reply") && text.contains("check the address"), "{text}");
}

#[tokio::test]
async fn a_paused_redis_has_a_remedy() {
    let redis = Redis::start().await;
    redis.process().pause();
    let with_login = format!("redis://:x@{}", redis.address());
    for url in [redis.url(), with_login] {
        let (code, checks) = doctor(&["--redis", &url]).await;
        assert_eq!(code, 69, "{checks:?}");
        let (verdict, text) = about(&checks, "redis");
        assert_eq!(verdict, "failing");
        assert!(text.contains("does not reply") && text.contains("look at its process"), "{text}");
        assert!(!text.contains("Start it"), "{text}");
    }
    redis.process().resume();
}
