//! A PostgreSQL of our own, for a demo.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use fence_terminal::exit::{Failure, code};
use postgres_link::{ConnectOptions, PostgresTarget};
use service_kit::tasks::Tasks;
use tempfile::TempDir;

use super::own_redis::{find, free_port};
use super::process::{Process, awaited};

/// Folder of the programs of each version, in Debian.
const PROGRAMS: &str = "/usr/lib/postgresql";
/// The superuser of the server, and the system's user that it runs as instead of root.
const USER: &str = "postgres";

/// Kept running until this is dropped.
#[derive(Debug)]
pub(crate) struct OwnPostgres {
    url: String,
    process: Process,
    _dir: TempDir,
}

impl OwnPostgres {
    /// Starts the newest server that is installed on a free port, with its files in a temporary
    /// folder.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let server = program("postgres").ok_or_else(|| {
            let message = "there is no PostgreSQL server in the PATH or /usr/lib/postgresql. \
                           Install it (Debian and Ubuntu: apt install postgresql), or name one \
                           with --store postgres://USER@HOST:PORT/DATABASE";
            Failure::new(code::UNAVAILABLE, message)
        })?;
        let broken = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
        let dir = tempfile::Builder::new().prefix("fence-demo-").tempdir().map_err(broken)?;
        give(dir.path()).map_err(broken)?;
        let data = dir.path().join("data");
        init(&server.with_file_name("initdb"), &data).await?;
        let port = free_port().map_err(broken)?;
        let text = |path: &Path| path.display().to_string();
        let args = vec![
            "-D".to_owned(),
            text(&data),
            "-p".to_owned(),
            port.to_string(),
            "-k".to_owned(),
            text(dir.path()),
            "-h".to_owned(),
            "127.0.0.1".to_owned(),
            "-F".to_owned(),
        ];
        let (server, args) = as_user(&server, args);
        let process = Process::start_other("postgres", &server, &args, dir.path())?;
        let own = Self {
            url: format!("postgres://{USER}@127.0.0.1:{port}/postgres"),
            process,
            _dir: dir,
        };
        own.answers(&data).await?;
        Ok(own)
    }

    /// Waits until it answers, and checks that no other program's server took the port.
    async fn answers(&self, data: &Path) -> Result<(), Failure> {
        let target: PostgresTarget =
            self.url.parse().map_err(|error| Failure::internal(format!("{error}")))?;
        let tasks = Tasks::new();
        let options = ConnectOptions::default();
        let connection = awaited("a PostgreSQL that answers", async || {
            Ok(target.connect(&options, &tasks).await.ok())
        })
        .await?;
        let shown = connection.client().simple_query("SHOW data_directory").await;
        let shown = shown.map_err(|error| Failure::new(code::UNAVAILABLE, error.to_string()))?;
        let is_ours = shown.iter().any(|reply| match reply {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                row.get(0) == Some(data.display().to_string().as_str())
            }
            _ => false,
        });
        if is_ours {
            return Ok(());
        }
        let message = "another PostgreSQL took the port; start the demo again";
        Err(Failure::new(code::UNAVAILABLE, message))
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Ends it; its back ends notice.
    pub(crate) async fn end(self) {
        self.process.end().await;
    }
}

/// Path of a server's program: of the newest version that is installed, or on the PATH.
fn program(name: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir(PROGRAMS).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .map(|(version, path)| (version, path.join("bin").join(name)))
        .filter(|(_, path)| path.is_file())
        .collect();
    found.sort();
    // Without a PATH nothing is looked for, as with redis-server.
    let on_path = find(name);
    fence_client::config::variable("PATH")?;
    found.pop().map(|(_, path)| path).or(on_path)
}

/// PostgreSQL refuses to run as root: there it runs as its own user, and still ends with the demo.
fn as_user(program: &Path, args: Vec<String>) -> (PathBuf, Vec<String>) {
    if !rustix::process::geteuid().is_root() {
        return (program.to_owned(), args);
    }
    let setpriv = ["--reuid", USER, "--regid", USER, "--clear-groups", "--pdeathsig", "KILL", "--"];
    let mut all: Vec<String> = setpriv.map(str::to_owned).to_vec();
    all.push(program.display().to_string());
    all.extend(args);
    (find("setpriv").unwrap_or_else(|| PathBuf::from("/usr/bin/setpriv")), all)
}

/// Gives the folder to the user that the server runs as.
fn give(dir: &Path) -> std::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find(|line| line.split(':').next() == Some(USER)).unwrap_or_default();
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    std::os::unix::fs::chown(dir, ids.next().flatten(), ids.next().flatten())
}

async fn init(initdb: &Path, data: &Path) -> Result<(), Failure> {
    let data = data.display().to_string();
    let args = ["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D", &data];
    let (program, args) = as_user(initdb, args.map(str::to_owned).to_vec());
    let mut command = tokio::process::Command::new(program);
    command.args(args).current_dir("/").kill_on_drop(true).stdin(Stdio::null());
    let failed = |what: String| Failure::new(code::UNAVAILABLE, format!("initdb failed: {what}"));
    let output = command.output().await.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
