//! TLS on both sides of the port, and logins that need a password or a certificate.

use fence_tests::certificates::Certificates;
use fence_tests::postgres_client::{PostgresClient, credential_of, frame, startup};
use fence_tests::postgres_server::Postgres;
use fence_tests::process::{Process, command};
use fence_tests::servers::Setup;
use fence_tests::tls_client::TlsClient;
use fence_tests::wait::until;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Port, database, port, setup, setup_at, shop};

const LOCAL: &str = "local all all trust\nhost all postgres 127.0.0.1/32 trust\n";

/// URL of the guard's role over TLS, with files of `certificates`.
fn tls_url(postgres: &Postgres, certificates: &Certificates, has_client: bool) -> String {
    let [ca, certificate, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| certificates.text(name));
    let client = match has_client {
        true => format!("&sslcert={certificate}&sslkey={key}"),
        false => String::new(),
    };
    let address = format!("localhost:{}", postgres.port());
    format!("postgres://guard@{address}/shop?sslmode=verify-full&sslrootcert={ca}{client}")
}

/// psql over TLS with a token.
fn psql_tls(port: &Port, ca: &Certificates, token: u64, args: &[&str]) -> Process {
    let (_, number) = port.address.rsplit_once(':').unwrap();
    let mut psql = command("psql");
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"]);
    psql.arg(format!(
        "host=localhost hostaddr=127.0.0.1 port={number} user=app dbname=shop sslmode=verify-full \
         sslrootcert={}",
        ca.text("ca.pem")
    ));
    psql.env("PGPASSWORD", credential_of("shop", token, token)).args(args);
    Process::spawn("psql", psql)
}

/// Address of a port that speaks TLS.
async fn tls_port(setup: &Setup, certificates: &Certificates) -> Port {
    let listener = certificates.listener();
    let flags: Vec<&str> = listener.iter().map(String::as_str).collect();
    port(&setup.clone().args(&flags)).await
}

