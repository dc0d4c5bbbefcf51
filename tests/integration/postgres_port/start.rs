//! Start and end of the port: what it refuses to stand before, and its drain.

use fence_tests::postgres_client::{PostgresClient, frame};
use fence_tests::postgres_server::Postgres;
use fence_tests::wait::until;

use super::{database, port, prepare, setup, shop};

async fn refused(setup: &fence_tests::servers::Setup) -> String {
    let mut process = setup.spawn();
    let ended = process.ended().await;
    assert_ne!(ended.code, 0);
    ended.stderr
}

#[tokio::test]
async fn the_port_starts_before_a_sound_database_alone() {
    let postgres = database().await;
    let setup = setup(&postgres);
    for (change, back, reason) in [
        ("ALTER ROLE writer SUPERUSER", "ALTER ROLE writer NOSUPERUSER", "role writer could act"),
        ("GRANT guard TO writer", "REVOKE guard FROM writer", "role writer could act"),
        ("ALTER ROLE reader CREATEROLE", "ALTER ROLE reader NOCREATEROLE", "role reader could act"),
        (
            "GRANT pg_signal_backend TO writer",
            "REVOKE pg_signal_backend FROM writer",
            "role writer could act",
        ),
        (
            "GRANT UPDATE (token) ON fence.marks TO writer",
            "REVOKE UPDATE (token) ON fence.marks FROM writer",
            "it writes or locks tables of schema fence",
        ),
        (
            "GRANT TRIGGER ON fence.marks TO reader",
            "REVOKE TRIGGER ON fence.marks FROM reader",
            "it writes or locks tables of schema fence",
        ),
        (
            "GRANT EXECUTE ON FUNCTION fence.set_floor(bigint) TO writer",
            "REVOKE EXECUTE ON FUNCTION fence.set_floor(bigint) FROM writer",
            "functions of schema fence that are a guard's",
        ),
        (
            "GRANT EXECUTE ON FUNCTION fence.abort(text, text, bigint) TO reader",
            "REVOKE EXECUTE ON FUNCTION fence.abort(text, text, bigint) FROM reader",
            "functions of schema fence that are a guard's",
        ),
        ("UPDATE fence.meta SET version = 99", "UPDATE fence.meta SET version = 3", "version 99"),
        ("ALTER ROLE writer NOLOGIN", "ALTER ROLE writer LOGIN", "not permitted to log in"),
        ("ALTER SCHEMA fence RENAME TO gone", "ALTER SCHEMA gone RENAME TO fence", "SQL pack"),
    ] {
        shop(&postgres, "postgres", change).await;
        let text = refused(&setup).await;
        assert!(text.contains(reason), "{change}: {text}");
        shop(&postgres, "postgres", back).await;
    }
    port(&setup).await.log_in(1).await.unwrap();
}

