//! Replies that no well-behaved origin sends, byte for byte. The client gets one all the same.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// A guard before an origin that has a list of replies: the last part of a path is the number of
/// one. It closes each connection right behind its reply.
struct Scripted {
    proxy: String,
    _server: Server,
    _state: DataDir,
    _origin: AbortOnDropHandle<()>,
}

impl Scripted {
    async fn new(replies: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", listener.local_addr().unwrap());
        let origin = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, replies).await;
            }
        }));
        let state = DataDir::new();
        let mut server = Setup::bare("fenced-store")
            .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--upstream", &upstream])
            .args(&["--upstream-idle", "0s", "--max-request-lifetime", LONG])
            .args(&["--rule", "open/**=@open", "--rule", "{id}={id}"])
            .args(&["--state", fence_tests::key_file::text(&state.path())])
            .start()
            .await;
        let proxy = server.proxy().await;
        Self { proxy, _server: server, _state: state, _origin: origin }
    }

    /// Sends a request without a body, and returns what comes until the end of the connection.
    async fn send(&self, method: &str, path: &str) -> String {
        let lease = "00000000-0000-4000-8000-000000000033".parse().unwrap();
        let token = match path.starts_with("open/") {
            true => String::new(),
            false => format!("fencing-token: {}\r\n", unsigned(33, path, lease)),
        };
        let request = format!(
            "{method} /{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\r\n"
        );
        exchange(&self.proxy, request.as_bytes()).await
    }
}

/// Reads a head, and gives the reply of its number.
async fn serve(mut stream: TcpStream, replies: &[&str]) -> Option<()> {
    let mut seen = Vec::new();
    let mut part = [0_u8; 4096];
    while !seen.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut part).await.ok().filter(|count| *count > 0)?;
        seen.extend_from_slice(&part[..count]);
    }
    let head = String::from_utf8_lossy(&seen);
    let number: usize = head.split(' ').nth(1)?.rsplit(['/', '-']).next()?.parse().ok()?;
    stream.write_all(replies.get(number)?.as_bytes()).await.ok()
}

/// A reply to HEAD, too, states one length or none, and no reader has asked for another protocol.
#[tokio::test]
async fn a_head_that_is_no_reply_is_a_bad_gateway_to_a_reader() {
    const REPLIES: [&str; 6] = [
        "HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5, 6\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ];
    let guard = Scripted::new(&REPLIES).await;
    for (number, reply) in REPLIES.iter().enumerate() {
        for path in [format!("open/{number}"), format!("doc-{number}")] {
            let got = guard.send("GET", &path).await;
            assert_eq!(status(&got), Some(502), "{path} {reply:?}: {got}");
            assert!(got.contains("\"code\":\"upstream-unavailable\""), "{path} {reply:?}: {got}");
            let head = guard.send("HEAD", &path).await;
            assert_eq!(status(&head), Some(502), "{path} {reply:?}: {head}");
            assert!(head.contains("application/problem+json"), "{path} {reply:?}: {head}");
            assert!(head.ends_with("\r\n\r\n"), "{path} {reply:?}: {head}");
        }
    }
}

/// A length that is repeated is one; beside chunks it does not count (RFC 9112 section 6.3).
#[tokio::test]
async fn a_reply_is_passed_on_with_one_length_at_most() {
    const REPLIES: [&str; 4] = [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: -3\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n",
    ];
    let guard = Scripted::new(&REPLIES).await;
    for (number, reply) in REPLIES.iter().enumerate() {
        // The reply to a write is received whole, so its length is known.
        for (method, is_stated) in [("GET", number < 2), ("HEAD", number < 2), ("PUT", true)] {
            let seen = guard.send(method, &format!("open/{number}")).await;
            assert_eq!(status(&seen), Some(200), "{method} {reply:?}: {seen}");
            let lengths = seen.matches("content-length:").count();
            assert_eq!(lengths, usize::from(is_stated), "{method} {reply:?}: {seen}");
            assert_eq!(seen.contains("content-length: 5\r\n"), is_stated, "{method} {seen}");
            assert_eq!(seen.contains("hello"), method != "HEAD", "{method} {reply:?}: {seen}");
        }
    }
}

/// The guard knows of the end before it has sent the head.
#[tokio::test]
async fn a_body_that_breaks_off_at_once_breaks_off_at_the_reader() {
    const REPLIES: [&str; 3] = [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ];
    let guard = Scripted::new(&REPLIES).await;
    for (number, came) in ["abc", "", ""].into_iter().enumerate() {
        let seen = guard.send("GET", &format!("open/{number}")).await;
        assert_eq!(status(&seen), Some(200), "{number}: {seen}");
        let body = seen.split_once("\r\n\r\n").map(|(_, body)| body);
        assert_eq!(body, Some(came), "{number}: {seen}");
    }
}
