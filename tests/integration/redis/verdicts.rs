//! The configuration of Redis is judged, at start and while running.

use fence_tests::redis_server::Redis;
use fence_tests::servers::Server;
use fence_tests::wait::until_true;

use super::lock_server;

async fn verbose(server: &Server) -> String {
    let reply = server.locks().0.get("/readyz?verbose").await;
    String::from_utf8_lossy(&reply.body).into_owned()
}

#[tokio::test]
async fn a_durable_redis_has_no_warning() {
    let redis = Redis::start().await;
    let server = lock_server(&redis).await;
    until_true("no warning", || async {
        let text = verbose(&server).await;
        text.contains("[+]") && !text.contains("[!]") && !text.contains("[-]")
    })
    .await;
}

#[tokio::test]
async fn what_would_forget_is_warned_of_at_start() {
    for (name, value) in [
        ("appendonly", "no"),
        ("appendfsync", "everysec"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("maxmemory-policy", "allkeys-lru"),
    ] {
        let redis = Redis::with(&[(name, value)]).await;
        let server = lock_server(&redis).await;
        until_true(&format!("a warning of {name} {value}"), || async {
            verbose(&server)
                .await
                .lines()
                .any(|line| line.starts_with("[!]") && line.contains(name))
        })
        .await;
        assert_eq!(server.locks().0.get("/readyz").await.status, 200, "{name}: a warning only");
    }
}

#[tokio::test]
async fn what_changes_while_running_is_seen() {
    let redis = Redis::start().await;
    let server = fence_tests::servers::Setup::lock_server(&redis.url()).start().await;
    let _: () = redis.run(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    until_true("a warning", || async { verbose(&server).await.contains("maxmemory-policy") }).await;
    let _: () = redis.run(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    until_true("the warning to go", || async {
        !verbose(&server).await.contains("maxmemory-policy")
    })
    .await;
}
