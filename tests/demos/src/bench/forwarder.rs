//! A proxy that does nothing but forward: what a guard is measured beside.

use std::path::Path;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::own_postgres::{as_server_user, give_to_server_user};
use crate::own_redis::{find, free_port};
use crate::process::{Process, awaited};
use fence_terminal::exit::{Failure, code};

/// A plain proxy on a port of its own; killed where this is dropped.
pub(super) struct Forwarder {
    pub(super) name: &'static str,
    /// `HOST:PORT`
    pub(super) address: String,
    process: Process,
    _dir: TempDir,
}

/// A proxy that was started, or why it is not measured.
pub(super) type Started = Result<Result<Forwarder, String>, Failure>;

impl Forwarder {
    /// Starts a program with a configuration file, whose text `conf` makes of a folder and a port.
    pub(super) fn start(
        name: &'static str,
        args: &[&str],
        conf: impl FnOnce(&Path, u16) -> String,
    ) -> Started {
        let Some(program) = find(name) else {
            return Ok(Err(format!(
                "{name}: it is not installed (Debian and Ubuntu: apt install {name})"
            )));
        };
        let dir = tempfile::Builder::new().prefix("fence-bench-").tempdir().map_err(broken)?;
        let port = free_port().map_err(broken)?;
        let file = dir.path().join("conf");
        std::fs::write(&file, conf(dir.path(), port)).map_err(broken)?;
        let file = file.display().to_string();
        let args = [args, &[file.as_str()]].concat();
        let (program, args) = match name {
            // It refuses to run as root.
            "pgbouncer" => {
                give_to_server_user(dir.path())?;
                as_server_user(&program, &args)?
            }
            _ => (program, args.iter().map(|arg| (*arg).to_owned()).collect()),
        };
        let process = Process::start_other(name, &program, &args, dir.path())?;
        Ok(Ok(Self { name, address: format!("127.0.0.1:{port}"), process, _dir: dir }))
    }

    /// Waits until it accepts connections.
    pub(super) async fn answers(&self) -> Result<(), Failure> {
        let answers = async || Ok(TcpStream::connect(&self.address).await.ok().map(drop));
        awaited(&format!("{} that answers", self.name), answers).await
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) async fn end(self) {
        self.process.end().await;
    }
}

fn broken(error: std::io::Error) -> Failure {
    Failure::new(code::UNAVAILABLE, error.to_string())
}
