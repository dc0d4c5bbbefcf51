//! Handshakes that end badly, or never.

use fence_tests::certificates::Certificates;
use fence_tests::wait::{soon, until_true};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{api, connect, lock_server, metric};

/// The limit of the process.
const UNDER_WAY_MAX: usize = 256;

/// The first byte of a ClientHello, and no more.
async fn half_a_handshake(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&[0x16]).await.unwrap();
    stream
}

/// Silent clients and half handshakes cost others nothing up to the limit. Beyond it they make way
/// for new ones, and established connections continue.
#[tokio::test]
async fn handshakes_under_way_are_limited() {
    let made = Certificates::new();
    let server = lock_server(&made).arg("--header-timeout=1h").start().await;
    let established = api(&server, &made, None);
    let address = server.address();
    let under_way = || metric(&established, "tls_handshakes_in_flight");
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(TcpStream::connect(&address).await.unwrap());
        open.push(half_a_handshake(&address).await);
    }
    until_true("the handshakes to begin", || async { under_way().await == 100 }).await;
    drop(connect(&server, &made).await);
    for _ in 0..UNDER_WAY_MAX {
        open.push(half_a_handshake(&address).await);
    }
    let max = i64::try_from(UNDER_WAY_MAX).unwrap();
    until_true("the limit to be reached", || async { under_way().await == max }).await;
    let another = tokio::spawn(async move { drop(connect(&server, &made).await) });
    established.get("/livez").await.expect(200);
    assert!(under_way().await <= max, "no more than the limit");
    soon("the handshake that waits, as those without progress make way", another).await.unwrap();
    drop(open);
}

/// A handshake that never ends is cut, with the limit of a request's head.
#[tokio::test]
async fn a_handshake_has_a_time_limit() {
    let made = Certificates::new();
    let server = lock_server(&made).arg("--header-timeout=4s").start().await;
    let address = server.address();
    let silent = TcpStream::connect(&address).await.unwrap();
    for mut stream in [silent, half_a_handshake(&address).await] {
        let mut reply = Vec::new();
        let _ = soon("the connection to be cut", stream.read_to_end(&mut reply)).await;
        assert!(reply.is_empty(), "{reply:?}");
    }
    let api = api(&server, &made, None);
    until_true("two failed handshakes, and none on its way", || async {
        metric(&api, "tls_handshake_failures_total").await == 2
            && metric(&api, "tls_handshakes_in_flight").await == 0
    })
    .await;
}
