//! Rules that map the database, and the roles of clients, to locks.

use fence_tests::postgres_client::{PostgresClient, SqlError, credential_of};

use super::{Port, database, port, setup, setup_at, shop};

async fn log_in(
    port: &Port,
    user: &str,
    lock: &str,
    token: u64,
) -> Result<PostgresClient, SqlError> {
    let credential = credential_of(lock, token, token);
    PostgresClient::log_in(&port.address, user, "shop", &credential).await
}

#[tokio::test]
async fn a_rule_names_the_lock_of_the_database() {
    let postgres = database().await;
    let port = port(&setup(&postgres).args(&["--rule", "{db}=db/{db}"])).await;
    assert_eq!(log_in(&port, "app", "shop", 1).await.unwrap_err().code(), "FE403");
    log_in(&port, "app", "db/shop", 1).await.unwrap();
    assert_eq!(log_in(&port, "app", "db/shop", 0).await.unwrap_err().code(), "FE400");
}

#[tokio::test]
async fn each_role_has_its_own_lock() {
    let postgres = database().await;
    postgres.sql("CREATE ROLE stock LOGIN").await;
    let url = format!("postgres://guard@{}/shop", postgres.address());
    let roles = ["--postgres-writer", "writer", "--postgres-writer", "stock"];
    let rules = ["--rule", "shop/writer=orders", "--rule", "shop/{role}=areas/{role}"];
    let port = port(&setup_at(&url).args(&roles).args(&rules)).await;
    let mut orders = log_in(&port, "writer", "orders", 5).await.unwrap();
    let mut stock = log_in(&port, "stock", "areas/stock", 7).await.unwrap();
    assert_eq!(stock.query("SELECT current_user").await.unwrap(), ["stock"]);
    // Neither lock is good for the other role, and no other user is served.
    for (user, lock, code) in [
        ("stock", "orders", "FE403"),
        ("writer", "areas/stock", "FE403"),
        ("app", "orders", "28000"),
    ] {
        let refused = log_in(&port, user, lock, 9).await.unwrap_err();
        assert_eq!(refused.code(), code, "{user}: {refused:?}");
    }
    // A hand-over of one lock leaves the other's sessions.
    log_in(&port, "stock", "areas/stock", 8).await.unwrap();
    assert_eq!(stock.query("SELECT 1").await.unwrap_err().code(), "FE412");
    assert_eq!(orders.query("SELECT current_user").await.unwrap(), ["writer"]);
    // A reader becomes the role that its token is for.
    let mut reader = PostgresClient::log_in(&port.address, "reader", "shop", "any").await.unwrap();
    let credential = credential_of("areas/stock", 8, 8);
    reader.query(&format!("SET fence.token = '{credential}'")).await.unwrap();
    assert_eq!(reader.query("SELECT current_user").await.unwrap(), ["stock"]);
}

#[tokio::test]
async fn roles_that_reach_others_are_refused() {
    let postgres = database().await;
    postgres.sql("CREATE ROLE stock LOGIN; CREATE ROLE boss SUPERUSER NOLOGIN").await;
    for (change, back, reason) in [
        ("GRANT boss TO writer", "REVOKE boss FROM writer", "role writer could act"),
        (
            "GRANT pg_read_all_data TO reader",
            "REVOKE pg_read_all_data FROM reader",
            "role reader could act",
        ),
        (
            "GRANT pg_write_all_data TO writer",
            "REVOKE pg_write_all_data FROM writer",
            "role writer could act",
        ),
        (
            "GRANT writer TO reader",
            "REVOKE writer FROM reader",
            "role reader is a member of writer",
        ),
        ("GRANT stock TO writer", "REVOKE stock FROM writer", "role writer is a member of stock"),
        (
            "ALTER ROLE writer NOINHERIT; GRANT guard TO writer",
            "REVOKE guard FROM writer; ALTER ROLE writer INHERIT",
            "role writer could act",
        ),
    ] {
        shop(&postgres, "postgres", change).await;
        let refused = setup(&postgres).args(&["--postgres-writer", "stock"]).refused().await;
        assert!(refused.stderr.contains(reason), "{change}: {}", refused.stderr);
        shop(&postgres, "postgres", back).await;
    }
    port(&setup(&postgres).args(&["--postgres-writer", "stock"])).await;
}
