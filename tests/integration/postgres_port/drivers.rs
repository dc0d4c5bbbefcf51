//! psql and pgbench, unchanged.

use std::time::Duration;

use fence_tests::postgres_client::{PostgresClient, cancel, credential_of, startup};
use fence_tests::postgres_server::Postgres;
use fence_tests::process::{Process, command};
use fence_tests::wait::until;
use rustix::process::Signal;

use super::{database, port, prepare, setup, shop};

/// Limit of a run of pgbench.
const BENCH: Duration = Duration::from_secs(180);

#[tokio::test]
async fn psql_reads_writes_and_copies() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows");
    let script = format!(
        "CREATE TABLE t (a int, b text);
         INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 5000) i;
         \\copy t to '{0}'
         \\copy t from '{0}'
         SELECT count(*), sum(length(b)) FROM t;
         LISTEN news;
         NOTIFY news, 'hello';
         SELECT 'after';
         DISCARD ALL;
         SELECT current_user;",
        file.display()
    );
    let script_file = folder.path().join("script.sql");
    std::fs::write(&script_file, script).unwrap();
    let psql = port.psql(1, &["-f", script_file.to_str().unwrap()]);
    let ended = Process::spawn("psql", psql).ended().await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("10000|10000000"), "{}", ended.stdout);
    assert!(ended.stdout.contains("\"news\" with payload \"hello\""), "{}", ended.stdout);
    assert!(ended.stdout.ends_with("writer\n"), "{}", ended.stdout);
    // An error leaves the session usable.
    let psql = port.psql(1, &["-v", "ON_ERROR_STOP=0", "-c", "SELECT 1/0", "-c", "SELECT 7"]);
    let ended = Process::spawn("psql", psql).ended().await;
    assert!(ended.stderr.contains("division by zero"), "{}", ended.stderr);
    assert!(ended.stdout.contains('7'), "{}", ended.stdout);
}

#[tokio::test]
async fn a_token_may_come_by_the_options() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut psql = command("psql");
    psql.args(["-X", "-A", "-t", "-w", "-d"]);
    psql.arg(format!("postgres://app@{}/shop", port.address));
    let options = format!("-c fence.token={} -c lock_timeout=7s", credential_of("shop", 3, 3));
    psql.env("PGOPTIONS", options).args(["-c", "SHOW lock_timeout"]);
    let ended = Process::spawn("psql", psql).ended().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "7s\n"), "{}", ended.stderr);
    let mark = shop(&postgres, "guard", "SELECT token FROM fence.marks WHERE lock = 'shop'").await;
    assert_eq!(mark, "3");
}

#[tokio::test]
async fn pgbench_runs_in_each_mode() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let (host, number) = port.address.split_once(':').unwrap();
    let bench = |args: &[&str]| {
        let mut bench = command("pgbench");
        bench.env("PGPASSWORD", credential_of("shop", 1, 1));
        bench.args(["-h", host, "-p", number, "-U", "app"]).args(args).arg("shop");
        bench
    };
    let ended = Process::spawn("pgbench", bench(&["-i", "-q"])).ended_within(BENCH).await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for mode in ["simple", "extended", "prepared"] {
        let args = ["-M", mode, "-c", "8", "-j", "2", "-t", "100"];
        let ended = Process::spawn("pgbench", bench(&args)).ended_within(BENCH).await;
        assert_eq!(ended.code, 0, "{mode}: {}", ended.stderr);
        assert!(ended.stdout.contains("actually processed: 800/800"), "{mode}: {}", ended.stdout);
    }
}

#[tokio::test]
async fn a_statement_is_cancelled_by_its_own_key_alone() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut sleeper = port.log_in(1).await.unwrap();
    let (pid, secret) = sleeper.key.clone();
    sleeper.send(&fence_tests::postgres_client::frame(b'Q', b"SELECT pg_sleep(600)\0")).await;
    let is_asleep = || async {
        let sql =
            format!("SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'");
        (shop(&postgres, "postgres", &sql).await == "1").then_some(())
    };
    until("the statement to run", is_asleep).await;
    let mut other = secret.clone();
    other[3] ^= 1;
    for wrong in [(pid, &*other), (pid + 1, &*secret)] {
        cancel(&port.address, wrong).await;
    }
    assert_eq!(is_asleep().await, Some(()));
    cancel(&port.address, (pid, &secret)).await;
    assert_eq!(sleeper.rows().await.unwrap_err().code(), "57014");
    assert_eq!(sleeper.query("SELECT 5").await.unwrap(), ["5"]);
    // psql does the same on SIGINT.
    let mut psql = Process::spawn("psql", port.psql(1, &["-c", "SELECT pg_sleep(600)"]));
    let sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let asleep = || async { (shop(&postgres, "postgres", sql).await == "1").then_some(()) };
    until("psql's statement to run", asleep).await;
    psql.signal(Signal::INT);
    let ended = psql.ended().await;
    assert!(ended.stderr.contains("canceling statement due to user request"), "{}", ended.stderr);
}

