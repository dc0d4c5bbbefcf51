//! A session that waits for a replica in its COMMIT: it is committed, also if the session is ended.

use fence_tests::postgres_client::{PostgresClient, credential_of, frame, startup};
use fence_tests::postgres_server::Postgres;
use fence_tests::process::{Process, command};
use fence_tests::wait::until_true;

use super::{port, prepare, setup, shop};

const WAITS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' \
                     AND usename = 'writer'";

/// Sends an INSERT, and waits until its commit waits.
async fn insert(postgres: &Postgres, client: &mut PostgresClient, token: u64) {
    client
        .send(&frame(b'Q', format!("INSERT INTO journal VALUES ({token}, 1)\0").as_bytes()))
        .await;
    let waits = || async { shop(postgres, "postgres", WAITS).await == "1" };
    until_true("the commit to wait", waits).await;
}

/// The error says that it may have committed, by the fence or not.
#[tokio::test]
async fn a_session_that_is_ended_in_its_commit_may_have_committed() {
    for postgres in [Postgres::start().await, Postgres::newer("postgres-18", &[]).await] {
        prepare(&postgres).await;
        let sound = port(&setup(&postgres)).await;
        let tokens = "SELECT string_agg(token::text, ' ' ORDER BY token) FROM journal";
        // The next holder's token was announced before the commit had to wait.
        let mut old = sound.log_in(33).await.unwrap();
        let next = port(&setup(&postgres).args(&["--fail-at", "after-raise=stop"])).await;
        let mut new = PostgresClient::connect(&next.address).await;
        let credential = credential_of("shop", 34, 34);
        let pairs = [("user", "a"), ("database", "shop"), ("fence.token", credential.as_str())];
        new.send(&startup(3 << 16, &pairs)).await;
        next.server.process.stopped().await;
        let held = postgres.hold_commits().await;
        insert(&postgres, &mut old, 33).await;
        next.server.process.resume();
        let refused = old.rows().await.unwrap_err();
        assert_eq!(refused.code(), "FE412", "{refused:?}");
        assert!(refused.field('D').contains("it may have committed"), "{refused:?}");
        assert_eq!(shop(&postgres, "postgres", tokens).await, "33");
        postgres.release_commits().await;
        new.finish_login("").await.unwrap();
        assert_eq!(new.query(tokens).await.unwrap(), ["33"]);
        drop(held);
        // Here its announcement waits as well.
        let mut old = sound.log_in(34).await.unwrap();
        let held = postgres.hold_commits().await;
        insert(&postgres, &mut old, 34).await;
        let mut seal = command("psql");
        let url = format!("postgres://guard@{}/shop", postgres.address());
        let lease = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let sql = format!("SELECT fence.seal('shop', 35, '{lease}')");
        seal.args(["-X", "-q", "-A", "-t", "-d", &url, "-c", &sql]);
        let mut seal = Process::spawn("psql", seal);
        let refused = old.rows().await.unwrap_err();
        assert_eq!(refused.code(), "08006", "{refused:?}");
        assert!(refused.field('D').contains("it may have committed"), "{refused:?}");
        assert_eq!(shop(&postgres, "postgres", tokens).await, "33 34");
        postgres.release_commits().await;
        assert_eq!(seal.ended().await.stdout, "35\n");
        drop(held);
        assert_eq!(sound.log_in(34).await.unwrap_err().code(), "FE412");
    }
}
