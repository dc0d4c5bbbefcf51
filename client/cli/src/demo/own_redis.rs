//! A Redis of the demo's own, for the demo that empties it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use tempfile::TempDir;

use super::backing::connect;
use super::process::{Process, awaited};
use crate::exit::{Failure, code};
use service_kit::redis_link::RedisTarget;

/// Kept running until this is dropped.
#[derive(Debug)]
pub(super) struct OwnRedis {
    url: String,
    process: Process,
    _dir: TempDir,
}

impl OwnRedis {
    /// Starts `redis-server` from the PATH on a free port.
    pub(super) async fn start() -> Result<Self, Failure> {
        let program = find("redis-server").ok_or_else(|| {
            let message = "redis-server is not in the PATH: this demo empties a Redis. Install it, or \
                           name one with --store redis://HOST:PORT --allow-flush";
            Failure::new(code::UNAVAILABLE, message)
        })?;
        let broken = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
        let dir = tempfile::Builder::new().prefix("fence-demo-").tempdir().map_err(broken)?;
        let port = free_port().map_err(broken)?;
        let args = [
            "--port".to_owned(),
            port.to_string(),
            "--bind".to_owned(),
            "127.0.0.1".to_owned(),
            "--save".to_owned(),
            String::new(),
            "--dir".to_owned(),
            dir.path().display().to_string(),
        ];
        let process = Process::start_other("redis-server", &program, &args, dir.path())?;
        let url = format!("redis://127.0.0.1:{port}");
        let target: RedisTarget =
            url.parse().map_err(|error| Failure::internal(format!("{error}")))?;
        awaited("a Redis that answers", async || Ok(connect(&target).await.ok())).await?;
        Ok(Self { url, process, _dir: dir })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) async fn end(self) {
        self.process.end().await;
    }
}

/// Redis cannot be told to choose a port itself, so that one is asked for and given back here.
fn free_port() -> std::io::Result<u16> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Ok(TcpListener::bind(any)?.local_addr()?.port())
}

fn find(program: &str) -> Option<PathBuf> {
    let path = fence_client::config::variable("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
