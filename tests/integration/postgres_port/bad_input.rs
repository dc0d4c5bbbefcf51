//! Input that no driver sends, and credentials that are refused: an error with its SQLSTATE and a
//! hint, and a port that serves the next client.

use fence_tests::postgres_client::{PostgresClient, SqlError, credential_of, frame, startup};
use fence_tests::wait::until_true;

use super::{Port, database, port, setup, shop};

const VERSION: u32 = 3 << 16;

async fn first_error(port: &Port, bytes: &[u8]) -> Option<SqlError> {
    let mut client = PostgresClient::connect(&port.address).await;
    client.send(bytes).await;
    let error = client.frame().await?.error();
    assert_eq!(client.frame().await, None, "the connection stays open");
    error
}

#[tokio::test]
async fn first_packets_that_are_none() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let with_length = |len: i32, rest: &[u8]| [&len.to_be_bytes()[..], rest].concat();
    for (bytes, code) in [
        (with_length(7, b"abc"), "08P01"),
        (with_length(-1, b""), "08P01"),
        (with_length(0x4745_5420, b"/ HTTP/1.1\r\n\r\n"), "08P01"),
        (with_length(10_001, b"abcd"), "08P01"),
        (startup(2 << 16, &[("user", "a")]), "0A000"),
        (startup(VERSION, &[]), "08P01"),
        (startup(VERSION, &[("database", "shop")]), "28000"),
        (startup(VERSION, &[("user", "a"), ("replication", "true")]), "0A000"),
        (startup(VERSION, &[("user", "a"), ("fence.lock", "x")]), "28000"),
        (with_length(9, b"\0\x03\0\0a"), "08P01"),
    ] {
        let error = first_error(&port, &bytes).await;
        let error = error.unwrap_or_else(|| panic!("no error for {bytes:?}"));
        assert_eq!(error.code(), code, "{bytes:?}: {error:?}");
        assert!(!error.field('M').is_empty());
    }
    port.log_in(1).await.unwrap();
}

/// A stranger learns no name of the port, and gets the reply that load balancers wait for.
#[tokio::test]
async fn names_are_for_those_who_were_authenticated() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let asks = startup(VERSION, &[("user", "stranger")]);
    let mut client = PostgresClient::connect(&port.address).await;
    client.send(&asks).await;
    let first = client.frame().await.unwrap();
    assert_eq!((first.tag, &first.body[..]), (b'R', &[0, 0, 0, 3][..]));
    for (user, password, code) in [
        ("stranger", "x".to_owned(), "FE400"),
        ("stranger", credential_of("shop", 1, 1), "3D000"),
        ("reader", "any".to_owned(), "3D000"),
    ] {
        let refused = PostgresClient::log_in(&port.address, user, "other", &password).await;
        let error = refused.unwrap_err();
        assert_eq!(error.code(), code, "{user}: {error:?}");
        let says = format!("{error:?}");
        assert_eq!(says.contains("\\\"shop\\\""), code == "3D000", "{says}");
    }
}

#[tokio::test]
async fn encryption_is_declined_and_half_packets_end_nothing() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = PostgresClient::connect(&port.address).await;
    for code in [80_877_103_u32, 80_877_104] {
        client.send(&[&8_i32.to_be_bytes()[..], &code.to_be_bytes()].concat()).await;
        assert_eq!(client.byte().await, Some(b'N'));
    }
    let credential = credential_of("shop", 1, 1);
    let packet = startup(VERSION, &[("user", "a"), ("database", "shop")]);
    for byte in packet {
        client.send(&[byte]).await;
    }
    client.finish_login(&credential).await.unwrap();
    for byte in frame(b'Q', b"SELECT 3\0") {
        client.send(&[byte]).await;
    }
    assert_eq!(client.rows().await.unwrap(), ["3"]);
    // A client that leaves in the middle of a frame hurts no other.
    client.send(b"Q\0\0\0").await;
    drop(client);
    port.log_in(1).await.unwrap();
}

#[tokio::test]
async fn frames_without_a_length_end_the_session() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    for len in [0_i32, 3, -1] {
        let mut client = port.log_in(1).await.unwrap();
        client.query("BEGIN").await.unwrap();
        client.query("INSERT INTO journal VALUES (1, 1)").await.unwrap();
        client.send(&[b"Q", &len.to_be_bytes()[..]].concat()).await;
        assert_eq!(client.rows().await.unwrap_err().code(), "08P01", "{len}");
    }
    // A message that PostgreSQL does not know gets the server's own error.
    let mut client = port.log_in(1).await.unwrap();
    client.send(&frame(b'~', b"")).await;
    assert_eq!(client.rows().await.unwrap_err().code(), "08P01");
    let mut client = port.log_in(1).await.unwrap();
    assert_eq!(client.query("SELECT count(*) FROM journal").await.unwrap(), ["0"]);
}

