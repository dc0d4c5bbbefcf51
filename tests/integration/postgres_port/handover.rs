//! Hand-overs: the older session has ended, and its transaction with it, before the newer is
//! admitted; also with a guard that stops or is killed between any two steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fence_tests::postgres_client::{PostgresClient, credential_of, frame, startup};
use fence_tests::process::Process;
use fence_tests::psql::{DONE, Psql};
use fence_tests::wait::{soon, until, until_true};

use super::{database, port, setup, shop};

#[tokio::test]
async fn an_open_transaction_of_an_older_token_is_rolled_back() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut old = port.log_in(33).await.unwrap();
    old.query("BEGIN").await.unwrap();
    old.query("INSERT INTO journal VALUES (33, 1)").await.unwrap();
    let mut equal = port.log_in(33).await.unwrap();
    equal.query("INSERT INTO journal VALUES (33, 2)").await.unwrap();
    let mut new = port.log_in(34).await.unwrap();
    let sql = "SELECT seq FROM journal ORDER BY seq";
    assert_eq!(new.query(sql).await.unwrap(), ["2"]);
    let refused = old.query("COMMIT").await.unwrap_err();
    assert_eq!(refused.code(), "FE412");
    assert!(refused.field('D').contains("lock shop, token 33, mark 34"), "{refused:?}");
    assert_eq!(refused.field('S'), "FATAL");
    assert_eq!(equal.query("SELECT 1").await.unwrap_err().code(), "FE412");
    assert_eq!(new.query(sql).await.unwrap(), ["2"]);
    // Neither the old token nor another lease of the new one is admitted again.
    assert_eq!(port.log_in(33).await.unwrap_err().code(), "FE412");
    let other = credential_of("shop", 34, 7);
    let other = PostgresClient::log_in(&port.address, "a", "shop", &other);
    assert_eq!(other.await.unwrap_err().code(), "FE409");
    assert_eq!(new.query("SELECT 1").await.unwrap(), ["1"]);
}

#[tokio::test]
async fn a_statement_under_way_has_an_unknown_outcome() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut old = port.log_in(1).await.unwrap();
    old.send(&frame(b'Q', b"INSERT INTO journal SELECT 1, 1 FROM pg_sleep(600)\0")).await;
    let sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    until("the statement to run", || async {
        (shop(&postgres, "postgres", sql).await == "1").then_some(())
    })
    .await;
    let mut new = port.log_in(2).await.unwrap();
    let refused = old.rows().await.unwrap_err();
    assert_eq!(refused.code(), "FE412");
    assert!(refused.field('D').contains("is unknown"), "{refused:?}");
    assert_eq!(new.query("SELECT count(*) FROM journal").await.unwrap(), ["0"]);
}

#[tokio::test]
async fn a_stopped_psql_cannot_commit_after_its_successor_began() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let steps = ["BEGIN", "INSERT INTO journal VALUES (33, 1)", "SELECT pg_sleep(30)", "COMMIT"];
    let args: Vec<&str> = steps.iter().flat_map(|step| ["-c", step]).collect();
    let mut old = Process::spawn("psql", port.psql(33, &args));
    let sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    until("the transaction to be open", || async {
        (shop(&postgres, "postgres", sql).await == "1").then_some(())
    })
    .await;
    old.pause();
    let mut new = port.log_in(34).await.unwrap();
    new.query("INSERT INTO journal VALUES (34, 1)").await.unwrap();
    old.resume();
    let ended = old.ended().await;
    assert_ne!(ended.code, 0);
    assert!(
        ended.stderr.contains("a newer holder of lock shop ended this session"),
        "{}",
        ended.stderr
    );
    assert_eq!(shop(&postgres, "postgres", "SELECT token FROM journal").await, "34");
}

/// Another guard completes what one began that is stopped or killed at each point.
#[tokio::test]
async fn a_guard_may_fail_between_any_two_steps() {
    let points =
        ["before-register", "after-raise", "after-abort", "after-sealed", "after-register"];
    for point in points {
        for action in ["kill", "stop"] {
            guard_fails(&format!("{point}={action}")).await;
        }
    }
}

async fn guard_fails(fail_at: &str) {
    let postgres = database().await;
    let sound = port(&setup(&postgres)).await;
    let mut old = sound.log_in(33).await.unwrap();
    old.query("BEGIN").await.unwrap();
    old.query("INSERT INTO journal VALUES (33, 1)").await.unwrap();
    let mut failing = port(&setup(&postgres).args(&["--fail-at", fail_at])).await;
    let mut lost = PostgresClient::connect(&failing.address).await;
    let credential = credential_of("shop", 34, 34);
    let pairs = [("user", "a"), ("database", "shop"), ("fence.token", credential.as_str())];
    lost.send(&startup(3 << 16, &pairs)).await;
    match fail_at.ends_with("stop") {
        true => failing.server.process.stopped().await,
        false => drop(failing.server.process.ended().await),
    }
    // Its successor is admitted, and then the old one writes nothing.
    let mut new = sound.log_in(35).await.unwrap_or_else(|error| panic!("{fail_at}: {error:?}"));
    new.query("INSERT INTO journal VALUES (35, 1)").await.unwrap();
    assert_eq!(old.query("COMMIT").await.unwrap_err().code(), "FE412", "{fail_at}");
    if fail_at.ends_with("stop") {
        failing.server.process.resume();
        // Its own token is stale by now; a session that was admitted before has ended.
        let refused = match lost.finish_login("").await {
            Ok(()) => lost.query("INSERT INTO journal VALUES (34, 1)").await.unwrap_err(),
            Err(refused) => refused,
        };
        assert_eq!(refused.code(), "FE412", "{fail_at}");
    }
    let rows = "SELECT string_agg(token::text, ',') FROM journal";
    assert_eq!(shop(&postgres, "postgres", rows).await, "35", "{fail_at}");
}

