//! Drivers of one language: each a process of its own, forked where starting one takes long.

use std::path::PathBuf;

use tempfile::TempDir;

use super::driver::Driver;
use crate::process::{Process, command};

/// Starts the drivers of one language.
#[derive(Debug)]
pub struct Drivers {
    words: Vec<String>,
    host: Option<Host>,
}

/// A driver that has loaded its SDK, and forks for each connection.
#[derive(Debug)]
struct Host {
    _process: Process,
    folder: TempDir,
}

impl Drivers {
    /// Drivers that this command starts.
    pub fn new(words: Vec<String>) -> Self {
        Self { words, host: None }
    }

    /// Drivers that one process forks, which this command with `--host SOCKET` starts.
    pub async fn forked(words: Vec<String>) -> Self {
        let folder = crate::folder::new();
        let mut host = command(&words[0]);
        host.args(&words[1..]).arg("--host").arg(socket(&folder));
        let mut process = Process::spawn("driver-host", host);
        process.line_after("ready").await;
        Self { words, host: Some(Host { _process: process, folder }) }
    }

    /// Starts a driver.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub async fn start(&self) -> Result<Driver, String> {
        match &self.host {
            Some(host) => Driver::forked(&socket(&host.folder)).await,
            None => Driver::start(&self.words),
        }
    }
}

fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("socket")
}
