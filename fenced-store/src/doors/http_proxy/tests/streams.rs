//! Bodies that are longer than what is received before the lane is entered.

use futures_util::stream::unfold;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::*;

/// A request of token 33 whose body comes from a channel, and the length that it states.
fn streamed(
    length: Option<usize>,
) -> (Request<Body>, mpsc::Sender<Result<bytes::Bytes, std::io::Error>>) {
    let (sender, receiver) = mpsc::channel(1);
    let body = unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let mut request = request(Method::PUT, "/a", 33).map(|_| Body::from_stream(body));
    if let Some(length) = length {
        request.headers_mut().insert("content-length", length.into());
    }
    (request, sender)
}

/// An upstream that shows the bytes as they come.
async fn raw_upstream() -> (TcpListener, World) {
    let world = World::new(60_000).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let state = tempfile::tempdir().unwrap();
    let app = app(addr, state.path(), 60_000, &world.kit).await;
    (listener, World { state, addr, proxy: app.proxy.unwrap().1, api: app.router, ..world })
}

/// Returns the next connection; without one, the test fails rather than hangs.
async fn accepted(listener: &TcpListener) -> (OwnedReadHalf, OwnedWriteHalf) {
    let patience = Duration::from_secs(30);
    let accepted = tokio::time::timeout(patience, listener.accept()).await;
    accepted.expect("nothing was forwarded").unwrap().0.into_split()
}

/// Reads until so many bytes have come; returns what came.
async fn read(stream: &mut OwnedReadHalf, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while all.len() < bytes {
        let read = stream.read(&mut buffer);
        let read = tokio::time::timeout(Duration::from_secs(30), read).await.expect("no bytes");
        match read.unwrap_or(0) {
            0 => break,
            read => all.extend_from_slice(&buffer[..read]),
        }
    }
    all
}

const PART: usize = 600_000;

/// Default of `--max-object-bytes`.
const MAX_OBJECT_BYTES: usize = 16 << 20;

fn part() -> Result<bytes::Bytes, std::io::Error> {
    Ok(bytes::Bytes::from(vec![b'x'; PART]))
}

/// The operations that they began continue, and count.
#[tokio::test]
async fn clients_that_leave_leave_no_more_than_the_limit_at_the_upstream() {
    let mut world = World::new(60_000).await;
    let mut under_way = Vec::new();
    for _ in 0..PLACES {
        let request = world.send(Method::PUT, "/public/x", 0);
        under_way.push(world.seen().await);
        request.abort();
    }
    for (path, token) in [("/public/x", 0), ("/a", 33)] {
        let refused = world.send(Method::PUT, path, token).await.unwrap();
        assert_eq!(refused.code(), "limit-reached");
    }
    assert!(world.seen.try_recv().is_err(), "it was forwarded");
    under_way.pop().unwrap().reply("200 OK");
    let seen = loop {
        let mut next = world.send(Method::PUT, "/a", 33);
        tokio::select! {
            refused = &mut next => assert_eq!(refused.unwrap().code(), "limit-reached"),
            seen = world.seen() => break seen,
        }
    };
    assert!(seen.text.starts_with("PUT /a "), "{}", seen.text);
}

#[tokio::test]
async fn a_long_body_is_streamed_with_the_length_that_was_stated() {
    let (listener, world) = raw_upstream().await;
    let (request, body) = streamed(Some(3 * PART));
    let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    body.send(part()).await.unwrap();
    body.send(part()).await.unwrap();
    let (mut from, to) = accepted(&listener).await;
    // The origin gets the first parts while the last one is still to come.
    let mut seen = read(&mut from, 2 * PART).await;
    body.send(part()).await.unwrap();
    drop(body);
    let rest = 3 * PART - seen.len();
    seen.extend(read(&mut from, rest).await);
    answered(to, answer).await;
    let head = String::from_utf8_lossy(&seen[..600]).into_owned();
    assert!(head.contains(&format!("content-length: {}\r\n", 3 * PART)), "{head}");
}

/// Gives the reply of the origin: the connection of its client can carry another request.
async fn answered(mut to: OwnedWriteHalf, answer: JoinHandle<Answer>) {
    to.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    assert!(!answer.headers.contains_key("connection"), "{:?}", answer.headers);
}