#[tokio::test]
async fn tls_on_both_sides_carries_everything() {
    let certificates = Certificates::new();
    let mut postgres = database().await;
    postgres.speak_tls(&certificates);
    let hba = format!("{LOCAL}hostssl all guard,writer 127.0.0.1/32 cert map=fence\n");
    postgres.write("pg_hba.conf", &hba);
    postgres.write("pg_ident.conf", "fence client guard\nfence client writer\n");
    postgres.restart().await;
    let url = tls_url(&postgres, &certificates, true);
    let setup = setup_at(&url).args(&["--postgres-writer", "writer"]);
    let port = tls_port(&setup, &certificates).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows");
    let script = format!(
        "SELECT ssl, client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid();
         CREATE TABLE t (a int, b text);
         INSERT INTO t SELECT i, repeat('x', 3000) FROM generate_series(1, 3000) i;
         \\copy t to '{0}'
         \\copy t from '{0}'
         SELECT count(*), sum(length(b)), length(repeat('y', 5000000)) FROM t;",
        file.display()
    );
    let script_file = folder.path().join("script.sql");
    std::fs::write(&script_file, script).unwrap();
    let args = ["-f", script_file.to_str().unwrap()];
    let ended = psql_tls(&port, &certificates, 1, &args).ended().await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("t|/CN=client\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("6000|18000000|5000000"), "{}", ended.stdout);
    // A cancel request reaches the server over TLS too, and so does a hand-over.
    let args = ["-c", "SELECT pg_sleep(600)"];
    let mut old = psql_tls(&port, &certificates, 1, &args);
    let asleep = || async {
        let sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        (postgres.sql(sql).await == "1").then_some(())
    };
    until("the statement to run", asleep).await;
    old.signal(Signal::INT);
    let ended = old.ended().await;
    assert!(ended.stderr.contains("due to user request"), "{}", ended.stderr);
    let mut old = psql_tls(&port, &certificates, 1, &args);
    until("the statement to run", asleep).await;
    let ended = psql_tls(&port, &certificates, 2, &["-c", "SELECT 1"]).ended().await;
    assert_eq!(ended.stdout, "1\n", "{}", ended.stderr);
    let ended = old.ended().await;
    assert!(ended.stderr.contains("a newer holder of lock shop"), "{}", ended.stderr);
}

/// libpq since 17 and asyncpg do, and end the connection if the port does not.
#[tokio::test]
async fn drivers_may_name_the_protocol_in_the_handshake() {
    let certificates = Certificates::new();
    let postgres = database().await;
    let port = tls_port(&setup(&postgres), &certificates).await;
    let named = async |client: TlsClient| {
        let mut stream = TcpStream::connect(&port.address).await.unwrap();
        stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'S');
        let stream = client.connect(stream).await?;
        std::io::Result::Ok(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    let client = TlsClient::anonymous(&certificates);
    assert_eq!(named(client.clone()).await.unwrap(), None);
    let name = named(client.clone().naming("postgresql")).await.unwrap();
    assert_eq!(name.as_deref(), Some(&b"postgresql"[..]));
    // What a browser sends never reaches the port.
    assert!(named(client.naming("http/1.1")).await.is_err());
}

#[tokio::test]
async fn a_server_that_is_not_the_named_one_is_refused() {
    let certificates = Certificates::new();
    let mut postgres = database().await;
    let plain = setup_at(&tls_url(&postgres, &certificates, false));
    let plain = plain.args(&["--postgres-writer", "writer"]).refused().await;
    assert!(plain.stderr.contains("does not speak TLS"), "{}", plain.stderr);
    postgres.speak_tls(&certificates);
    postgres.restart().await;
    for (certificates, reason) in [
        (&Certificates::new(), "certificate"),
        (&Certificates::for_names(&["other"]), "certificate"),
    ] {
        let setup = setup_at(&tls_url(&postgres, certificates, false));
        let refused = setup.args(&["--postgres-writer", "writer"]).refused().await;
        assert!(refused.stderr.contains(reason), "{}", refused.stderr);
    }
    let names = Certificates::for_names(&["db.example"]);
    postgres.speak_tls(&names);
    postgres.restart().await;
    let setup = setup_at(&tls_url(&postgres, &names, false));
    let refused = setup.args(&["--postgres-writer", "writer"]).refused().await;
    assert!(refused.stderr.contains("db.example"), "{}", refused.stderr);
}

#[tokio::test]
async fn passwords_are_sent_by_scram_alone() {
    let mut postgres = database().await;
    for role in ["guard", "writer", "reader"] {
        postgres.sql(&format!("ALTER ROLE {role} PASSWORD 'the {role}''s'")).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let guard = file("guard", "the guard's\n");
    let writer = file("writer", "the writer's\n");
    let wrong = file("wrong", "wrong");
    let hba = format!("{LOCAL}host all all 127.0.0.1/32 scram-sha-256\n");
    postgres.write("pg_hba.conf", &hba);
    postgres.restart().await;
    for (guard, writer, reason) in [
        (None, None, "wants a password of user guard"),
        (Some(&wrong), None, "password authentication failed for user \"guard\""),
        (Some(&guard), None, "wants a password of user writer"),
        (Some(&guard), Some(&wrong), "password authentication failed for user \"writer\""),
    ] {
        let mut setup = setup(&postgres);
        for (flag, file) in
            [("--postgres-password-file", guard), ("--postgres-writer-password-file", writer)]
        {
            setup = file.map_or(setup.clone(), |file| setup.args(&[flag, file]));
        }
        let refused = setup.refused().await;
        assert!(refused.stderr.contains(reason), "{reason}: {}", refused.stderr);
    }
    let files = ["--postgres-password-file", &guard, "--postgres-writer-password-file", &writer];
    let port = port(&setup(&postgres).args(&files)).await;
    let mut client = port.log_in(1).await.unwrap();
    assert_eq!(client.query("SELECT current_user").await.unwrap(), ["writer"]);
    // Each role may change its own password: the next session is refused with the server's reason.
    client.query("ALTER ROLE writer PASSWORD 'mine'").await.unwrap();
    assert_eq!(port.log_in(2).await.unwrap_err().code(), "28P01");
    client.query("ALTER ROLE writer PASSWORD 'the writer''s'").await.unwrap();
    port.log_in(2).await.unwrap();
    let reader = PostgresClient::log_in(&port.address, "reader", "shop", "the reader's").await;
    assert_eq!(reader.unwrap().query("SELECT current_user").await.unwrap(), ["reader"]);
    let reader = PostgresClient::log_in(&port.address, "reader", "shop", "wrong").await;
    assert_eq!(reader.unwrap_err().code(), "28P01");
    // In the clear the guard sends none.
    let hba = format!("{LOCAL}host all all 127.0.0.1/32 password\n");
    postgres.write("pg_hba.conf", &hba);
    postgres.restart().await;
    let reader = PostgresClient::log_in(&port.address, "reader", "shop", "the reader's").await;
    let refused = reader.unwrap_err();
    assert_eq!(refused.code(), "08001");
    assert!(refused.field('M').contains("use SCRAM"), "{refused:?}");
}

#[tokio::test]
async fn a_port_with_a_certificate_speaks_tls_alone() {
    let certificates = Certificates::new();
    let postgres = database().await;
    let port = tls_port(&setup(&postgres), &certificates).await;
    let ended = psql_tls(&port, &certificates, 1, &["-c", "SELECT 7"]).ended().await;
    assert_eq!(ended.stdout, "7\n", "{}", ended.stderr);
    let other = psql_tls(&port, &Certificates::new(), 1, &["-c", "SELECT 7"]).ended().await;
    assert!(other.stderr.contains("SSL error"), "{}", other.stderr);
    // Plain text is refused before a password is asked for.
    let plain = PostgresClient::log_in(&port.address, "a", "shop", "x").await.unwrap_err();
    assert_eq!(plain.code(), "28000");
    assert!(plain.field('H').contains("sslmode"), "{plain:?}");
    // As a client with GSSAPI asks.
    let request = |code: u32| [&8_i32.to_be_bytes()[..], &code.to_be_bytes()].concat();
    let mut client = PostgresClient::connect(&port.address).await;
    client.send(&request(80_877_104)).await;
    assert_eq!(client.byte().await, Some(b'N'));
    client.send(&request(80_877_103)).await;
    assert_eq!(client.byte().await, Some(b'S'));
    // What is no handshake ends the connection, and so does a startup behind the request.
    client.send(&startup(3 << 16, &[("user", "a"), ("database", "shop")])).await;
    assert_eq!(closed(client).await, None);
    let mut client = PostgresClient::connect(&port.address).await;
    client.send(&[request(80_877_103), frame(b'Q', b"SELECT 1\0")].concat()).await;
    assert_eq!(client.byte().await, Some(b'S'));
    assert_eq!(closed(client).await, None);
    let ended = psql_tls(&port, &certificates, 1, &["-c", "SELECT 8"]).ended().await;
    assert_eq!(ended.stdout, "8\n", "{}", ended.stderr);
    assert_eq!(
        shop(&postgres, "guard", "SELECT token FROM fence.marks WHERE lock = 'shop'").await,
        "1"
    );
}

/// `sslnegotiation=direct` of libpq 17. Clients of other protocols, which name theirs or none, are
/// refused.
#[tokio::test]
async fn tls_may_begin_without_a_request() {
    let certificates = Certificates::new();
    let postgres = database().await;
    let tls = tls_port(&setup(&postgres), &certificates).await;
    let direct = async |client: TlsClient| {
        let stream = TcpStream::connect(&tls.address).await.unwrap();
        let mut stream = client.connect(stream).await?;
        let credential = credential_of("shop", 1, 1);
        let pairs = [("user", "a"), ("database", "shop"), ("fence.token", &*credential)];
        stream.write_all(&startup(3 << 16, &pairs)).await?;
        let tag = stream.read_u8().await?;
        let mut body = vec![0; usize::try_from(stream.read_i32().await?).unwrap() - 4];
        stream.read_exact(&mut body).await?;
        std::io::Result::Ok((tag, String::from_utf8_lossy(&body).into_owned()))
    };
    let client = TlsClient::anonymous(&certificates);
    let (tag, body) = direct(client.clone().naming("postgresql")).await.unwrap();
    assert_eq!((tag, &*body), (b'R', "\0\0\0\0"));
    let (tag, body) = direct(client.clone()).await.unwrap();
    assert!(tag == b'E' && body.contains("ALPN postgresql"), "{body}");
    assert!(direct(client.naming("http/1.1")).await.is_err());
    // Without a certificate the port says so.
    let plain = port(&setup(&postgres)).await;
    let mut client = PostgresClient::connect(&plain.address).await;
    client.send(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]).await;
    let error = client.frame().await.unwrap().error().unwrap();
    assert_eq!(error.code(), "0A000");
    assert!(error.field('H').contains("--tls-cert"), "{error:?}");
}

/// libpq since 17 takes another end for a failure.
#[tokio::test]
async fn a_cancel_request_ends_as_tls_does() {
    let certificates = Certificates::new();
    let postgres = database().await;
    let port = tls_port(&setup(&postgres), &certificates).await;
    let client = TlsClient::anonymous(&certificates).naming("postgresql");
    let mut stream = TcpStream::connect(&port.address).await.unwrap();
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'S');
    let mut stream = client.connect(stream).await.unwrap();
    stream.write_all(&[0, 0, 0, 16, 4, 210, 22, 46, 0, 0, 0, 1, 0, 0, 0, 1]).await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

/// Reads to the end; an alert of TLS may come first.
async fn closed(mut client: PostgresClient) -> Option<u8> {
    while client.byte().await.is_some() {}
    client.byte().await
}
