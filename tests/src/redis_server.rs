//! A real Redis for one test.

use std::path::{Path, PathBuf};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};
use service_kit::clock::{Clock as _, SystemClock};
use tempfile::TempDir;

use crate::process::{Process, command};
use crate::redis_clock::OwnClock;
use crate::wait::{patience, until};
use crate::{engines, ports};

/// A redis-server of its own: own port, own folder, gone when dropped.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    folder: TempDir,
    options: Vec<(String, String)>,
    clock: Option<OwnClock>,
    program: PathBuf,
    process: Process,
}

/// Settings with which every answered write survives kill -9.
const DURABLE: [(&str, &str); 3] =
    [("appendonly", "yes"), ("appendfsync", "always"), ("maxmemory-policy", "noeviction")];

impl Redis {
    /// One that keeps every answered write (`appendonly yes`, `appendfsync always`).
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// One with other settings than the durable ones: `[("appendonly", "no")]`.
    pub async fn with(options: &[(&str, &str)]) -> Self {
        Self::started(engines::redis(), options, None).await
    }

    /// Debian's, whichever version the tests run on.
    pub async fn of_debian() -> Self {
        Self::started("redis-server".into(), &[], None).await
    }

    /// Returns `true` if it is a Valkey.
    pub async fn is_valkey(&self) -> bool {
        self.run::<String>(&["INFO", "server"]).await.contains("valkey_version:")
    }

    /// A newer server with the same protocol, which `tests/engines` installs: `valkey-9.1`.
    ///
    /// # Panics
    /// If it cannot be installed.
    pub async fn newer(engine: &str) -> Self {
        Self::started(engines::installed(engine), &[], None).await
    }

    /// One of each server that Fencepost is tested with, with the names of `tests/engines`.
    ///
    /// # Panics
    /// If one cannot be installed.
    pub async fn every() -> [(&'static str, Self); 3] {
        [
            ("redis-7.0", Self::of_debian().await),
            ("redis-8.2", Self::newer("redis-8.2").await),
            ("valkey-9.1", Self::newer("valkey-9.1").await),
        ]
    }

    /// The same with a clock that is so many seconds ahead of the right time, or behind it.
    ///
    /// # Panics
    /// If libfaketime is not installed, or does not move its clock.
    pub async fn with_clock(options: &[(&str, &str)], seconds: i64) -> Self {
        let redis = Self::started(engines::redis(), options, Some(OwnClock::at(seconds))).await;
        let right = i64::try_from(SystemClock::new().wall_ms() / 1_000).expect("a time");
        let (shown, _): (i64, i64) = redis.run(&["TIME"]).await;
        let is_moved = (seconds - 5..seconds + 60).contains(&(shown - right));
        assert!(is_moved, "libfaketime does not move its clock: {shown} at {right}");
        redis
    }

    async fn started(program: PathBuf, options: &[(&str, &str)], clock: Option<OwnClock>) -> Self {
        let port = ports::unused();
        let folder = crate::folder::new();
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, value) in DURABLE.iter().chain(options) {
            all.retain(|(known, _)| known != name);
            all.push(((*name).to_owned(), (*value).to_owned()));
        }
        let process = spawn(&program, port, &folder, &all, clock.as_ref());
        let mut redis = Self { port, folder, options: all, clock, program, process };
        redis.ready().await;
        redis
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Changes a setting, now and for every start from now on.
    ///
    /// # Panics
    /// If Redis does not take it.
    pub async fn set(&mut self, name: &str, value: &str) {
        let _: () = self.run(&["CONFIG", "SET", name, value]).await;
        self.options.retain(|(known, _)| known != name);
        self.options.push((name.to_owned(), value.to_owned()));
    }

    /// The process, to stop and continue it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port and folder, and waits until it answers.
    pub async fn start_again(&mut self) {
        self.process.kill();
        self.process =
            spawn(&self.program, self.port, &self.folder, &self.options, self.clock.as_ref());
        self.ready().await;
    }

    /// Asks it to end, and starts another of `tests/engines` on its port and data: an upgrade.
    ///
    /// # Panics
    /// If it cannot be installed, or does not start.
    pub async fn upgrade(&mut self, engine: &str) {
        self.program = engines::installed(engine);
        self.restart().await;
    }

    /// Asks it to end (it saves what it should), and starts it again.
    pub async fn restart(&mut self) {
        self.process.terminate();
        self.process.ended().await;
        self.start_again().await;
    }

    /// A connection for the test's own commands.
    ///
    /// # Errors
    /// If it does not reply.
    pub async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        connect_patiently(&self.url()).await
    }

    /// A connection that reports a Redis that does not reply, for probes that are retried.
    async fn connect_briefly(&self) -> redis::RedisResult<MultiplexedConnection> {
        redis::Client::open(self.url())?.get_multiplexed_async_connection().await
    }

    /// Runs one command: `["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]`.
    ///
    /// # Panics
    /// If it fails.
    pub async fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = self.connect().await.expect("redis answers");
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await.unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    /// Runs one command, or says why not.
    ///
    /// # Errors
    /// Of the connection, or of Redis.
    pub async fn try_run<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connect_briefly().await?).await
    }

    /// Waits until it answers and has loaded its data.
    async fn ready(&mut self) {
        until("redis to answer", || async {
            let mut connection = self.connect_briefly().await.ok()?;
            redis::cmd("PING").query_async::<String>(&mut connection).await.ok()
        })
        .await;
        assert!(self.process.is_running(), "another redis has port {}", self.port);
    }
}

/// Opens a connection that waits for a Redis that is busy with a load: the driver's own time-out
/// is 500 ms.
///
/// # Errors
/// If it does not reply.
pub(crate) async fn connect_patiently(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(patience()))
        .set_response_timeout(Some(patience()));
    let client = redis::Client::open(url)?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

fn spawn(
    program: &Path,
    port: u16,
    folder: &TempDir,
    options: &[(String, String)],
    clock: Option<&OwnClock>,
) -> Process {
    let mut command = command(program);
    command.current_dir(folder.path());
    command.arg("--port").arg(port.to_string()).args(["--bind", "127.0.0.1", "--save", ""]);
    command.arg("--dir").arg(folder.path());
    for (name, value) in options {
        command.arg(format!("--{name}")).arg(value);
    }
    command.envs(clock.map(OwnClock::environment).into_iter().flatten());
    Process::spawn("redis-server", command)
}