/// All of it was received, just not within the part that is received first.
#[tokio::test]
async fn a_body_a_little_too_long_to_be_received_first_costs_no_connection() {
    let (listener, world) = raw_upstream().await;
    let (request, body) = streamed(Some(2 * PART));
    let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    body.send(part()).await.unwrap();
    body.send(part()).await.unwrap();
    let (mut from, to) = accepted(&listener).await;
    read(&mut from, 2 * PART).await;
    answered(to, answer).await;
}

/// It may turn out to be too large, and then nothing of it must be at the origin.
#[tokio::test]
async fn a_body_of_unknown_length_is_received_whole() {
    let (listener, world) = raw_upstream().await;
    let (request, body) = streamed(None);
    let lower = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    // As many as fit, and one more.
    for _ in 0..=MAX_OBJECT_BYTES / PART {
        body.send(part()).await.unwrap();
    }
    let lower = lower.await.unwrap();
    assert_eq!(
        (lower.status, lower.code().as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, "payload-too-large")
    );
    assert_eq!(lower.headers["connection"], "close");
    let (request, body) = streamed(None);
    let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    for _ in 0..3 {
        body.send(part()).await.unwrap();
    }
    drop(body);
    let (mut from, to) = accepted(&listener).await;
    let seen = read(&mut from, 3 * PART).await;
    let head = String::from_utf8_lossy(&seen[..600]).into_owned();
    assert!(head.contains(&format!("content-length: {}\r\n", 3 * PART)), "{head}");
    answered(to, answer).await;
}

/// Part of the body is at the origin, which may act on it.
#[tokio::test]
async fn a_sender_that_leaves_a_long_body_leaves_an_unknown_outcome() {
    let (listener, world) = raw_upstream().await;
    let (request, body) = streamed(Some(3 * PART));
    let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    body.send(part()).await.unwrap();
    body.send(part()).await.unwrap();
    let (mut from, _to) = accepted(&listener).await;
    read(&mut from, PART).await;
    body.send(Err(std::io::ErrorKind::ConnectionReset.into())).await.unwrap();
    assert_eq!(answer.await.unwrap().code(), "outcome-unknown");
    let higher = world.send(Method::PUT, "/a", 34).await.unwrap();
    assert_eq!(higher.code(), "quarantined");
    // The connection is cut: the origin does not wait for the rest.
    let cut = read(&mut from, 3 * PART).await;
    assert!(cut.len() < 3 * PART);
}

/// A short body is received first, so its sender can leave without a trace.
#[tokio::test]
async fn a_sender_that_leaves_a_short_body_holds_up_no_lane() {
    let mut world = World::new(60_000).await;
    let (request, body) = streamed(Some(2 * PART));
    let lower = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    body.send(part()).await.unwrap();
    let higher = world.send(Method::PUT, "/a", 34);
    world.seen().await.reply("200 OK");
    assert_eq!(higher.await.unwrap().status, StatusCode::OK);
    body.send(Err(std::io::ErrorKind::ConnectionReset.into())).await.unwrap();
    assert_eq!(lower.await.unwrap().status, StatusCode::BAD_REQUEST);
    assert!(world.seen.try_recv().is_err());
}

/// The origin refuses a body that is still on its way: its reply is final, and the rest is not sent
/// on a connection that could take it for another request.
#[tokio::test]
async fn a_reply_before_the_end_of_the_body_ends_the_connection() {
    let (listener, world) = raw_upstream().await;
    let (request, body) = streamed(Some(3 * PART));
    let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    body.send(part()).await.unwrap();
    body.send(part()).await.unwrap();
    let (mut from, mut to) = accepted(&listener).await;
    read(&mut from, PART).await;
    to.write_all(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.headers["connection"], "close", "the client's rest is unread");
    let rest = read(&mut from, 3 * PART).await;
    assert!(rest.len() < 2 * PART, "the body went on");
    let higher = world.send(Method::PUT, "/a", 34);
    let (mut from, to) = accepted(&listener).await;
    read(&mut from, 1).await;
    answered(to, higher).await;
}
