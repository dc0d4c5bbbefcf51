//! Senders that announce large bodies and send them slowly, or not at all; readers that read
//! nothing.

use fence_protocol::Code;
use fence_tests::raw_http::connect;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};
use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

const MIB: usize = 1 << 20;

/// 4 MiB for all bodies, of which 1 MiB is for small ones. Slow bodies are not cut.
async fn guard() -> Server {
    Setup::fenced_store("memory:")
        .args(&["--rule", "open/**=@open", "--body-timeout", "1h"])
        .args(&["--max-object-bytes", "1048576", "--max-body-bytes-in-all", "4194304"])
        .start()
        .await
}

/// Begins a body of 1 MiB and sends the first `sent` bytes. The guard has begun to read it.
async fn begin(server: &Server, length: &str, sent: &[u8]) -> TcpStream {
    let mut stream = connect(&server.base).await;
    let head = format!(
        "PUT /v1/objects/open/slow HTTP/1.1\r\nhost: localhost\r\n{length}\r\n\
         expect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut reply = [0; 25];
    soon("100 Continue", stream.read_exact(&mut reply)).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 100 Continue\r\n\r\n");
    soon("the guard to read the body", stream.write_all(sent)).await.unwrap();
    stream
}

async fn put(server: &Server, key: &str, bytes: usize) -> fence_tests::api::Reply {
    let path = format!("open/{key}");
    server.guard().with(Method::PUT, &path, &[], vec![b'x'; bytes]).await
}

#[tokio::test]
async fn what_is_announced_takes_no_memory_of_others() {
    let server = guard().await;
    let mut slow = Vec::new();
    for length in ["content-length: 1048576", "transfer-encoding: chunked"] {
        for _ in 0..16 {
            slow.push(begin(&server, length, b"1").await);
        }
    }
    put(&server, "small", 10).await.expect(201);
    put(&server, "large", MIB).await.expect(201);
}

#[tokio::test]
async fn small_bodies_pass_where_large_ones_have_taken_everything() {
    let server = guard().await;
    let mut slow = Vec::new();
    for _ in 0..3 {
        slow.push(begin(&server, "content-length: 1048576", &vec![b'x'; MIB - 1]).await);
    }
    // There is room for no other large one as soon as these have been read.
    until_true("the large share to be full", || async {
        let reply = put(&server, "large", MIB).await;
        reply.status == 429 && reply.problem(Code::LimitReached).retryable
    })
    .await;
    for _ in 0..20 {
        let status = put(&server, "small", 64 << 10).await.status;
        assert!(matches!(status, 201 | 204), "{status}");
    }
    for mut stream in slow {
        stream.write_all(b"x").await.unwrap();
        let mut reply = [0; 12];
        soon("a reply", stream.read_exact(&mut reply)).await.unwrap();
        assert!(reply.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&reply));
    }
    let status = put(&server, "large", MIB).await.status;
    assert!(matches!(status, 201 | 204), "{status}");
}

/// A reader that takes the beginning of the object and no more.
async fn begin_to_read(server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    // The kernel is to hold little of the reply.
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address().parse().unwrap()).await.unwrap();
    let request = "GET /v1/objects/open/large HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = [0; 12];
    soon("a reply", stream.read_exact(&mut reply)).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 200");
    stream
}

/// Replies that readers leave unread are memory, too. The object is larger than what the kernel
/// buffers.
#[tokio::test]
async fn replies_that_are_not_read_are_bounded() {
    let server = Setup::fenced_store("memory:")
        .args(&["--rule", "open/**=@open", "--max-object-bytes", "16777216"])
        .args(&["--max-body-bytes-in-all", "67108864"])
        .start()
        .await;
    put(&server, "large", 16 * MIB).await.expect(201);
    put(&server, "small", 10).await.expect(201);
    let mut slow = Vec::new();
    for _ in 0..3 {
        slow.push(begin_to_read(&server).await);
    }
    let refused = server.guard().get("open/large").await;
    assert_eq!(refused.status, 429);
    refused.problem(Code::LimitReached);
    server.guard().get("open/small").await.expect(200);
    drop(slow);
    until_true("the readers to be gone", || async {
        server.guard().get("open/large").await.status == 200
    })
    .await;
}
