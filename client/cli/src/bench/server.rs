//! A server of the benchmark's own, as a process of its own.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::exit::{Failure, code};

/// A server process; it ends with this value.
pub(super) struct Server {
    _child: Child,
    _folder: Option<tempfile::TempDir>,
    pub(super) url: String,
}

impl Server {
    /// Starts `fence internal … NAME …`, which ends when this process does, and waits until it says where it listens. Without `redis` it
    /// keeps what it must in a temporary folder.
    pub(super) async fn start(name: &str, redis: Option<&str>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(code::UNAVAILABLE, format!("{name} cannot be started: {error}"))
        };
        let (folder, store) = match redis {
            Some(url) => (None, url.to_owned()),
            None => {
                let folder = tempfile::tempdir().map_err(failed)?;
                let store = format!("embedded:{}", folder.path().display());
                (Some(folder), store)
            }
        };
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .args([
                "internal",
                &format!("--director={}", std::process::id()),
                name,
                "--listen",
                "127.0.0.1:0",
                "--unsigned",
                "--store",
                &store,
            ])
            .args(["--log-filter", "error", "--namespace", "bench"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::internal("no stdout"))?;
        let line = BufReader::new(stdout).lines().next_line().await.map_err(failed)?;
        let url = line.as_deref().and_then(|line| line.split_once("listening on "));
        let (_, url) = url.ok_or_else(|| {
            Failure::new(code::UNAVAILABLE, format!("{name} did not say where it listens"))
        })?;
        Ok(Self { url: url.trim().to_owned(), _child: child, _folder: folder })
    }
}
