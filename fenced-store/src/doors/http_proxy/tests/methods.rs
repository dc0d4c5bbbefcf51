//! Requests whose rule names their methods.

use http::{Method, StatusCode};

use super::World;

#[tokio::test]
async fn a_post_that_only_reads_leaves_no_unknown_outcome_and_a_get_that_writes_does() {
    let mut world = World::new(60_000).await;
    let search = world.send(Method::POST, "/search/x", 33);
    let seen = world.seen().await;
    assert!(seen.text.ends_with("\r\n\r\nhi"), "{}", seen.text);
    drop(seen);
    assert_eq!(search.await.unwrap().code(), "upstream-unavailable");
    let put = world.send(Method::PUT, "/a", 33);
    world.seen().await.reply("200 OK");
    assert_eq!(put.await.unwrap().status, StatusCode::OK);

    // Without its option it would change something, by its method.
    let next = world.send(Method::GET, "/next/x", 33);
    drop(world.seen().await);
    assert_eq!(next.await.unwrap().code(), "outcome-unknown");
    assert_eq!(world.send(Method::PUT, "/a", 33).await.unwrap().code(), "quarantined");
}

#[tokio::test]
async fn a_rule_for_reads_does_not_open_writes() {
    let mut world = World::new(60_000).await;
    let read = world.send(Method::GET, "/pages/x", 0);
    world.seen().await.reply("200 OK");
    assert_eq!(read.await.unwrap().status, StatusCode::OK);
    assert_eq!(world.send(Method::PUT, "/pages/x", 0).await.unwrap().code(), "token-required");
    assert_eq!(world.send(Method::PUT, "/pages/x", 33).await.unwrap().code(), "wrong-lock");
}