/// A subscription writes on after a hand-over, and LOCK TABLE needs no more than MAINTAIN.
#[tokio::test]
async fn roles_of_later_versions_are_refused() {
    let subscription = "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1' PUBLICATION p \
                        WITH (connect = false, slot_name = NONE, password_required = false); \
                        ALTER SUBSCRIPTION s OWNER TO writer";
    for engine in ["postgres-17", "postgres-18"] {
        let postgres = Postgres::newer(engine, &[]).await;
        prepare(&postgres).await;
        let setup = setup(&postgres);
        for (change, back, reason) in [
            (
                "GRANT pg_create_subscription TO writer",
                "REVOKE pg_create_subscription FROM writer",
                "role writer could act on the fence: it is a member of pg_create_subscription",
            ),
            (
                subscription,
                "DROP SUBSCRIPTION s",
                "role writer could act on the fence: it may have",
            ),
            (
                "GRANT pg_maintain TO reader",
                "REVOKE pg_maintain FROM reader",
                "role reader could act on the fence: it is a member of pg_maintain, which locks",
            ),
            (
                "GRANT MAINTAIN ON fence.seals TO writer",
                "REVOKE MAINTAIN ON fence.seals FROM writer",
                "it locks tables of schema fence by MAINTAIN",
            ),
            (
                "GRANT pg_use_reserved_connections TO writer",
                "REVOKE pg_use_reserved_connections FROM writer",
                "it is a member of pg_use_reserved_connections",
            ),
        ] {
            shop(&postgres, "postgres", change).await;
            let text = refused(&setup).await;
            assert!(text.contains(reason), "{engine}: {change}: {text}");
            shop(&postgres, "postgres", back).await;
        }
        // They can do no harm.
        let harmless = "GRANT pg_monitor, pg_checkpoint TO writer, reader";
        shop(&postgres, "postgres", harmless).await;
        port(&setup).await.log_in(1).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let mut postgres = database().await;
    let setup = setup(&postgres);
    postgres.stop().await;
    let text = refused(&setup).await;
    assert!(text.contains("cannot connect to PostgreSQL at 127.0.0.1"), "{text}");
    postgres.start_again().await;
    port(&setup).await.log_in(1).await.unwrap();
}

#[tokio::test]
async fn prepared_transactions_must_be_off() {
    let postgres = Postgres::with(&[("max_prepared_transactions", "5")]).await;
    prepare(&postgres).await;
    let text = refused(&setup(&postgres)).await;
    assert!(text.contains("max_prepared_transactions is not 0"), "{text}");
}

#[tokio::test]
async fn a_server_that_allows_them_later_gets_no_sessions() {
    let mut postgres = database().await;
    let port = port(&setup(&postgres)).await;
    port.log_in(1).await.unwrap();
    postgres.set(&[("max_prepared_transactions", "5")]);
    postgres.restart().await;
    let error = port.log_in(1).await.unwrap_err();
    assert_eq!(error.code(), "57P03");
    assert!(error.field('M').contains("max_prepared_transactions"), "{error:?}");
}

/// At the start of the guard they had no such right.
#[tokio::test]
async fn roles_that_became_a_risk_get_no_sessions() {
    let mut postgres = database().await;
    let port = port(&setup(&postgres)).await;
    port.log_in(1).await.unwrap();
    for (change, back, reason) in [
        ("GRANT pg_signal_backend TO writer", "REVOKE pg_signal_backend FROM writer", "it is a"),
        (
            "GRANT TRIGGER ON fence.marks TO reader",
            "REVOKE TRIGGER ON fence.marks FROM reader",
            "it writes or locks tables",
        ),
        (
            "ALTER ROLE reader RENAME TO gone",
            "ALTER ROLE gone RENAME TO reader",
            "role reader does not exist",
        ),
    ] {
        shop(&postgres, "postgres", change).await;
        postgres.restart().await;
        let error = port.log_in(1).await.unwrap_err();
        assert_eq!(error.code(), "57P03");
        assert!(error.field('M').contains(reason), "{change}: {error:?}");
        shop(&postgres, "postgres", back).await;
    }
    port.log_in(1).await.unwrap();
}

#[tokio::test]
async fn a_replica_gets_no_sessions() {
    let primary = database().await;
    let replica = Postgres::replica_of(&primary, "one").await;
    let text = refused(&setup(&replica)).await;
    assert!(text.contains("in recovery"), "{text}");
}

/// COPY by the extended protocol, with the messages of libpq: a Sync behind Execute, which the
/// server ignores, and another behind the data.
async fn copy(client: &mut PostgresClient) {
    let parse = frame(b'P', b"\0COPY journal FROM STDIN\0\0\0");
    let bind = frame(b'B', &[0; 8]);
    let execute = frame(b'E', &[0; 5]);
    let sync = frame(b'S', b"");
    client.send(&[&parse[..], &bind, &execute, &sync].concat()).await;
    while client.frame().await.expect("a frame").tag != b'G' {}
    let data = frame(b'd', b"1\t2\n");
    client.send(&[&data[..], &frame(b'c', b""), &sync].concat()).await;
    client.rows().await.expect("a row");
}

#[tokio::test]
async fn shutdown_ends_idle_sessions_and_waits_for_busy_ones() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut idle = port.log_in(1).await.unwrap();
    let mut copied = port.log_in(1).await.unwrap();
    copy(&mut copied).await;
    let mut busy = port.log_in(1).await.unwrap();
    busy.query("BEGIN").await.unwrap();
    busy.query("INSERT INTO journal VALUES (1, 1)").await.unwrap();
    port.server.process.terminate();
    assert_eq!(idle.rows().await.unwrap_err().code(), "57P01");
    assert_eq!(copied.rows().await.unwrap_err().code(), "57P01");
    busy.query("COMMIT").await.unwrap();
    assert_eq!(busy.rows().await.unwrap_err().code(), "57P01");
    let mut server = port.server;
    assert_eq!(server.process.ended().await.code, 0);
    assert_eq!(shop(&postgres, "postgres", "SELECT count(*) FROM journal").await, "2");
    // Nothing of the guard stays at the server.
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('guard', 'writer')";
    until("the sessions to end", || async {
        (shop(&postgres, "postgres", sql).await == "0").then_some(())
    })
    .await;
}
