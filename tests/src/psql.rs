//! A psql that stays open: statements go in one after another, as an operator types them.

use std::fs::File;
use std::io::Write as _;

use tempfile::TempDir;

use crate::process::{Output, Process, command};

/// Result of a statement whose session is alive: `00000`.
pub const DONE: &str = "00000";

/// One psql with its session.
#[derive(Debug)]
pub struct Psql {
    process: Process,
    input: File,
    sent: usize,
    _folder: TempDir,
}

impl Psql {
    /// Starts psql at a URL.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(url: &str) -> Self {
        let folder = crate::folder::new();
        let path = folder.path().join("input");
        let made = command("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success(), "mkfifo failed");
        // The shell opens the file, and becomes psql.
        let mut shell = command("sh");
        shell.arg("-c").arg("exec psql -X -q -A -t -d \"$1\" < \"$2\"").arg("sh");
        shell.arg(url).arg(&path);
        let process = Process::spawn("psql", shell);
        // Open for both, so that neither side waits for the other.
        let input = File::options().read(true).write(true).open(&path).expect("the input");
        Self { process, input, sent: 0, _folder: folder }
    }

    /// Sends statements; returns their number, for [`result`](Self::result).
    ///
    /// # Panics
    /// If psql ended.
    pub fn send(&mut self, statements: &str) -> usize {
        self.sent += 1;
        let text = format!("{statements}\n\\echo ::{} :SQLSTATE\n", self.sent);
        self.input.write_all(text.as_bytes()).expect("psql reads");
        self.sent
    }

    /// Waits for the SQLSTATE of the last of these statements.
    pub async fn result(&mut self, sent: usize) -> String {
        self.process.line_after(&format!("::{sent} ")).await
    }

    /// Runs statements; returns the SQLSTATE of the last one, [`DONE`] for success.
    pub async fn run(&mut self, statements: &str) -> String {
        let sent = self.send(statements);
        self.result(sent).await
    }

    /// Waits for psql's end, after the server ended its session.
    pub async fn ended(&mut self) -> Output {
        self.process.ended().await
    }

    /// The process, to stop it and to read its output.
    pub fn process(&self) -> &Process {
        &self.process
    }
}
