//! TLS records as few libraries send them.

use std::io::{Read, Write};

use rustls::ClientConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::request;
use fence_tests::wait::soon;

use super::Secured;

/// A client whose records leave when the test says so.
struct Records {
    tcp: TcpStream,
    session: ClientConnection,
}

impl Records {
    /// Does the handshake but for the client's last flight, which waits with whatever comes next.
    async fn begin(port: &Secured) -> Self {
        let tcp = TcpStream::connect(&port.guard.address).await.expect("a connection");
        tcp.set_nodelay(true).expect("an option");
        let mut client = Self { tcp, session: port.tls.session() };
        while client.session.is_handshaking() {
            client.send().await;
            client.receive().await;
        }
        client
    }

    /// Encrypts these bytes, in a record of their own.
    fn seal(&mut self, bytes: &[u8]) {
        self.session.writer().write_all(bytes).expect("room");
    }

    /// Bytes for the socket.
    fn sealed(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut bytes).expect("memory");
        }
        bytes
    }

    async fn send(&mut self) {
        let bytes = self.sealed();
        self.tcp.write_all(&bytes).await.expect("a connection");
    }

    async fn receive(&mut self) {
        let mut bytes = [0; 4096];
        let count = soon("bytes", self.tcp.read(&mut bytes)).await.expect("a connection");
        assert_ne!(count, 0, "closed");
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            self.session.read_tls(&mut rest).expect("room");
            self.session.process_new_packets().expect("TLS");
        }
    }

    /// Reads exactly these bytes.
    async fn expect(&mut self, expected: &str) {
        let mut got = Vec::new();
        while got.len() < expected.len() {
            let mut piece = [0; 4096];
            match self.session.reader().read(&mut piece) {
                Ok(count) => got.extend_from_slice(&piece[..count]),
                Err(_) => self.receive().await,
            }
        }
        assert_eq!(String::from_utf8_lossy(&got), expected);
    }
}

/// They are decrypted by the end of the handshake, and nothing more is in the socket.
#[tokio::test]
async fn commands_that_come_with_the_end_of_the_handshake_are_served() {
    let port = Secured::start().await;
    let mut client = Records::begin(&port).await;
    client.seal(b"PING\r\n");
    client.seal(b"ECHO x\r\nPING\r\n");
    client.send().await;
    client.expect("+PONG\r\n$1\r\nx\r\n+PONG\r\n").await;
}

#[tokio::test]
async fn commands_and_records_are_cut_anywhere() {
    let port = Secured::start().await;
    let grant = Grant::new(1, "1");
    let mut client = Records::begin(&port).await;
    client.seal(&request(&["AUTH", "fence", &grant.credential]));
    client.send().await;
    client.expect("+OK\r\n").await;
    // Commands in many records.
    let incr = request(&["INCR", &grant.key("n")]).repeat(10);
    incr.chunks(7).for_each(|piece| client.seal(piece));
    client.send().await;
    let numbers: String = (1..=10).map(|number| format!(":{number}\r\n")).collect();
    client.expect(&numbers).await;
    // Records in many pieces, the first of them longer than a read of the guard.
    client.seal(&request(&["SET", &grant.key("a"), &"x".repeat(30_000)]));
    client.seal(&request(&["STRLEN", &grant.key("a")]));
    let bytes = client.sealed();
    let (first, rest) = bytes.split_at(200);
    for piece in first.chunks(1).chain(rest.chunks(1_111)) {
        client.tcp.write_all(piece).await.expect("a connection");
        tokio::task::yield_now().await;
    }
    client.expect("+OK\r\n:30000\r\n").await;
}

/// The guard's own keys change along, and their change does not wait for a reply.
#[tokio::test]
async fn keys_may_change_at_any_time() {
    let port = Secured::start().await;
    let mut client = Records::begin(&port).await;
    for _ in 0..20 {
        client.session.refresh_traffic_keys().expect("TLS 1.3");
        client.seal(b"PING\r\n");
        client.send().await;
        client.expect("+PONG\r\n").await;
    }
}

/// The client receives the alert, and others are served.
#[tokio::test]
async fn bytes_that_are_no_record_end_their_connection() {
    let port = Secured::start().await;
    let mut client = Records::begin(&port).await;
    client.seal(b"PING\r\n");
    client.send().await;
    client.expect("+PONG\r\n").await;
    client.tcp.write_all(b"PING\r\nPING\r\n").await.expect("a connection");
    let mut alert = Vec::new();
    soon("the end", client.tcp.read_to_end(&mut alert)).await.expect("no reset");
    let error =
        client.session.read_tls(&mut &alert[..]).map(|_| client.session.process_new_packets());
    assert!(matches!(error, Ok(Err(rustls::Error::AlertReceived(_)))), "{error:?}");
    port.assert_served().await;
}
