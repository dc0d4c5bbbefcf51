//! Starts that are refused: what is in the way, and what to do.

use fence_tests::postgres_server::Postgres;
use fence_tests::servers::Setup;

/// A database with roles for lock servers and for others; the URL of the former.
async fn with_roles() -> (Postgres, String) {
    let postgres = Postgres::start().await;
    let roles = "CREATE ROLE locks LOGIN; CREATE ROLE mallory LOGIN; \
                 GRANT CREATE ON DATABASE postgres TO locks, mallory";
    postgres.sql(roles).await;
    let url = format!("postgres://locks@{}/postgres", postgres.address());
    (postgres, url)
}

async fn refused(url: &str) -> String {
    Setup::lock_server(url).refused().await.stderr
}

/// An owner of schema or tables could replace them, or run code with the lock server's rights.
#[tokio::test]
async fn what_belongs_to_another_role_is_not_trusted() {
    let (postgres, url) = with_roles().await;
    postgres.sql("SET ROLE mallory; CREATE SCHEMA fence_locks").await;
    // A superuser has the rights of every role.
    for url in [&url, &postgres.url()] {
        let said = refused(url).await;
        let named = "schema fence_locks belongs to role mallory";
        assert!(said.contains(named) && said.contains("DROP SCHEMA"), "{said}");
    }
    let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'fence_locks'::regnamespace";
    assert_eq!(postgres.sql(tables).await, "0", "created where another role owns the schema");
    // A table that runs code of its owner as soon as a lock server reads it.
    let trap = "ALTER SCHEMA fence_locks OWNER TO locks; \
                GRANT ALL ON SCHEMA fence_locks, public TO mallory; SET ROLE mallory; \
                CREATE FUNCTION public.trap() RETURNS int LANGUAGE plpgsql AS \
                $$ BEGIN RAISE 'trapped'; END $$; \
                CREATE VIEW fence_locks.about AS SELECT public.trap() AS format";
    postgres.sql(trap).await;
    let said = refused(&url).await;
    assert!(said.contains("fence_locks.about belongs to role mallory"), "{said}");
    postgres.sql("DROP SCHEMA fence_locks CASCADE").await;
    let server = Setup::lock_server(&url).start().await;
    server.locks().grant("a", 60_000).await;
}

/// Of a group that the lock server's role is in, of the database, of a superuser.
#[tokio::test]
async fn owners_that_have_every_right_anyway_are_trusted() {
    let (postgres, url) = with_roles().await;
    let group = "CREATE ROLE owners; GRANT owners TO locks; CREATE ROLE app; \
                 CREATE SCHEMA fence_locks AUTHORIZATION owners";
    postgres.sql(group).await;
    drop(Setup::lock_server(&url).start().await);
    let given = "GRANT ALL ON ALL TABLES IN SCHEMA fence_locks TO locks; \
                 GRANT ALL ON SCHEMA fence_locks TO locks";
    for owner in ["postgres", "app"] {
        postgres.sql("ALTER DATABASE postgres OWNER TO app").await;
        postgres.sql(&format!("ALTER SCHEMA fence_locks OWNER TO {owner}; {given}")).await;
        let server = Setup::lock_server(&url).start().await;
        server.locks().grant(owner, 60_000).await;
    }
}

#[tokio::test]
async fn rights_that_are_missing_are_named() {
    let (postgres, url) = with_roles().await;
    let rights = "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC; \
                  REVOKE CREATE ON DATABASE postgres FROM locks";
    postgres.sql(rights).await;
    let said = refused(&url).await;
    let named = "creating schema fence_locks): permission denied for database postgres";
    assert!(said.contains(named), "{said}");
    postgres.sql("GRANT CREATE ON DATABASE postgres TO locks").await;
    let said = refused(&url).await;
    assert!(said.contains("which needs TEMPORARY"), "{said}");
    // Tables of a schema that is there already need no right to the database.
    let rights = "GRANT TEMPORARY ON DATABASE postgres TO locks; \
                  REVOKE CREATE ON DATABASE postgres FROM locks";
    postgres.sql(rights).await;
    drop(Setup::lock_server(&url).start().await);
    let said = refused(&url.replace("locks@", "unknown@")).await;
    assert!(said.contains("role \"unknown\" does not exist"), "{said}");
    let said = refused(&url.replace("/postgres", "/none")).await;
    assert!(said.contains("database \"none\" does not exist"), "{said}");
}
