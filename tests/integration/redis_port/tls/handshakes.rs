//! Clients that do not get through the handshake.

use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::wait::soon;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::Secured;

/// More than may be under way.
const MANY: usize = 300;

/// In the form of the protocol, so that every driver shows it.
#[tokio::test]
async fn plain_text_is_answered_with_an_error() {
    let port = Secured::start().await;
    for words in [&["PING"][..], &["HELLO", "3"]] {
        let mut client = RespClient::connect(&port.guard.address).await;
        let reply = client.call(words).await;
        assert!(reply.expect_error("ERR").contains("speaks TLS"), "{reply:?}");
        assert_eq!(client.until_closed().await, []);
    }
    port.assert_served().await;
}

/// Not even where a handshake may take longer than this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_without_end_keep_no_client_waiting() {
    let port = Secured::with(&["--header-timeout", "10m"]).await;
    let mut before = port.connect().await;
    let mut hello = Vec::new();
    port.tls.session().write_tls(&mut hello).expect("memory");
    let mut open = Vec::new();
    // Some stop within the first message, some behind it.
    for part in [&hello[..], &hello[..40]] {
        for _ in 0..MANY {
            let mut client = TcpStream::connect(&port.guard.address).await.expect("a connection");
            client.write_all(part).await.expect("a connection");
            open.push(client);
        }
        assert_eq!(before.call(&["PING"]).await, Resp::simple("PONG"));
        soon("a connection", port.assert_served()).await;
    }
    assert_eq!(before.call(&["PING"]).await, Resp::simple("PONG"));
}
