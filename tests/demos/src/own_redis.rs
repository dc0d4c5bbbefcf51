//! A Redis of our own: for a demo, or for a benchmark.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use tempfile::TempDir;

use super::backing::connect;
use super::process::{Process, awaited};
use fence_terminal::exit::{Failure, code};
use redis_link::{RedisTarget, info_field};

/// Kept running until this is dropped.
#[derive(Debug)]
pub(crate) struct OwnRedis {
    url: String,
    process: Process,
    _dir: TempDir,
}

impl OwnRedis {
    /// Starts `redis-server` from the PATH on a free port, with its files in a temporary folder.
    /// `instead` is what to do where it is not installed.
    pub(crate) async fn start(instead: &str) -> Result<Self, Failure> {
        Self::start_with(instead, &[]).await
    }

    /// Starts it with further settings: `["--appendonly", "yes"]`.
    pub(crate) async fn start_with(instead: &str, settings: &[&str]) -> Result<Self, Failure> {
        let program = find("redis-server").ok_or_else(|| {
            let message = format!(
                "redis-server is not in the PATH. Install it (Debian and Ubuntu: apt install \
                 redis-server), or {instead}"
            );
            Failure::new(code::UNAVAILABLE, message)
        })?;
        let broken = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
        let dir = tempfile::Builder::new().prefix("fence-demo-").tempdir().map_err(broken)?;
        let port = free_port().map_err(broken)?;
        let mut args = vec![
            "--port".to_owned(),
            port.to_string(),
            "--bind".to_owned(),
            "127.0.0.1".to_owned(),
            "--save".to_owned(),
            String::new(),
            "--dir".to_owned(),
            dir.path().display().to_string(),
        ];
        args.extend(settings.iter().map(|setting| (*setting).to_owned()));
        let process = Process::start_other("redis-server", &program, &args, dir.path())?;
        let url = format!("redis://127.0.0.1:{port}");
        let target: RedisTarget =
            url.parse().map_err(|error| Failure::internal(format!("{error}")))?;
        let mut connection =
            awaited("a Redis that answers", async || Ok(connect(&target).await.ok())).await?;
        let info: String = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut connection)
            .await
            .map_err(|error| Failure::new(code::UNAVAILABLE, error.to_string()))?;
        // Another program's Redis may have taken the port: demos write to theirs, and empty it.
        if info_field(&info, "process_id") != Some(process.pid().to_string().as_str()) {
            let message = format!("another Redis listens on port {port}; start the demo again");
            return Err(Failure::new(code::UNAVAILABLE, message));
        }
        Ok(Self { url, process, _dir: dir })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) async fn end(self) {
        self.process.end().await;
    }
}

/// Redis cannot choose a port itself: this binds one and frees it.
pub(crate) fn free_port() -> std::io::Result<u16> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Ok(TcpListener::bind(any)?.local_addr()?.port())
}

/// Debian puts servers there, and not every user's PATH has it.
const SBIN: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// Path of a program: on the PATH, or in sbin where there is a PATH at all.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = fence_client::config::variable("PATH")?;
    let sbin = SBIN.iter().map(PathBuf::from);
    let mut dirs = std::env::split_paths(&path).chain(sbin);
    dirs.find_map(|dir| Some(dir.join(program)).filter(|file| file.is_file()))
}