#[tokio::test]
async fn a_client_that_hangs_up_in_a_hand_over_changes_nothing() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut old = port.log_in(1).await.unwrap();
    old.query("INSERT INTO journal VALUES (1, 1)").await.unwrap();
    for token in 2..12 {
        let mut client = PostgresClient::connect(&port.address).await;
        let credential = credential_of("shop", token, token);
        let pairs = [("user", "a"), ("database", "shop"), ("fence.token", credential.as_str())];
        client.send(&startup(3 << 16, &pairs)).await;
    }
    let mut new = port.log_in(20).await.unwrap();
    assert_eq!(old.query("INSERT INTO journal VALUES (1, 2)").await.unwrap_err().code(), "FE412");
    assert_eq!(new.query("SELECT count(*) FROM journal").await.unwrap(), ["1"]);
}

#[tokio::test]
async fn a_session_of_another_process_with_the_same_id_is_not_ended() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut bystander =
        PostgresClient::log_in(&port.address, "reader", "shop", "any").await.unwrap();
    let pid = bystander.key.0;
    port.log_in(1).await.unwrap();
    // As a session that ended, whose process id was used again.
    let sql = format!(
        "INSERT INTO fence.sessions (namespace, lock, token, lease, pid, backend_start) \
         VALUES ('default', 'shop', 1, gen_random_uuid(), {pid}, now() - interval '1 day')"
    );
    shop(&postgres, "guard", &sql).await;
    port.log_in(2).await.unwrap();
    assert_eq!(bystander.query("SELECT 1").await.unwrap(), ["1"]);
}

#[tokio::test]
async fn sessions_register_again_at_a_restarted_server() {
    let mut postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = port.log_in(7).await.unwrap();
    client.query("INSERT INTO journal VALUES (7, 1)").await.unwrap();
    postgres.kill();
    assert!(client.query("SELECT 1").await.is_err());
    assert_eq!(port.log_in(7).await.unwrap_err().code(), "08001");
    postgres.start_again().await;
    assert_eq!(port.log_in(6).await.unwrap_err().code(), "FE412");
    let mut client = port.log_in(7).await.unwrap();
    assert_eq!(client.query("SELECT count(*) FROM journal").await.unwrap(), ["1"]);
}

/// The registration waits for a newer holder, whose seal is not committed.
#[tokio::test]
async fn nothing_of_a_client_is_relayed_before_its_registration() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut newer = Psql::start(&format!("postgres://guard@{}/shop", postgres.address()));
    let seal = "SELECT fence.seal('shop', 34, '22222222-2222-4222-8222-222222222222');";
    assert_eq!(newer.run(&format!("BEGIN; {seal}")).await, DONE);
    let mut reader = PostgresClient::log_in(&port.address, "reader", "shop", "any").await.unwrap();
    let mut watch = Psql::start(&format!("postgres://postgres@{}/shop", postgres.address()));
    assert_eq!(watch.run("SELECT 1;").await, DONE);
    let mut client = PostgresClient::connect(&port.address).await;
    let credential = credential_of("shop", 33, 33);
    let pairs = [("user", "a"), ("database", "shop"), ("fence.token", credential.as_str())];
    let insert = frame(b'Q', b"INSERT INTO journal VALUES (33, 1)\0");
    client.send(&[startup(3 << 16, &pairs), insert].concat()).await;
    // The server looks itself: the registration waits for five seconds.
    let waits = "DO $$ BEGIN LOOP PERFORM pg_stat_clear_snapshot(); \
                 EXIT WHEN EXISTS (SELECT FROM pg_stat_activity \
                 WHERE query LIKE '%fence.register%' AND wait_event_type = 'Lock'); \
                 PERFORM pg_sleep(0.01); END LOOP; END $$;";
    assert_eq!(watch.run(waits).await, DONE);
    // The port's one thread serves another client, and so has seen all that the first one sent.
    assert_eq!(reader.query("SELECT count(*) FROM journal").await.unwrap(), ["0"]);
    assert_eq!(newer.run("COMMIT;").await, DONE);
    assert_eq!(client.finish_login("").await.unwrap_err().code(), "FE412");
    assert_eq!(reader.query("SELECT count(*) FROM journal").await.unwrap(), ["0"]);
}

/// The server takes nothing while it sleeps, so that the port keeps bytes for it.
#[tokio::test]
async fn the_server_s_last_error_reaches_a_client_that_still_sends() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = port.log_in(1).await.unwrap();
    let pid = client.key.0;
    client.send(&frame(b'Q', b"SELECT pg_sleep(600)\0")).await;
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        let piece = frame(b'Q', format!("SELECT '{}'\0", "x".repeat(64 << 10)).as_bytes());
        for _ in 0..1_000 {
            client.send(&piece).await;
            count.fetch_add(1, Ordering::Relaxed);
        }
        client
    });
    let mut looks = (0, 0);
    until_true("all sockets to be full", || {
        let now = sent.load(Ordering::Relaxed);
        looks = if now == looks.0 { (now, looks.1 + 1) } else { (now, 0) };
        std::future::ready(now > 0 && looks.1 > 50)
    })
    .await;
    port.server.process.pause();
    let end = format!("SELECT pg_terminate_backend({pid}, 5000)");
    assert_eq!(shop(&postgres, "postgres", &end).await, "t");
    port.server.process.resume();
    let mut client = soon("all bytes to be sent", sending).await.unwrap();
    let error = client.rows().await.unwrap_err();
    assert_eq!(error.code(), "57P01", "{error:?}");
}
