//! A server of the benchmark's own, as a process of its own.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::OnceLock;

use axum::Router;
use fence_terminal::output::emit;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use service_kit::tasks::Tasks;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::process::Process;
use fence_terminal::exit::{Failure, code};

/// Folder of the programs that are measured; unset, they are this program in another role.
static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// Measures the programs in `folder`.
pub(super) fn take_from(folder: PathBuf) {
    // The first call counts: there is one command line.
    let _ = PROGRAMS.set(folder);
}

/// A server process; it is killed when this is dropped.
pub(super) struct Server {
    process: Process,
    _folder: TempDir,
    pub(super) url: String,
    /// Address of its second listener, if it has one.
    pub(super) port: Option<String>,
}

impl Server {
    /// Starts lock-server or fenced-store and waits until it listens. `store` is the URL of a
    /// store; `embedded:` alone is a temporary folder.
    pub(super) async fn start(name: &str, store: &str, args: &[&str]) -> Result<Self, Failure> {
        let folder = folder()?;
        let store = match store {
            "embedded:" => format!("embedded:{}", folder.path().join("store").display()),
            store => store.to_owned(),
        };
        let listen = ["--listen", "127.0.0.1:0", "--unsigned", "--log-filter", "error"];
        let role = [&[name, "--store", &store], &listen[..], args].concat();
        let mut server = Self::role(name, &role, folder).await?;
        if args.iter().any(|arg| arg.starts_with("--redis-listen")) {
            server.port = Some(address(&mut server.process).await?);
        }
        Ok(server)
    }

    /// Starts fenced-store as a reverse proxy before `origin`; its address is the second one.
    pub(super) async fn start_proxy(origin: &str, args: &[&str]) -> Result<Self, Failure> {
        let folder = folder()?;
        let state = folder.path().join("state").display().to_string();
        let own = ["--proxy-listen=127.0.0.1:0", "--max-request-lifetime=30s"];
        let before = ["--upstream", origin, "--state", &state];
        Self::guard(&[&own[..], &before, args].concat(), folder).await
    }

    /// Starts fenced-store as a PostgreSQL port before a database; its address is the second one.
    pub(super) async fn start_postgres_port(
        upstream: &str,
        writer: &str,
        args: &[&str],
    ) -> Result<Self, Failure> {
        let own = ["--postgres-listen=127.0.0.1:0", "--postgres-upstream", upstream];
        let writer = ["--postgres-writer", writer];
        Self::guard(&[&own[..], &writer, args].concat(), folder()?).await
    }

    /// Starts fenced-store with a second listener.
    async fn guard(args: &[&str], folder: TempDir) -> Result<Self, Failure> {
        let own = ["fenced-store", "--listen=127.0.0.1:0", "--unsigned", "--log-filter=error"];
        let mut server = Self::role("fenced-store", &[&own, args].concat(), folder).await?;
        server.port = Some(address(&mut server.process).await?);
        Ok(server)
    }

    /// Starts this program in another role and waits until it listens.
    pub(super) async fn start_role(name: &str, role: &[&str]) -> Result<Self, Failure> {
        Self::role(name, role, folder()?).await
    }

    async fn role(name: &str, role: &[&str], folder: TempDir) -> Result<Self, Failure> {
        let program = match role {
            [program @ ("lock-server" | "fenced-store"), ..] => {
                PROGRAMS.get().map(|folder| folder.join(program))
            }
            _ => None,
        };
        let mut process = match program {
            Some(program) => {
                let args: Vec<String> = role[1..].iter().map(|&arg| arg.to_owned()).collect();
                Process::start_other(name, &program, &args, folder.path())?
            }
            None => Process::start(name, role, folder.path())?,
        };
        let url = address(&mut process).await?;
        Ok(Self { url, port: None, process, _folder: folder })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends it as an operator does, and waits until it is gone, so that it writes nothing more.
    pub(super) async fn end(self) {
        self.process.terminate().await;
    }
}

fn folder() -> Result<TempDir, Failure> {
    let folder = tempfile::Builder::new().prefix("fence-bench-").tempdir();
    folder.map_err(|error| Failure::new(code::UNAVAILABLE, error.to_string()))
}

/// Address in the next line that the server prints.
async fn address(process: &mut Process) -> Result<String, Failure> {
    let line = process.line().await?;
    match line.split_once("listening on ") {
        Some((_, address)) => Ok(address.trim().to_owned()),
        None => Err(process.failed("it did not print where it listens")),
    }
}

/// Serves a router as plainly as axum can: nothing but HTTP/1 on a loopback port, which it prints.
pub(super) async fn serve_bare(name: &str, router: Router) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    emit(format!("{name} listening on http://{addr}\n").as_bytes())?;
    let tasks = Tasks::new();
    loop {
        let (stream, _) = listener.accept().await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tasks.spawn(async move {
            // A client that leaves in the middle of a request has failed itself.
            let _ = connection.await;
        });
    }
}