/// An upstream that changed while the guard runs is named, and served again once it is sound.
#[tokio::test]
async fn a_database_without_the_pack_gets_no_sessions() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = port.log_in(1).await.unwrap();
    for (change, back, reason) in [
        ("UPDATE fence.meta SET version = 99", "UPDATE fence.meta SET version = 3", "version 99"),
        ("ALTER SCHEMA fence RENAME TO gone", "ALTER SCHEMA gone RENAME TO fence", "SQL pack"),
        ("ALTER ROLE guard NOLOGIN", "ALTER ROLE guard LOGIN", "not permitted to log in"),
    ] {
        shop(&postgres, "postgres", change).await;
        // Connections that were checked are kept; a new one is checked.
        let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
                   WHERE usename = 'guard'";
        shop(&postgres, "postgres", end).await;
        let refused = port.log_in(2).await.unwrap_err();
        assert_eq!(refused.code(), "57P03", "{refused:?}");
        assert!(refused.field('M').contains(reason), "{refused:?}");
        assert!(!refused.field('H').is_empty() && !refused.field('D').is_empty());
        shop(&postgres, "postgres", back).await;
        assert_eq!(client.query("SELECT 1").await.unwrap(), ["1"]);
    }
    port.log_in(2).await.unwrap();
    assert_eq!(client.query("SELECT 1").await.unwrap_err().code(), "FE412");
}

#[tokio::test]
async fn credentials_are_refused_before_the_server_is_asked() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let other_namespace = credential_of("shop\";ns=\"other", 1, 1);
    let huge = "x".repeat(90 << 10);
    for (password, code) in [
        ("", "FE428"),
        ("secret", "FE400"),
        ("fc1_", "FE400"),
        (&credential_of("shop", 0, 1), "FE400"),
        (&credential_of("shop", 999_999_999_999_999, 1), "FE401"),
        (&credential_of("other", 5, 1), "FE403"),
        (&other_namespace, "FE403"),
        (&huge, "08P01"),
    ] {
        let refused = PostgresClient::log_in(&port.address, "a", "shop", password).await;
        let refused = refused.expect_err(code);
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(!refused.field('H').is_empty(), "{refused:?}");
    }
    // A frame that is no password.
    let mut client = PostgresClient::connect(&port.address).await;
    client.send(&startup(VERSION, &[("user", "a"), ("database", "shop")])).await;
    assert_eq!(client.frame().await.map(|frame| frame.tag), Some(b'R'));
    client.send(&frame(b'Q', b"SELECT 1\0")).await;
    assert_eq!(client.frame().await.unwrap().error().unwrap().code(), "08P01");
    // Several tokens, of which one is the database's.
    let both = format!("{}.{}", credential_of("orders/7", 3, 3), credential_of("shop", 4, 4));
    let mut client = PostgresClient::log_in(&port.address, "a", "shop", &both).await.unwrap();
    assert_eq!(client.query("SELECT 1").await.unwrap(), ["1"]);
    let stale = format!("{}.{}", credential_of("orders/7", 2, 2), credential_of("shop", 4, 4));
    let refused = PostgresClient::log_in(&port.address, "a", "shop", &stale).await.unwrap_err();
    assert_eq!(refused.code(), "FE412");
    assert!(refused.field('D').contains("orders/7"), "{refused:?}");
}

#[tokio::test]
async fn errors_of_the_server_are_passed_on() {
    let postgres = fence_tests::postgres_server::Postgres::with(&[
        ("max_connections", "8"),
        ("superuser_reserved_connections", "1"),
    ])
    .await;
    super::prepare(&postgres).await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
    until_true("no session but this", async || postgres.sql(sessions).await == "1").await;
    let port = port(&setup(&postgres)).await;
    let mut clients = Vec::new();
    let refused = loop {
        match port.log_in(1).await {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
        assert!(clients.len() < 9, "the server takes more than it should");
    };
    assert_eq!(refused.code(), "53300", "{refused:?}");
    drop(clients);
}
