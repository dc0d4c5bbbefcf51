//! pgbouncer before the port, in session mode, and behind it, where the probe finds it.

use std::path::Path;

use fence_tests::ports;
use fence_tests::postgres_client::credential_of;
use fence_tests::process::{Process, command};
use fence_tests::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::{database, port, setup, setup_at, shop};

/// A pgbouncer in session mode.
struct Pooler {
    process: Process,
    port: u16,
    folder: tempfile::TempDir,
}

impl Pooler {
    /// Starts one whose database `shop` is at these parameters of a connection.
    async fn start(shop: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = ports::unused();
        write(folder.path(), port, shop);
        // It refuses to run as root.
        let made = command("chown").args(["-R", "postgres"]).arg(folder.path()).status().unwrap();
        assert!(made.success());
        let mut pgbouncer = command("pgbouncer");
        pgbouncer.args(["-u", "postgres"]).arg(folder.path().join("pgbouncer.ini"));
        let process = Process::spawn("pgbouncer", pgbouncer);
        let pooler = Self { process, port, folder };
        until("pgbouncer to listen", || async {
            TcpStream::connect(("127.0.0.1", pooler.port)).await.ok()
        })
        .await;
        pooler
    }

    /// psql as a client of the pooler.
    fn psql(&self, sql: &str) -> Process {
        let mut psql = command("psql");
        psql.args(["-X", "-q", "-A", "-t", "-d"]);
        psql.arg(format!("postgres://app@127.0.0.1:{}/shop", self.port)).args(["-c", sql]);
        Process::spawn("psql", psql)
    }
}

fn write(folder: &Path, port: u16, shop: &str) {
    let text = format!(
        "[databases]\nshop = {shop}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = any\npool_mode = session\nserver_login_retry = 1\n\
         query_wait_timeout = 8\nignore_startup_parameters = options\n"
    );
    std::fs::write(folder.join("pgbouncer.ini"), text).unwrap();
}

fn behind_the_pooler(address: &str, token: u64) -> String {
    let (host, port) = address.split_once(':').unwrap();
    let credential = credential_of("shop", token, token);
    format!("host={host} port={port} user=app password={credential}")
}

#[tokio::test]
async fn a_pooler_before_the_port_keeps_sessions_and_follows_the_lease() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let pooler = Pooler::start(&behind_the_pooler(&port.address, 5)).await;
    for _ in 0..3 {
        let ended = pooler.psql("INSERT INTO journal VALUES (5, 1)").ended().await;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    // One session served them all.
    let sessions = "SELECT count(*) FROM fence.sessions WHERE lock = 'shop'";
    assert_eq!(shop(&postgres, "guard", sessions).await, "1");
    port.log_in(6).await.unwrap();
    let insert = "INSERT INTO journal VALUES (5, 2)";
    let ended = pooler.psql(insert).ended().await;
    assert_ne!(ended.code, 0, "{}", ended.stdout);
    // The next lease's credential is a reload of the pooler's settings.
    write(pooler.folder.path(), pooler.port, &behind_the_pooler(&port.address, 7));
    pooler.process.signal(rustix::process::Signal::HUP);
    let written = || async {
        let ended = pooler.psql("INSERT INTO journal VALUES (7, 1)").ended().await;
        (ended.code == 0).then_some(())
    };
    until("the pooler to have the new credential", written).await;
    let rows = "SELECT string_agg(token || ' ' || seq, ',' ORDER BY token) FROM journal";
    assert_eq!(shop(&postgres, "postgres", rows).await, "5 1,5 1,5 1,7 1");
}

#[tokio::test]
async fn a_pooler_behind_the_port_is_refused() {
    let postgres = database().await;
    let behind = format!("host=127.0.0.1 port={} user=guard", postgres.port());
    let pooler = Pooler::start(&behind).await;
    let setup = setup_at(&format!("postgres://guard@127.0.0.1:{}/shop", pooler.port));
    let refused = setup.args(&["--postgres-writer", "writer"]).refused().await;
    assert!(refused.stderr.contains("pooler"), "{}", refused.stderr);
}

/// Its check sends a user and no database, and waits for the question for a password.
#[tokio::test]
async fn the_check_of_haproxy_finds_the_port_up() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("stats");
    let text = format!(
        "global\n  stats socket {}\ndefaults\n  mode tcp\n  timeout connect 10s\n  \
         timeout client 10s\n  timeout server 10s\n  timeout check 10s\nlisten shop\n  \
         bind 127.0.0.1:{}\n  option pgsql-check user monitor\n  \
         server guard {} check inter 1s\n",
        socket.display(),
        ports::unused(),
        port.address
    );
    let file = folder.path().join("haproxy.cfg");
    std::fs::write(&file, text).unwrap();
    let mut haproxy = command("haproxy");
    haproxy.args(["-db", "-f"]).arg(&file);
    let _haproxy = Process::spawn("haproxy", haproxy);
    let state = || async {
        let mut stream = UnixStream::connect(&socket).await.ok()?;
        stream.write_all(b"show stat\n").await.ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await.ok()?;
        let line = said.lines().find(|line| line.starts_with("shop,guard,"))?.to_owned();
        line.contains("L7").then_some(line)
    };
    let line = until("the check's result", state).await;
    assert!(line.contains("L7OK"), "{line}");
}
