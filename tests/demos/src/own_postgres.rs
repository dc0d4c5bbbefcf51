//! A PostgreSQL of our own: for a demo, or for a benchmark.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;

use super::own_redis::{find, free_port};
use super::process::{Process, awaited};
use fence_terminal::exit::{Failure, code};

/// Folder of the programs of each version, in Debian.
const PROGRAMS: &str = "/usr/lib/postgresql";
/// User of the server when root starts it, whom PostgreSQL refuses.
const USER: &str = "postgres";
/// The superuser of the database.
pub(crate) const SUPERUSER: &str = "postgres";

/// Kept running until this is dropped.
#[derive(Debug)]
pub(crate) struct OwnPostgres {
    port: u16,
    url: String,
    process: Process,
    programs: PathBuf,
    _dir: TempDir,
}

impl OwnPostgres {
    /// Starts PostgreSQL on a free port, with its files in a temporary folder, and waits until it
    /// answers. `settings` are options of the server: `["synchronous_commit=off"]`; `instead` is
    /// what to do if it is not installed.
    pub(crate) async fn start(instead: &str, settings: &[&str]) -> Result<Self, Failure> {
        // Without a PATH nothing is looked for, as with redis-server.
        let path = fence_client::config::variable("PATH");
        let programs = path.and_then(|_| programs()).ok_or_else(|| {
            let message = format!(
                "there is no PostgreSQL in {PROGRAMS}. Install it (Debian and Ubuntu: apt install \
                 postgresql), or {instead}"
            );
            Failure::new(code::UNAVAILABLE, message)
        })?;
        let dir = tempfile::Builder::new().prefix("fence-postgres-").tempdir().map_err(broken)?;
        let port = free_port().map_err(broken)?;
        give_to_server_user(dir.path())?;
        let data = dir.path().join("data").display().to_string();
        let init = ["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"];
        let init = [&init[..], &[data.as_str()]].concat();
        let (program, args) = as_server_user(&programs.join("initdb"), &init)?;
        finished(Command::new(program).args(args).current_dir(dir.path())).await?;
        let port_text = port.to_string();
        let socket = dir.path().display().to_string();
        let mut args = vec!["-D", &data, "-p", &port_text, "-k", &socket];
        for setting in ["listen_addresses=127.0.0.1"].iter().chain(settings) {
            args.extend(["-c", setting]);
        }
        let (program, args) = as_server_user(&programs.join("postgres"), &args)?;
        let process = Process::start_other("postgres", &program, &args, dir.path())?;
        let url = url(port, SUPERUSER, "postgres");
        let own = Self { port, url, process, programs, _dir: dir };
        let folder = async || Ok(own.sql(SUPERUSER, "postgres", "SHOW data_directory").await.ok());
        // Another program's server may have taken the port.
        if awaited("a PostgreSQL that answers", folder).await? != data {
            let message = format!("another PostgreSQL listens on port {port}; start this again");
            return Err(Failure::new(code::UNAVAILABLE, message));
        }
        Ok(own)
    }

    /// URL of the superuser in database `postgres`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// `postgres://USER@127.0.0.1:PORT/DATABASE`
    pub(crate) fn url_of(&self, user: &str, database: &str) -> String {
        url(self.port, user, database)
    }

    /// TCP port, on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Path of one of its version's programs: `psql`, `pgbench`.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Runs statements by psql, and returns its output: a line a row, columns separated by `|`.
    pub(crate) async fn sql(
        &self,
        user: &str,
        database: &str,
        statements: &str,
    ) -> Result<String, Failure> {
        let mut psql = Command::new(self.program("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statements, "-d"]);
        finished(psql.arg(self.url_of(user, database))).await
    }

    /// Runs a program to its end.
    pub(crate) async fn run(&self, command: &mut Command) -> Result<(), Failure> {
        finished(command).await.map(drop)
    }

    /// Kills it and waits until it is gone; its sessions notice that and end by themselves.
    pub(crate) async fn end(self) {
        self.process.end().await;
    }
}

fn url(port: u16, user: &str, database: &str) -> String {
    format!("postgres://{user}@127.0.0.1:{port}/{database}")
}

/// Folder of the newest version's programs.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(PROGRAMS).ok()?.flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let bin = entry.path().join("bin");
            let version = entry.file_name().to_str()?.parse().ok()?;
            bin.join("initdb").is_file().then_some((version, bin))
        })
        .collect();
    versions.sort();
    Some(versions.pop()?.1)
}

/// Returns program and arguments that run the program as a user whom PostgreSQL accepts.
pub(crate) fn as_server_user(
    program: &Path,
    args: &[&str],
) -> Result<(PathBuf, Vec<String>), Failure> {
    let args = args.iter().map(|arg| (*arg).to_owned());
    if !rustix::process::geteuid().is_root() {
        return Ok((program.to_owned(), args.collect()));
    }
    let setpriv = find("setpriv").ok_or_else(|| {
        let message = "PostgreSQL refuses to run as root, and setpriv (Debian: util-linux) is not \
                       in the PATH; start this as another user";
        Failure::new(code::UNAVAILABLE, message)
    })?;
    // A change of the user cancels the kernel's watch over the director.
    let user = [
        format!("--reuid={USER}"),
        format!("--regid={USER}"),
        "--clear-groups".to_owned(),
        "--pdeathsig=KILL".to_owned(),
        program.display().to_string(),
    ];
    Ok((setpriv, user.into_iter().chain(args).collect()))
}

/// Gives the folder to the server's user.
pub(crate) fn give_to_server_user(dir: &Path) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let users = std::fs::read_to_string("/etc/passwd").map_err(broken)?;
    let line = users.lines().find_map(|line| line.strip_prefix(USER)?.strip_prefix(':'));
    let mut ids = line.unwrap_or_default().split(':').skip(1).map(|id| id.parse().ok());
    let (Some(Some(user)), Some(Some(group))) = (ids.next(), ids.next()) else {
        let message = format!("PostgreSQL refuses to run as root, and there is no user {USER}");
        return Err(Failure::new(code::UNAVAILABLE, message));
    };
    std::os::unix::fs::chown(dir, Some(user), Some(group)).map_err(broken)
}

/// Runs a program without our environment, and returns what it printed.
async fn finished(command: &mut Command) -> Result<String, Failure> {
    command.env_clear().stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.map_err(broken)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let program = command.as_std().get_program().display();
            let message = format!("{program} failed: {}", said.trim_end());
            Err(Failure::new(code::UNAVAILABLE, message))
        }
    }
}

fn broken(error: std::io::Error) -> Failure {
    Failure::new(code::UNAVAILABLE, error.to_string())
}