#[tokio::test]
async fn clients_without_a_token_read_as_the_reader() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let reader = PostgresClient::log_in(&port.address, "reader", "shop", "any");
    let mut reader = reader.await.unwrap();
    assert_eq!(reader.query("SELECT count(*) FROM journal").await.unwrap(), ["0"]);
    let refused = reader.query("INSERT INTO journal VALUES (1, 1)").await.unwrap_err();
    assert_eq!(refused.code(), "42501");
    // The reader's password is the server's business.
    let hba = "host all reader 127.0.0.1/32 scram-sha-256\nhost all writer 127.0.0.1/32 \
               scram-sha-256\nhost all all 127.0.0.1/32 trust\nlocal all all trust\n";
    std::fs::write(postgres.data().join("pg_hba.conf"), hba).unwrap();
    shop(&postgres, "postgres", "ALTER ROLE reader PASSWORD 'secret'; SELECT pg_reload_conf()")
        .await;
    let asked = || async {
        let wrong = PostgresClient::log_in(&port.address, "reader", "shop", "wrong").await;
        wrong.err().map(|error| error.code().to_owned())
    };
    assert_eq!(until("the password to be checked", asked).await, "28P01");
    let right = PostgresClient::log_in(&port.address, "reader", "shop", "secret").await;
    assert_eq!(right.unwrap().query("SELECT current_user").await.unwrap(), ["reader"]);
    // The guard has no password of the writer.
    assert_eq!(port.log_in(9).await.unwrap_err().code(), "08001");
}

/// The pack's tables are the guard's: a dump leaves them out, as docs/operating/postgresql-port.md
/// says.
#[tokio::test]
async fn pg_dump_works_without_the_schema_of_the_fence() {
    let postgres = Postgres::of_debian().await;
    prepare(&postgres).await;
    let port = port(&setup(&postgres)).await;
    port.log_in(5).await.unwrap().query("INSERT INTO journal VALUES (5, 1)").await.unwrap();
    let dump = |user: &str, password: String, args: &[&str]| {
        let mut dump = command("pg_dump");
        dump.arg("-d").arg(format!("postgres://{user}@{}/shop", port.address)).args(args);
        dump.env("PGPASSWORD", password);
        Process::spawn("pg_dump", dump)
    };
    let users = [("app", credential_of("shop", 5, 5)), ("reader", "any".to_owned())];
    for (user, password) in users {
        let ended = dump(user, password.clone(), &["-N", "fence"]).ended().await;
        assert_eq!(ended.code, 0, "{user}: {}", ended.stderr);
        assert!(ended.stdout.contains("COPY public.journal"), "{}", ended.stdout);
        let ended = dump(user, password, &[]).ended().await;
        assert!(ended.code != 0 && ended.stderr.contains("denied for"), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn clients_reach_no_part_of_the_fence() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = port.log_in(5).await.unwrap();
    let lease = "67e55044-10b1-426f-9247-bb680e5fe0c8";
    for sql in [
        "SELECT * FROM fence.marks".to_owned(),
        "DELETE FROM fence.sessions".to_owned(),
        format!("SELECT fence.register('default', 'shop', 99, '{lease}')"),
        format!("SELECT fence.seal('shop', 99, '{lease}')"),
        "DROP SCHEMA fence CASCADE".to_owned(),
        "SET ROLE guard".to_owned(),
        "SET SESSION AUTHORIZATION guard".to_owned(),
    ] {
        assert_eq!(client.query(&sql).await.unwrap_err().code(), "42501", "{sql}");
    }
    for sql in ["RESET ROLE", "RESET SESSION AUTHORIZATION", "RESET ALL", "DISCARD ALL"] {
        client.query(sql).await.unwrap();
    }
    assert_eq!(client.query("SELECT current_user").await.unwrap(), ["writer"]);
    // The session is still the one that was registered.
    port.log_in(6).await.unwrap();
    assert_eq!(client.query("SELECT 1").await.unwrap_err().code(), "FE412");
}

#[tokio::test]
async fn requests_in_one_piece_are_answered_in_order() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = PostgresClient::connect(&port.address).await;
    let credential = credential_of("shop", 1, 1);
    // The first query arrives with the startup.
    let mut bytes =
        startup(3 << 16, &[("user", "a"), ("database", "shop"), ("fence.token", &credential)]);
    for number in 0..100 {
        let sql = format!("SELECT {number}\0");
        bytes.extend(fence_tests::postgres_client::frame(b'Q', sql.as_bytes()));
    }
    client.send(&bytes).await;
    client.finish_login("").await.unwrap();
    for number in 0..100 {
        assert_eq!(client.rows().await.unwrap(), [number.to_string()]);
    }
}
