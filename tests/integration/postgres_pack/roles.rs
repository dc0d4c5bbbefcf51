//! Roles that could act on the fence, and locks that hold hand-overs up.

use fence_tests::psql::DONE;

use super::command::postgres;
use super::*;

/// Predefined roles: the version that has each first, and whether a client may be a member. A
/// server that has another one fails the test: decide on it here and in `pack/risks.sql`.
const PREDEFINED: [(&str, u32, bool); 18] = [
    // A checkpoint costs time.
    ("pg_checkpoint", 15, true),
    // A subscription writes after its owner's session has ended.
    ("pg_create_subscription", 16, false),
    // It is the database's owner, and has no other member.
    ("pg_database_owner", 14, false),
    // A program runs on after its session has ended.
    ("pg_execute_server_program", 11, false),
    // LOCK TABLE fence.marks.
    ("pg_maintain", 17, false),
    // Those to read settings and statistics, and to scan tables.
    ("pg_monitor", 10, true),
    // fence.keys.
    ("pg_read_all_data", 14, false),
    ("pg_read_all_settings", 10, true),
    // It sees the statements of others; clients share a role, and see each other's.
    ("pg_read_all_stats", 10, true),
    ("pg_read_server_files", 11, false),
    // It ends workers that clean up.
    ("pg_signal_autovacuum_worker", 18, true),
    // It ends the sessions of the guard and of the next holder.
    ("pg_signal_backend", 9, false),
    // ACCESS SHARE is in the way of changes of tables alone.
    ("pg_stat_scan_tables", 10, true),
    // They are the guard's way in when a holder has taken all others.
    ("pg_use_reserved_connections", 16, false),
    // fence.marks.
    ("pg_write_all_data", 14, false),
    ("pg_write_server_files", 11, false),
    // Not predefined: attributes.
    ("creator", 0, false),
    ("plain", 0, true),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_predefined_role_is_decided_on() {
    for server in [
        Postgres::start().await,
        Postgres::newer("postgres-17", &[]).await,
        Postgres::newer("postgres-18", &[]).await,
    ] {
        server.sql("create role creator createrole; create role plain createdb").await;
        server.sql(&pack::sql()).await;
        let version = server.sql("select current_setting('server_version_num')::int / 10000").await;
        let known = PREDEFINED.iter().filter(|(_, since, _)| *since <= version.parse().unwrap());
        let names: Vec<&str> = known.clone().map(|(name, ..)| *name).collect();
        let all = "select string_agg(rolname, ' ' order by rolname ~ '^pg_' desc, rolname) \
                   from pg_roles where not rolsuper";
        assert_eq!(server.sql(all).await, names.join(" "), "PostgreSQL {version}");
        for (name, _, is_allowed) in known {
            if *name == "pg_database_owner" {
                continue;
            }
            let member = format!("member_of_{name}");
            server.sql(&format!("create role {member} in role {name}")).await;
            let risks = "select reason from fence.risks() where role::regrole::text";
            let risks = server.sql(&format!("{risks} = '{member}'")).await;
            assert_eq!(risks.is_empty(), *is_allowed, "PostgreSQL {version}, {name}: {risks}");
            assert!(*is_allowed || risks.starts_with("is a member of"), "{risks}");
        }
    }
}

/// LOCK TABLE needs no more than MAINTAIN since 17, and holds up each hand-over and the status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_names_risky_clients_and_locks_that_block() {
    let server = Postgres::newer("postgres-18", &[]).await;
    install_on(&server).await;
    server
        .sql(
            "grant pg_maintain to app;
             create role writer login; grant insert on docs to writer;
             grant pg_create_subscription to writer;
             create role bystander login in role pg_maintain",
        )
        .await;
    let risky = [
        "risk: app is a member of pg_maintain, which locks tables of schema fence by MAINTAIN",
        "risk: writer is a member of pg_create_subscription, which may have subscriptions",
    ];
    let status = postgres(&server, "status").await;
    assert_eq!(status.code, 0, "{}", status.stderr);
    assert!(risky.iter().all(|line| status.stdout.contains(line)), "{}", status.stdout);
    assert!(!status.stdout.contains("bystander"), "{}", status.stdout);
    let mut old = app(&server);
    assert_eq!(old.run("begin; lock table fence.marks;").await, DONE);
    let pid = server.sql("select pid from pg_stat_activity where usename = 'app'").await;
    assert_eq!(app(&server).run(&seal("docs/1", 34, NEW, 1)).await, "55P03");
    let status = postgres(&server, "status").await;
    assert_eq!(status.code, 1, "{}", status.stdout);
    let blocked = format!(
        "BLOCKED: session {pid} of role app holds AccessExclusiveLock of fence.marks, since 20"
    );
    assert!(status.stdout.contains(&blocked), "{}", status.stdout);
    assert!(status.stdout.contains("BLOCKED: the rest"), "{}", status.stdout);
    assert_eq!(old.run("rollback;").await, DONE);
    let status = postgres(&server, "status").await;
    assert_eq!(status.code, 0, "{}", status.stdout);
}
