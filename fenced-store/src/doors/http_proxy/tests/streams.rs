//! Bodies that are longer than what is received before the lane is entered.

use futures_util::stream::unfold;
use tokio::net::tcp::OwnedReadHalf;

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

fn part() -> Result<bytes::Bytes, std::io::Error> {
    Ok(bytes::Bytes::from(vec![b'x'; PART]))
}

#[tokio::test]
async fn a_long_body_is_streamed_with_the_length_that_was_stated() {
    for length in [Some(3 * PART), None] {
        let (listener, world) = raw_upstream().await;
        let (request, body) = streamed(length);
        let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
        body.send(part()).await.unwrap();
        body.send(part()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = stream.into_split();
        // The origin gets the first parts while the last one is still to come.
        let mut seen = read(&mut from, 2 * PART).await;
        body.send(part()).await.unwrap();
        drop(body);
        let rest = 3 * PART - seen.len();
        seen.extend(read(&mut from, rest).await);
        to.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        assert_eq!(answer.await.unwrap().status, StatusCode::OK);
        let head = String::from_utf8_lossy(&seen[..600]).into_owned();
        let framing = match length {
            Some(length) => format!("content-length: {length}\r\n"),
            None => "transfer-encoding: chunked\r\n".to_owned(),
        };
        assert!(head.contains(&framing), "{head}");
    }
}

/// Part of the body is at the origin, which may act on it.
#[tokio::test]
async fn a_sender_that_leaves_a_long_body_leaves_an_unknown_outcome() {
    let (listener, world) = raw_upstream().await;
    let (request, body) = streamed(Some(3 * PART));
    let answer = world.kit.tasks.spawn(request_reply(world.proxy.clone(), request));
    body.send(part()).await.unwrap();
    body.send(part()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let (mut from, _to) = stream.into_split();
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
