//! The two servers as processes.

use std::path::Path;

use tempfile::TempDir;

use crate::api::{Api, Endpoint, Guard, Locks};
use crate::process::{Output, Process, command};

/// Settings of a server of the test run, before it is started.
#[derive(Clone, Debug)]
pub struct Setup {
    binary: &'static str,
    args: Vec<String>,
    env: Vec<(String, String)>,
    listen: String,
}

impl Setup {
    /// `lock-server --listen 127.0.0.1:0 --store STORE --unsigned`.
    pub fn lock_server(store: &str) -> Self {
        Self::bare("lock-server").arg("--store").arg(store).arg("--unsigned")
    }

    /// `fenced-store --listen 127.0.0.1:0 --store STORE --unsigned`.
    pub fn fenced_store(store: &str) -> Self {
        Self::bare("fenced-store").arg("--store").arg(store).arg("--unsigned")
    }

    /// The program's name.
    pub fn binary(&self) -> &'static str {
        self.binary
    }

    /// Nothing but the address to listen on.
    pub fn bare(binary: &'static str) -> Self {
        let listen = "127.0.0.1:0".to_owned();
        Self { binary, args: Vec::new(), env: Vec::new(), listen }
    }

    /// With another address.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<str>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// With several more arguments.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// With a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Signs or verifies with this key file instead of `--unsigned`.
    #[must_use]
    pub fn keys(mut self, file: &Path) -> Self {
        self.args.retain(|arg| arg != "--unsigned");
        self.arg("--token-key-file").arg(crate::key_file::text(file))
    }

    /// The command line after the program's name.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &str> {
        let listen = ["--listen", self.listen.as_str()];
        listen.into_iter().chain(self.args.iter().map(String::as_str))
    }

    /// The variables that it adds to the environment.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (String, String)> {
        self.env.iter().cloned()
    }

    /// Starts the process; nothing is known yet of how it goes.
    pub fn spawn(&self) -> Process {
        let mut command = command(crate::binaries::path(self.binary));
        command.args(self.arguments()).envs(self.variables());
        Process::spawn(self.binary, command)
    }

    /// Starts it and waits until it listens.
    pub async fn start(&self) -> Server {
        let mut process = self.spawn();
        let base = process.line_after(&format!("{} listening on ", self.binary)).await;
        Server { process, base }
    }

    /// Starts it where it must refuse to start, and returns what it said.
    pub async fn refused(&self) -> Output {
        let output = self.spawn().ended().await;
        assert_ne!(output.code, 0, "{output:?}");
        output
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    /// The process, for signals and logs.
    pub process: Process,
    /// `http://127.0.0.1:PORT`.
    pub base: String,
}

impl Server {
    /// Current value of a metric.
    ///
    /// # Panics
    /// If the server has no such metric.
    pub async fn metric(&self, name: &str) -> u64 {
        self.api().metric(name).await
    }

    /// A fresh client of its HTTP API.
    pub fn api(&self) -> Api {
        Api::new(&self.base)
    }

    /// A fresh client of its lock contract.
    pub fn locks(&self) -> Locks {
        Locks::new(&self.base)
    }

    /// A fresh client of its guard contract.
    pub fn guard(&self) -> Guard {
        Guard::new(&self.base)
    }

    /// The address without the scheme.
    pub fn address(&self) -> String {
        let base = &self.base;
        base.split_once("://").map_or(base.as_str(), |(_, address)| address).to_owned()
    }

    /// Address of its reverse proxy (fenced-store with `--proxy-listen`).
    pub async fn proxy(&mut self) -> String {
        self.process.line_after("fenced-store proxy listening on ").await
    }

    /// URL of its PostgreSQL port without a user (fenced-store with `--postgres-listen`).
    pub async fn postgres_port(&mut self) -> String {
        self.process.line_after("fenced-store postgres port listening on ").await
    }

    /// Address of its Redis port, `127.0.0.1:PORT`, plain or TLS (fenced-store with
    /// `--redis-listen`).
    pub async fn redis_port(&mut self) -> String {
        let url = self.process.line_after("fenced-store redis port listening on ").await;
        let (_, address) = url.split_once("://").expect("a URL");
        address.to_owned()
    }
}

impl Endpoint for Server {
    fn api(&self) -> Api {
        self.api()
    }
}

/// A folder for an embedded store.
#[derive(Debug)]
pub struct DataDir(TempDir);

impl Default for DataDir {
    fn default() -> Self {
        Self::new()
    }
}

impl DataDir {
    /// A new, empty one.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new() -> Self {
        Self(crate::folder::new())
    }

    /// `embedded:DIR`.
    pub fn store(&self) -> String {
        format!("embedded:{}", crate::key_file::text(&self.path()))
    }

    /// The folder of the store.
    pub fn path(&self) -> std::path::PathBuf {
        self.0.path().join("data")
    }
}
