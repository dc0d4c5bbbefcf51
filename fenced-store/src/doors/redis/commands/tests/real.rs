//! A Redis of one test; it ends with the test.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};

use super::samples::{FIXTURES, SAMPLES, newer_samples};
use super::*;

pub(super) struct Redis {
    child: Child,
    url: String,
    pub(super) connection: redis::Connection,
    /// Samples that this server knows, and the commands that make their keys.
    pub(super) samples: Vec<&'static str>,
    pub(super) fixtures: Vec<&'static str>,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// The installed one.
    pub(super) fn start() -> Self {
        Self::started("redis-server")
    }

    /// A newer one, that `tests/engines` installs.
    pub(super) fn newer(engine: &str) -> Self {
        let mut install = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/engines"));
        let installed = install.arg(engine).output().unwrap();
        let errors = String::from_utf8_lossy(&installed.stderr);
        assert!(installed.status.success(), "{engine}: {errors}");
        let program = String::from_utf8(installed.stdout).unwrap();
        let mut redis = Self::started(program.trim_end());
        let (samples, fixtures) = newer_samples(engine);
        redis.samples.extend(samples);
        redis.fixtures.extend(fixtures);
        redis
    }

    fn started(program: &str) -> Self {
        // Another process may take the port before Redis does.
        (0..20).find_map(|_| Self::try_start(program)).expect("redis-server did not start")
    }

    /// Makes the keys of the samples, and no others.
    pub(super) fn make_keys(&mut self) {
        self.line("FLUSHALL").unwrap();
        for line in self.fixtures.clone() {
            self.line(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    fn try_start(program: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        drop(socket);
        let mut child = Command::new(program)
            .args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"])
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is needed; tests/run installs it");
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line.contains("Ready to accept"));
        if !ready {
            child.wait().unwrap();
            return None;
        }
        let url = format!("redis://127.0.0.1:{port}");
        let connection = redis::Client::open(&*url).unwrap().get_connection().unwrap();
        let samples = SAMPLES.lines().collect();
        let fixtures = FIXTURES.lines().collect();
        Some(Self { child, url, connection, samples, fixtures, _folder: folder })
    }

    /// Opens another connection.
    pub(super) fn connect(&self, options: &str) -> redis::Connection {
        let url = format!("{}/{options}", self.url);
        redis::Client::open(url).unwrap().get_connection().unwrap()
    }

    pub(super) fn words(&mut self, words: &[&str]) -> Result<Value, String> {
        run(&mut self.connection, words)
    }

    pub(super) fn line(&mut self, line: &str) -> Result<Value, String> {
        self.words(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub(super) fn metas(&mut self) -> Vec<Meta> {
        meta::commands(&self.words(&["COMMAND"]).unwrap()).unwrap()
    }

    pub(super) fn table(&mut self) -> CommandTable {
        CommandTable::from_reply(&self.words(&["COMMAND"]).unwrap()).unwrap()
    }

    /// Returns `true` for the version that the tests and the page were written for. Later ones have
    /// more.
    pub(super) fn is_7_0(&mut self) -> bool {
        let Ok(Value::BulkString(info)) = self.line("INFO server") else { return false };
        String::from_utf8_lossy(&info).contains("redis_version:7.0.")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the reply, or the error line.
pub(super) fn run(connection: &mut redis::Connection, words: &[&str]) -> Result<Value, String> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let refused = |error: redis::RedisError| {
        format!("{} {}", error.code().unwrap_or("?"), error.detail().unwrap_or("?"))
    };
    command.query(connection).map_err(refused)
}
