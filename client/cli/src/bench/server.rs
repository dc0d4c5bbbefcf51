//! A server of the benchmark's own, as a process of its own.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::exit::{Failure, code};

/// A server process; it ends with this value.
pub(super) struct Server {
    child: Child,
    _stdout: Lines<BufReader<ChildStdout>>,
    _folder: Option<tempfile::TempDir>,
    pub(super) url: String,
    /// Where its second listener is, if it has one.
    pub(super) port: Option<String>,
}

impl Server {
    /// Starts `fence internal … NAME …`, which ends when this process does, and waits until it says
    /// where it listens. Without `redis` it keeps what it must in a temporary folder.
    pub(super) async fn start(name: &str, redis: Option<&str>) -> Result<Self, Failure> {
        Self::start_with(name, redis, &["--namespace", "bench"]).await
    }

    /// The same with arguments of its own, `--namespace` among them.
    pub(super) async fn start_with(
        name: &str,
        redis: Option<&str>,
        args: &[&str],
    ) -> Result<Self, Failure> {
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
            .args(["--log-filter", "error"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::internal("no stdout"))?;
        let mut stdout = BufReader::new(stdout).lines();
        let url = address(name, &mut stdout).await?;
        let port = match args.iter().any(|arg| arg.starts_with("--redis-listen")) {
            true => Some(address(name, &mut stdout).await?),
            false => None,
        };
        Ok(Self { url, port, child, _stdout: stdout, _folder: folder })
    }

    /// Kills it and waits until it is gone, so that it writes nothing more.
    pub(super) async fn end(mut self) {
        // It fails only where it has ended already.
        let _ = self.child.kill().await;
    }
}

/// The address in the next line that the server says.
async fn address(name: &str, out: &mut Lines<BufReader<ChildStdout>>) -> Result<String, Failure> {
    let failed = |what: String| Failure::new(code::UNAVAILABLE, format!("{name} {what}"));
    let line = out.next_line().await.map_err(|error| failed(error.to_string()))?;
    let address = line.as_deref().and_then(|line| line.split_once("listening on "));
    let (_, address) = address.ok_or_else(|| failed("did not say where it listens".to_owned()))?;
    Ok(address.trim().to_owned())
}
