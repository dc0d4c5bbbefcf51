//! Peers that are measured beside each other: PostgreSQL, two plain proxies before it, and the
//! guard before it.

use fenced_store::stores::postgres::pack;
use tokio::process::Command;

use crate::bench::forwarder::{Forwarder, Started};
use crate::bench::guard::NAMESPACE;
use crate::bench::http;
use crate::bench::load::Counted;
use crate::bench::server::Server;
use crate::own_postgres::{OwnPostgres, SUPERUSER};
use fence_terminal::exit::Failure;
use fence_terminal::output::say;

/// The database that is measured, whose name is also its lock's.
const DATABASE: &str = "bench";
/// The guard's role.
const GUARD: &str = "guard";
/// Role of the clients.
const WRITER: &str = "writer";
/// Number of rows, in units of 100 000.
const SCALE: &str = "10";

/// Everything that was started; killed where this is dropped.
pub(super) struct Peers {
    postgres: OwnPostgres,
    guard: Server,
    locks: Server,
    others: Vec<Forwarder>,
    missing: Vec<String>,
    credential: String,
}

/// One side.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// Address of the clients, `HOST:PORT`.
    address: String,
    /// The process in between, whose CPU time is counted.
    pub(super) proxy: Option<Counted>,
    password: Option<String>,
}

impl Peers {
    /// Starts what is measured for so many clients.
    pub(super) async fn start(clients: u16) -> Result<Self, Failure> {
        // A pool keeps its sessions while the other sides have their turns.
        let connections = format!("max_connections={}", u32::from(clients) * 2 + 40);
        let settings = ["synchronous_commit=off", "shared_buffers=256MB", &connections];
        let postgres = OwnPostgres::start("run it where it is installed", &settings).await?;
        prepare(&postgres).await?;
        let locks = Server::start("lock-server", "embedded:", &NAMESPACE).await?;
        let upstream = postgres.url_of(GUARD, DATABASE);
        let guard = Server::start_postgres_port(&upstream, WRITER, &NAMESPACE).await?;
        let mut others = Vec::new();
        let mut missing = Vec::new();
        for start in [pgbouncer, haproxy] {
            match start(postgres.port())? {
                Ok(forwarder) => {
                    forwarder.answers().await?;
                    others.push(forwarder);
                }
                Err(why) => {
                    say(&format!("NOT MEASURED: {why}"));
                    missing.push(why);
                }
            }
        }
        let credential = http::lease(&locks.url, DATABASE).await?.fencing_credential;
        Ok(Self { postgres, guard, locks, others, missing, credential })
    }

    /// The sides, PostgreSQL itself first.
    pub(super) fn columns(&self) -> Vec<Peer> {
        let direct = format!("127.0.0.1:{}", self.postgres.port());
        let mut columns =
            vec![Peer { name: "direct", address: direct, proxy: None, password: None }];
        columns.extend(self.others.iter().map(|other| Peer {
            name: other.name,
            address: other.address.clone(),
            proxy: Some((other.name, other.pid())),
            password: None,
        }));
        let port = self.guard.port.as_deref().unwrap_or_default();
        let address = port.trim_start_matches("postgres://").split('/').next().unwrap_or_default();
        columns.push(Peer {
            name: "guard, token",
            address: address.to_owned(),
            proxy: Some(("fenced-store", self.guard.pid())),
            password: Some(self.credential.clone()),
        });
        columns
    }

    /// pgbench at a side, without what it is to do.
    pub(super) fn pgbench(&self, peer: &Peer) -> Command {
        let (host, port) = peer.address.rsplit_once(':').unwrap_or_default();
        let mut pgbench = Command::new(self.postgres.program("pgbench"));
        pgbench.env_clear().envs(peer.password.as_ref().map(|password| ("PGPASSWORD", password)));
        pgbench.args(["-h", host, "-p", port, "-U", WRITER, DATABASE]);
        pgbench
    }

    /// Ends the clients' sessions at the server, so that all sides begin alike: those of the last
    /// side would end during the next one's turn, and a pool would begin with warm ones.
    pub(super) async fn end_sessions(&self) -> Result<(), Failure> {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity \
             WHERE usename = '{WRITER}'"
        );
        self.postgres.sql(SUPERUSER, DATABASE, &sql).await.map(|_| ())
    }

    /// Sides that are not there, and why.
    pub(super) fn missing(&self) -> Vec<String> {
        self.missing.clone()
    }

    /// Ends what was started.
    pub(super) async fn end(self) {
        for server in [self.guard, self.locks] {
            server.end().await;
        }
        for other in self.others {
            other.end().await;
        }
        self.postgres.end().await;
    }
}

/// Makes roles, the database with the SQL pack, and pgbench's tables.
async fn prepare(postgres: &OwnPostgres) -> Result<(), Failure> {
    let roles = format!(
        "CREATE ROLE {GUARD} LOGIN; GRANT pg_read_all_stats, pg_signal_backend TO {GUARD}; \
         CREATE ROLE {WRITER} LOGIN"
    );
    postgres.sql(SUPERUSER, "postgres", &roles).await?;
    postgres.sql(SUPERUSER, "postgres", &format!("CREATE DATABASE {DATABASE}")).await?;
    let rights = format!(
        "GRANT CREATE ON DATABASE {DATABASE} TO {GUARD}; GRANT CREATE ON SCHEMA public TO {WRITER}"
    );
    postgres.sql(SUPERUSER, DATABASE, &rights).await?;
    postgres.sql(GUARD, DATABASE, &pack::sql()).await?;
    let port = postgres.port().to_string();
    let mut init = Command::new(postgres.program("pgbench"));
    init.args(["-i", "-q", "-s", SCALE, "-h", "127.0.0.1", "-p", &port, "-U", WRITER, DATABASE]);
    postgres.run(&mut init).await
}

/// pgbouncer in session mode, with a session at the server for each client.
fn pgbouncer(postgres: u16) -> Started {
    Forwarder::start("pgbouncer", &["-q"], |_, port| {
        format!(
            "[databases]\n{DATABASE} = host=127.0.0.1 port={postgres} user={WRITER}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = session\nmax_client_conn = 2000\n\
             default_pool_size = 1024\n"
        )
    })
}

/// HAProxy with a thread a core.
fn haproxy(postgres: u16) -> Started {
    Forwarder::start("haproxy", &["-db", "-f"], |_, port| {
        format!(
            "global\n maxconn 4096\ndefaults\n mode tcp\n timeout connect 5s\n timeout client \
             600s\n timeout server 600s\nlisten all\n bind 127.0.0.1:{port}\n server postgres \
             127.0.0.1:{postgres}\n"
        )
    })
}
