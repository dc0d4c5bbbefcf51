//! A token by `SET fence.token`, and settings of the fence that clients change later.

use fence_tests::postgres_client::{PostgresClient, cancel, credential_of, frame};
use fence_tests::wait::until;

use super::{Port, database, port, setup, shop};

async fn reader(port: &Port) -> PostgresClient {
    PostgresClient::log_in(&port.address, "reader", "shop", "any").await.unwrap()
}

fn set_token(credential: &str) -> String {
    format!("SET fence.token = '{credential}'")
}

#[tokio::test]
async fn a_reader_becomes_the_writer_by_its_first_statement() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = reader(&port).await;
    let both = format!("{}.{}", credential_of("orders/7", 3, 3), credential_of("shop", 4, 4));
    client.query(&set_token(&both)).await.unwrap();
    assert_eq!(client.query("SELECT current_user").await.unwrap(), ["writer"]);
    client.query("INSERT INTO journal VALUES (4, 1)").await.unwrap();
    let sessions = "SELECT string_agg(lock || ' ' || token, ',' ORDER BY lock) FROM fence.sessions";
    let of_probe = format!("{sessions} WHERE lock <> 'fencepost/probe'");
    assert_eq!(shop(&postgres, "guard", &of_probe).await, "orders/7 3,shop 4");
    // The reader's session is gone, and its key cancels the writer's statements.
    let count = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader'";
    until("the reader's session to end", || async {
        (shop(&postgres, "postgres", count).await == "0").then_some(())
    })
    .await;
    let (pid, secret) = client.key.clone();
    client.send(&frame(b'Q', b"SELECT pg_sleep(600)\0")).await;
    let asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    until("the statement to run", || async {
        (shop(&postgres, "postgres", asleep).await == "1").then_some(())
    })
    .await;
    cancel(&port.address, (pid, &secret)).await;
    assert_eq!(client.rows().await.unwrap_err().code(), "57014");
    // It is preempted like any other.
    port.log_in(5).await.unwrap();
    assert_eq!(client.query("SELECT 1").await.unwrap_err().code(), "FE412");
}

#[tokio::test]
async fn a_refused_token_ends_the_reader() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    port.log_in(9).await.unwrap();
    for (statement, code) in [
        (set_token(&credential_of("shop", 8, 8)), "FE412"),
        (set_token(&credential_of("other", 10, 8)), "FE403"),
        (set_token("secret"), "FE400"),
        ("SET fence.token = x".to_owned(), "FE400"),
        (format!("{}; SELECT 1", set_token("x")), "FE400"),
    ] {
        let mut client = reader(&port).await;
        let refused = client.query(&statement).await.unwrap_err();
        assert_eq!(refused.code(), code, "{statement}: {refused:?}");
        assert!(!refused.field('H').is_empty());
        assert_eq!(client.frame().await, None);
    }
    // A reader that leaves, or sends something else, costs nothing.
    drop(reader(&port).await);
    let mut client = reader(&port).await;
    client.send(b"Q\0\0\0").await;
    client.send(&frame(b'Q', b"SELECT 1\0")[4..]).await;
    assert_eq!(client.rows().await.unwrap(), ["1"]);
}

#[tokio::test]
async fn later_settings_of_the_fence_have_no_effect() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let higher = credential_of("shop", 99, 99);
    let mut late = reader(&port).await;
    late.query("SELECT 1").await.unwrap();
    late.query(&set_token(&higher)).await.unwrap();
    assert_eq!(late.query("SELECT current_user").await.unwrap(), ["reader"]);
    let refused = late.query("INSERT INTO journal VALUES (99, 1)").await.unwrap_err();
    assert_eq!(refused.code(), "42501");
    let mut client = port.log_in(5).await.unwrap();
    for statement in [
        set_token(&higher),
        format!("SELECT set_config('fence.token', '{higher}', false)"),
        "SET fence.lock = 'other'".to_owned(),
        "SET fence.claims = 'default shop 99'".to_owned(),
        "RESET fence.token".to_owned(),
        "RESET ALL".to_owned(),
        "DISCARD ALL".to_owned(),
        "SET SESSION AUTHORIZATION DEFAULT".to_owned(),
    ] {
        client.query(&statement).await.unwrap();
    }
    let mark = "SELECT token FROM fence.marks WHERE lock = 'shop'";
    assert_eq!(shop(&postgres, "guard", mark).await, "5");
    port.log_in(6).await.unwrap();
    assert_eq!(client.query("SELECT 1").await.unwrap_err().code(), "FE412");
}

/// Parse, Bind, Execute and Sync of one statement.
fn extended(statement: &str) -> Vec<u8> {
    [
        frame(b'P', format!("one\0{statement}\0\0\0").as_bytes()),
        frame(b'B', b"\0one\0\0\0\0\0\0\0"),
        frame(b'E', b"\0\0\0\0\0"),
        frame(b'S', b""),
    ]
    .concat()
}

#[tokio::test]
async fn a_token_may_come_by_the_extended_protocol() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = reader(&port).await;
    for byte in extended(&set_token(&credential_of("shop", 4, 4))) {
        client.send(&[byte]).await;
    }
    assert_eq!(client.rows().await.unwrap(), [""; 0]);
    assert_eq!(client.query("SELECT current_user").await.unwrap(), ["writer"]);
    // The server has not seen the credential.
    assert_eq!(client.query("SHOW fence.token").await.unwrap(), [""]);
    let mut stale = reader(&port).await;
    stale.send(&extended(&set_token(&credential_of("shop", 3, 3)))).await;
    assert_eq!(stale.rows().await.unwrap_err().code(), "FE412");
    let mut other = reader(&port).await;
    other.send(&extended("SELECT current_user::text")).await;
    assert_eq!(other.rows().await.unwrap(), ["reader"]);
}
