//! Connections to the upstream that are used again, and origins that end or answer them at the
//! wrong moment.

use super::*;

impl World {
    /// A write whose reply the test gives.
    async fn answered(&mut self, token: u64, reply: impl FnOnce(Seen)) -> (Answer, usize) {
        let answer = self.send(Method::PUT, "/a", token);
        let seen = self.seen().await;
        let connection = seen.connection;
        reply(seen);
        (answer.await.unwrap(), connection)
    }
}

fn text(status: &str, header: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{header}content-length: 2\r\n\r\nok")
}

#[tokio::test]
async fn a_warm_connection_is_used_again() {
    let mut world = World::new(60_000).await;
    for _ in 0..3 {
        let (answer, connection) = world.answered(33, |seen| seen.reply("200 OK")).await;
        assert_eq!((answer.status, connection), (StatusCode::OK, 0));
    }
    let (_, connection) =
        world.answered(33, |seen| seen.raw(text("200 OK", "connection: close\r\n"))).await;
    assert_eq!(connection, 0);
    let (answer, connection) = world.answered(33, |seen| seen.reply("200 OK")).await;
    assert_eq!((answer.status, connection), (StatusCode::OK, 1), "its end was announced");
}

/// The body of their replies is empty, and is never polled.
#[tokio::test]
async fn replies_without_a_body_give_their_connection_back() {
    let mut world = World::new(60_000).await;
    for (method, reply) in [
        (Method::HEAD, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
        (Method::GET, "HTTP/1.1 204 No Content\r\n\r\n"),
        (Method::GET, "HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n"),
        (Method::GET, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let mut request = request(method, "/a", 33);
        *request.body_mut() = Body::empty();
        let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
        let seen = world.seen().await;
        assert_eq!(seen.connection, 0, "{}", seen.text);
        seen.raw(reply.to_owned());
        let answer = answer.await.unwrap();
        assert!(reply.contains(answer.status.as_str()), "{answer:?}");
        if reply.contains("length: 5") {
            assert_eq!(answer.headers["content-length"], "5", "of what a GET would reply");
        }
    }
}

#[tokio::test]
async fn without_idle_time_every_request_has_its_own_connection() {
    let mut world = World::with_idle(60_000, Duration::ZERO).await;
    for number in 0..3 {
        let (answer, connection) = world.answered(33, |seen| seen.reply("200 OK")).await;
        assert_eq!((answer.status, connection), (StatusCode::OK, number));
    }
}

#[tokio::test]
async fn a_connection_that_rested_for_too_long_carries_no_request() {
    let mut world = World::with_idle(60_000, Duration::from_millis(50)).await;
    let (_, first) = world.answered(33, |seen| seen.reply("200 OK")).await;
    let clock = std::sync::Arc::clone(&world.kit.clock);
    let begun_ms = clock.monotonic_ms();
    until(async || clock.monotonic_ms() > begun_ms + 60).await;
    let (answer, second) = world.answered(33, |seen| seen.reply("200 OK")).await;
    assert_eq!((answer.status, first, second), (StatusCode::OK, 0, 1));
}

/// Nothing was sent on the closed connection, so the outcome is the new one's.
#[tokio::test]
async fn a_connection_that_was_closed_at_rest_carries_no_request() {
    let mut world = World::new(60_000).await;
    let close = format!("{CLOSE_AFTER}\r\n");
    for number in 0..20 {
        let close = text("200 OK", &close);
        let (answer, connection) = world.answered(33, |seen| seen.raw(close)).await;
        assert_eq!((answer.status, connection), (StatusCode::OK, number));
    }
}

/// The event queue has not reported its end yet, so that only a probe of the socket finds it.
#[tokio::test]
async fn a_connection_that_was_closed_a_moment_ago_carries_no_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (close, may_close) = std::sync::mpsc::channel::<()>();
    let (closed, is_closed) = std::sync::mpsc::channel();
    let origin = std::thread::Builder::new().name("origin".to_owned());
    let serving = move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n\r\nhi") {
                let mut buffer = [0; 4096];
                let read = std::io::Read::read(&mut stream, &mut buffer).unwrap();
                seen.extend_from_slice(&buffer[..read]);
            }
            std::io::Write::write_all(&mut stream, text("200 OK", "").as_bytes()).unwrap();
            if may_close.recv().is_err() {
                return;
            }
            drop(stream);
            closed.send(()).unwrap();
        }
    };
    origin.spawn(serving).unwrap();
    let kit = Kit::new("test");
    let state = tempfile::tempdir().unwrap();
    let proxy = app(addr, state.path(), 60_000, &kit).await.proxy.unwrap().1;
    for _ in 0..3 {
        let answer = request_reply(proxy.clone(), request(Method::PUT, "/a", 33)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        close.send(()).unwrap();
        // Holds up the thread whose event queue it is.
        is_closed.recv().unwrap();
    }
}

/// The origin has read the request, or part of it, and closes: the outcome is unknown, and nothing
/// is sent again.
#[tokio::test]
async fn a_connection_that_closes_under_a_request_leaves_its_outcome_unknown() {
    let mut world = World::new(60_000).await;
    let (_, connection) = world.answered(33, |seen| seen.reply("200 OK")).await;
    let (answer, reused) = world.answered(33, drop).await;
    assert_eq!(connection, reused);
    assert_eq!(answer.code(), "outcome-unknown");
    let next = world.send(Method::PUT, "/a", 33).await.unwrap();
    assert_eq!(next.code(), "quarantined");
    assert!(world.seen.try_recv().is_err(), "it was sent again");
}

