//! A real Redis whose clock the test sets, as an operator or NTP would: `libfaketime` answers for
//! the kernel when redis-server asks for the time of day. Its monotonic clock is left alone. Other
//! processes can have such a clock as well.

use std::path::PathBuf;
use std::time::Instant;

use redis::FromRedisValue;
use tempfile::TempDir;

use crate::ports;
use crate::process::{Process, command};
use crate::redis_server::connect_patiently;
use crate::servers::Setup;
use crate::wait::until;

/// The time of day as one process sees it.
#[derive(Debug)]
pub struct OwnClock {
    folder: TempDir,
}

impl OwnClock {
    /// A clock that is so many seconds ahead of the right time, or behind it.
    ///
    /// # Panics
    /// If there is no folder for it.
    pub fn at(seconds: i64) -> Self {
        let clock = Self { folder: crate::folder::new() };
        clock.step(seconds);
        clock
    }

    /// A clock that goes so many times as fast as the right one, from when its process begins.
    ///
    /// # Panics
    /// If there is no folder for it.
    pub fn running(rate: u32) -> Self {
        let clock = Self { folder: crate::folder::new() };
        std::fs::write(clock.folder.path().join("offset"), format!("+0 x{rate}\n"))
            .expect("the rate of the clock");
        clock
    }

    /// From now on it is so many seconds ahead of the right time, or behind it.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn step(&self, seconds: i64) {
        // In one step, or the process could read half of it.
        let (new, file) =
            (self.folder.path().join("offset.new"), self.folder.path().join("offset"));
        std::fs::write(&new, format!("{seconds:+}\n")).expect("the offset of the clock");
        std::fs::rename(new, file).expect("the offset of the clock");
    }

    /// Lets a process of another user read it.
    ///
    /// # Panics
    /// If the folder's rights cannot be changed.
    pub fn open_to_all(&self) {
        let rights = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.folder.path(), rights).expect("the folder of the clock");
    }

    /// A server of ours that goes by this clock.
    ///
    /// # Panics
    /// If libfaketime is not installed.
    #[must_use]
    pub fn applied_to(&self, setup: Setup) -> Setup {
        let environment = self.environment();
        environment.iter().fold(setup, |setup, (name, value)| setup.env(name, value))
    }

    /// Environment in which a process sees this clock.
    ///
    /// # Panics
    /// If libfaketime is not installed.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        // jemalloc asks for the time before libfaketime is ready to answer, which ends
        // redis-server; libc right behind it gives the memory instead.
        let libraries = format!("{} {}", faketime().display(), libc().display());
        let file = self.folder.path().join("offset").display().to_string();
        [
            ("LD_PRELOAD", libraries),
            ("FAKETIME_TIMESTAMP_FILE", file),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}

/// A redis-server with a clock of its own; gone when dropped.
#[derive(Debug)]
pub struct SteppedRedis {
    port: u16,
    clock: OwnClock,
    _folder: TempDir,
    process: Process,
}

impl SteppedRedis {
    /// Its clock goes right until it is stepped.
    ///
    /// # Panics
    /// If libfaketime is not installed, or the clock of Redis does not follow it.
    pub async fn start() -> Self {
        let redis = Self::with(OwnClock::at(0)).await;
        let before = redis.now_ms().await;
        redis.step(1_000);
        assert!(redis.now_ms().await >= before + 900_000, "libfaketime does not move its clock");
        redis.step(0);
        redis
    }

    /// Its clock goes so many times as fast as the right one.
    ///
    /// # Panics
    /// If libfaketime is not installed, or the clock of Redis does not follow it.
    pub async fn running(rate: u32) -> Self {
        let redis = Self::with(OwnClock::running(rate)).await;
        let begin = Instant::now();
        let shown_ms = redis.now_ms().await;
        until("its clock to be ahead", || async {
            let passed_ms = u128::from(redis.now_ms().await - shown_ms);
            (passed_ms > begin.elapsed().as_millis() + 500).then_some(())
        })
        .await;
        redis
    }

    async fn with(clock: OwnClock) -> Self {
        let port = ports::unused();
        let folder = crate::folder::new();
        let redis = Self { port, process: spawn(port, &folder, &clock), clock, _folder: folder };
        until("redis to answer", || async { redis.try_run::<String>(&["PING"]).await.ok() }).await;
        redis
    }

    /// From now on its clock is so many seconds ahead of the right time, or behind it.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn step(&self, seconds: i64) {
        self.clock.step(seconds);
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The process, to stop and continue it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Time that its clock shows, ms since 1970.
    pub async fn now_ms(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.run(&["TIME"]).await;
        seconds * 1_000 + micros / 1_000
    }

    /// Runs one command.
    ///
    /// # Panics
    /// If it fails.
    pub async fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = connect_patiently(&self.url()).await.expect("redis replies");
        let outcome = redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await;
        outcome.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    async fn try_run<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
    }
}

fn spawn(port: u16, folder: &TempDir, clock: &OwnClock) -> Process {
    let mut command = command(crate::engines::redis());
    command.arg("--port").arg(port.to_string()).args(["--bind", "127.0.0.1", "--save", ""]);
    command.arg("--dir").arg(folder.path()).args(["--maxmemory-policy", "noeviction"]);
    command.envs(clock.environment());
    Process::spawn("redis-server", command)
}

/// Path at which the Debian package `libfaketime` puts its library.
fn faketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let found = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    found.into_iter().find(|path| path.exists()).expect("libfaketime; tests/run installs it")
}

/// The C library that this process uses.
fn libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("what is mapped");
    let path = maps.split_whitespace().find(|word| word.contains("/libc.so"));
    PathBuf::from(path.expect("a C library"))
}
