//! Replies that no well-behaved origin sends: endless, too early, or of the wrong kind.

use super::*;
use crate::doors::http::body_budget::BodyBudget;
use crate::doors::http_proxy::body::{ReceivedReply, ReplyLimits};

/// Gives this reply to a write of 33, which has no known outcome then.
async fn leaves_an_unknown_outcome(reply: String) {
    let mut world = World::new(60_000).await;
    let answer = world.send(Method::PUT, "/a", 33);
    world.seen().await.raw(reply.clone());
    let answer = answer.await.unwrap();
    assert_eq!(answer.code(), "outcome-unknown", "{:.80}", reply);
    let next = world.send(Method::PUT, "/a", 34).await.unwrap();
    assert_eq!(next.code(), "quarantined", "{:.80}", reply);
}

#[tokio::test]
async fn interim_replies_are_no_replies_however_many() {
    let mut world = World::new(60_000).await;
    let answer = world.send(Method::PUT, "/a", 33);
    let seen = world.seen().await;
    let higher = world.send(Method::PUT, "/a", 34);
    world.mark_is(34).await;
    let interim = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\n";
    let done = "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n";
    seen.raw(interim.repeat(5_000) + done);
    let answer = answer.await.unwrap();
    assert_eq!(answer.status, StatusCode::CREATED);
    assert!(!answer.headers.contains_key("link"), "{:?}", answer.headers);
    world.seen().await.reply("200 OK");
    assert_eq!(higher.await.unwrap().status, StatusCode::OK);
    leaves_an_unknown_outcome(interim.repeat(3) + CLOSE_AFTER).await;
}

#[tokio::test]
async fn heads_of_replies_are_bounded() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n";
    // The first never ends, the second has one huge header, the third too many.
    leaves_an_unknown_outcome(format!("{head}{}", "x-more: 1\r\n".repeat(100_000))).await;
    leaves_an_unknown_outcome(format!("{head}x-huge: {}\r\n\r\n", "x".repeat(1 << 20))).await;
    leaves_an_unknown_outcome(format!("{head}{}\r\n", "x-more: 1\r\n".repeat(5_000))).await;
}

/// The origin did not make them. 503 is in the test's settings, 500 and 429 are its own.
#[tokio::test]
async fn replies_of_gateways_leave_an_unknown_outcome() {
    for status in [502, 503, 504, 520, 524, 527] {
        let head = format!("HTTP/1.1 {status} From the gateway\r\n");
        leaves_an_unknown_outcome(head + "content-length: 0\r\n\r\n").await;
    }
    let mut world = World::new(60_000).await;
    for status in ["429 Slow down", "500 Oops", "519 Own", "528 Own"] {
        let answer = world.send(Method::PUT, "/a", 33);
        world.seen().await.reply(status);
        assert_eq!(answer.await.unwrap().status.as_str(), &status[..3]);
    }
}

/// These replies end with their heads.
#[tokio::test]
async fn bytes_behind_a_reply_belong_to_no_request() {
    let mut world = World::new(60_000).await;
    for reply in [
        "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let answer = world.send(Method::PUT, "/a", 33);
        world.seen().await.raw(reply.to_owned());
        let answer = answer.await.unwrap();
        assert!(reply.contains(answer.status.as_str()), "{reply}: {answer:?}");
        let next = world.send(Method::PUT, "/a", 33);
        world.seen().await.reply("200 OK");
        let next = next.await.unwrap();
        assert_eq!((next.status, next.text.as_str()), (StatusCode::OK, "ok"), "{reply}");
    }
}

/// The guard asks for no permission to send a body, because it has it already.
#[tokio::test]
async fn a_refused_expectation_is_passed_on() {
    let mut world = World::new(60_000).await;
    let mut request = request(Method::PUT, "/a", 33);
    request.headers_mut().insert("expect", "100-continue".parse().unwrap());
    let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    let seen = world.seen().await;
    assert!(!seen.text.contains("expect"), "{}", seen.text);
    seen.reply("417 Expectation Failed");
    assert_eq!(answer.await.unwrap().status, StatusCode::EXPECTATION_FAILED);
    let higher = world.send(Method::PUT, "/a", 34);
    world.seen().await.reply("200 OK");
    assert_eq!(higher.await.unwrap().status, StatusCode::OK);
}

/// Its head and end say what became of the write. The client sees that the body is a part.
#[tokio::test]
async fn the_outcome_of_a_write_is_known_though_its_reply_has_no_room() {
    let mut world = World::new(60_000).await;
    let router = world.proxy.clone();
    let put = request(Method::PUT, "/a", 33);
    let answer = world.kit.tasks.spawn(TowerToHyperService::new(router).call(put));
    let length = (16 << 20) + 1;
    let head = format!("HTTP/1.1 201 Created\r\netag: \"a\"\r\ncontent-length: {length}\r\n\r\n");
    world.seen().await.raw(head + &"x".repeat(length));
    let (head, body) = answer.await.unwrap().unwrap().into_parts();
    assert_eq!(head.status, StatusCode::CREATED);
    assert_eq!(head.headers["etag"], "\"a\"");
    assert!(body.collect().await.is_err(), "the client takes the part for the whole");
    let next = world.send(Method::PUT, "/a", 34);
    world.seen().await.reply("200 OK");
    assert_eq!(next.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn replies_to_writes_count_in_the_budget_until_they_are_sent() {
    const MIB: usize = 1 << 20;
    let limits = ReplyLimits { bytes_max: MIB, budget: BodyBudget::new(2 * MIB, MIB) };
    let received = |bytes| {
        let mut received = ReceivedReply::new(&limits);
        received.push(vec![b'x'; bytes / 2].into());
        received.push(vec![b'x'; bytes / 2].into());
        received
    };
    let first = received(MIB).finish();
    let second = received(MIB);
    assert!(second.is_cut(), "no limit counts the memory of replies");
    assert!(second.finish().collect().await.is_err());
    // Small ones have a share of their own.
    assert_eq!(received(32 << 10).finish().collect().await.unwrap().to_bytes().len(), 32 << 10);
    assert_eq!(first.collect().await.unwrap().to_bytes().len(), MIB);
    assert!(!received(MIB).is_cut(), "what was sent still counts");
    assert!(received(MIB + 2).is_cut());
}
