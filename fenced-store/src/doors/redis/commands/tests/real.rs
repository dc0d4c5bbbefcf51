//! A Redis of one test; it ends with the test.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};

use super::*;

pub(super) struct Redis {
    child: Child,
    url: String,
    pub(super) connection: redis::Connection,
    _folder: tempfile::TempDir,
}

impl Redis {
    pub(super) fn start() -> Self {
        // Another process may take the port before Redis does.
        (0..20).find_map(|_| Self::try_start()).expect("redis-server did not start")
    }

    fn try_start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        drop(socket);
        let mut child = Command::new("redis-server")
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
        Some(Self { child, url, connection, _folder: folder })
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