impl World {
    /// A request without a body, on the connection that the last one rests on.
    fn bare(&self, method: Method, path: &str) -> JoinHandle<Answer> {
        let mut request = request(method, path, 33);
        *request.body_mut() = Body::empty();
        self.kit.tasks.spawn(request_reply(self.proxy.clone(), request))
    }
}

/// The origin closes while a read is on its way, or says goodbye: the read is sent again. One that
/// the rules call a write is not.
#[tokio::test]
async fn a_read_without_a_byte_of_a_reply_is_sent_again() {
    let mut world = World::new(60_000).await;
    for (number, method) in [Method::GET, Method::HEAD, Method::OPTIONS].into_iter().enumerate() {
        let (_, rests) = world.answered(33, |seen| seen.reply("200 OK")).await;
        let read = world.bare(method.clone(), "/a");
        let first = world.seen().await;
        assert_eq!(first.connection, rests, "{method}");
        if number == 1 {
            first.raw("HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n".to_owned());
        } else {
            drop(first);
        }
        let again = world.seen().await;
        assert_ne!(again.connection, rests, "{method}");
        again.raw("HTTP/1.1 204 No Content\r\n\r\n".to_owned());
        assert_eq!(read.await.unwrap().status, StatusCode::NO_CONTENT, "{method}");
    }
    // A part of a reply is one.
    world.answered(33, |seen| seen.reply("200 OK")).await;
    let read = world.bare(Method::GET, "/a");
    world.seen().await.raw(format!("HTTP/1.1 200 OK\r\n{CLOSE_AFTER}\r\n"));
    assert_eq!(read.await.unwrap().code(), "upstream-unavailable");
    // So is a first request that fails.
    let read = world.bare(Method::GET, "/a");
    drop(world.seen().await);
    assert_eq!(read.await.unwrap().code(), "upstream-unavailable");
    world.answered(33, |seen| seen.reply("200 OK")).await;
    let write = world.bare(Method::GET, "/next/1");
    drop(world.seen().await);
    assert_eq!(write.await.unwrap().code(), "outcome-unknown");
    assert!(world.seen.try_recv().is_err(), "it was sent again");
}

/// Keys beyond the grammar of names, and the one spelling in which the upstream gets each.
#[tokio::test]
async fn the_upstream_gets_the_canonical_path() {
    let mut world = World::new(60_000).await;
    for (path, sent) in [
        ("/public/a=b%20c+d@e~f", "/public/a%3Db%20c%2Bd%40e~f"),
        ("/public/100%25/%C3%a9?x=%2f+y", "/public/100%25/%C3%A9?x=%2f+y"),
    ] {
        let read = world.bare(Method::GET, path);
        let seen = world.seen().await;
        assert!(seen.text.starts_with(&format!("GET {sent} HTTP/1.1\r\n")), "{}", seen.text);
        seen.reply("200 OK");
        assert_eq!(read.await.unwrap().status, StatusCode::OK);
    }
    for path in ["/public/a%2Fb", "/public/a%3Fb", "/public/a%5cb", "/public/a;b", "/public//a"] {
        let answer = world.bare(Method::GET, path).await.unwrap();
        assert_eq!(answer.code(), "invalid-request", "{path}");
    }
    // The lock of a key is its own name, or made from a part of it.
    let answer = world.bare(Method::GET, "/a=b").await.unwrap();
    assert!(answer.text.contains("matches no rule, and is no lock name itself"), "{}", answer.text);
}

/// Servers send 408 to connections at rest before they close them.
#[tokio::test]
async fn a_time_out_of_the_connection_is_no_reply_to_the_request() {
    let mut world = World::new(60_000).await;
    let timed_out = || text("408 Request Timeout", "connection: close\r\n");
    let (answer, _) = world.answered(33, |seen| seen.raw(timed_out())).await;
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT, "on a new connection it is one");
    world.answered(33, |seen| seen.reply("200 OK")).await;
    let (answer, _) = world.answered(33, |seen| seen.raw(timed_out())).await;
    assert_eq!(answer.code(), "outcome-unknown");
}

#[tokio::test]
async fn a_second_reply_is_given_to_no_other_request() {
    let mut world = World::new(60_000).await;
    let twice = format!("{}{}", text("200 OK", ""), text("201 Created", ""));
    let (answer, first) = world.answered(33, |seen| seen.raw(twice)).await;
    assert_eq!(answer.status, StatusCode::OK);
    let (answer, second) = world.answered(33, |seen| seen.reply("204 No Content")).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_ne!(first, second);
}

/// Framing that two readers could take differently is no reply.
#[tokio::test]
async fn replies_with_bad_framing_leave_the_outcome_unknown() {
    for bad in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok!",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\nx-close-after: 1\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-close-after: 1\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-close-after: 1\r\n\r\n2\r\nok\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        "nonsense\r\n\r\n",
    ] {
        let mut world = World::new(60_000).await;
        let (answer, _) = world.answered(33, |seen| seen.raw(bad.to_owned())).await;
        assert_eq!(answer.code(), "outcome-unknown", "{bad:?}");
    }
}

/// A redirect is the client's to follow, with a token for where it leads.
#[tokio::test]
async fn redirects_are_passed_on() {
    let mut world = World::new(60_000).await;
    let redirect = text("307 Temporary Redirect", "location: /b\r\n");
    let (answer, _) = world.answered(33, |seen| seen.raw(redirect)).await;
    assert_eq!(answer.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(answer.headers["location"], "/b");
    assert!(world.seen.try_recv().is_err(), "it was followed");
}
