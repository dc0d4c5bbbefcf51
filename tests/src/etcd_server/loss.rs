//! An etcd that comes back as another one: older, emptied, or of another cluster.

use std::path::{Path, PathBuf};

use super::Etcd;
use crate::key_file::text;
use crate::process::{Process, command};

impl Etcd {
    /// Writes what etcd holds now to a file, as an operator's backup does.
    ///
    /// # Panics
    /// If it fails.
    pub async fn save(&self, file: &Path) {
        self.by_hand(&["snapshot", "save", text(file)]).await;
    }

    /// Runs an operator's command at this node: `["del", "--prefix", "fencepost/"]`.
    ///
    /// # Panics
    /// If it fails.
    pub async fn by_hand(&self, words: &[&str]) {
        let endpoint = format!("--endpoints=http://{}", self.address());
        etcdctl(&[&[endpoint.as_str()], words].concat()).await;
    }

    /// Kills it and gives it what a file holds instead of what it knew: the same node of a cluster
    /// with the same token, so that its ids are what they were. It is not started.
    ///
    /// # Panics
    /// If the file cannot be restored.
    pub async fn restore(&mut self, file: &Path) {
        let data = self.lose();
        let peer = self.place.peer_url();
        let options = [
            ("--name", self.place.name.as_str()),
            ("--initial-cluster", &self.members),
            ("--initial-cluster-token", &self.token),
            ("--initial-advertise-peer-urls", &peer),
            ("--data-dir", text(&data)),
        ];
        let options = options.map(|(name, value)| format!("{name}={value}"));
        let mut words = vec!["snapshot", "restore", text(file)];
        words.extend(options.iter().map(String::as_str));
        etcdctl(&words).await;
    }

    /// Restores the file as a node of a cluster with another token: its cluster id is another.
    ///
    /// # Panics
    /// If the file cannot be restored.
    pub async fn restore_as(&mut self, token: &str, file: &Path) {
        token.clone_into(&mut self.token);
        self.restore(file).await;
    }

    /// Kills it and deletes everything that it knew. Started again it is a new one at the same
    /// ports, with the cluster id that it had.
    ///
    /// # Panics
    /// If it had nothing.
    pub fn empty(&mut self) {
        self.lose();
    }

    /// Kills it as [`Self::empty`] does; started again it has another cluster id.
    ///
    /// # Panics
    /// If it had nothing.
    pub fn empty_as(&mut self, token: &str) {
        token.clone_into(&mut self.token);
        self.lose();
    }

    /// Kills it and deletes what it knew; gives where that was.
    fn lose(&mut self) -> PathBuf {
        self.process.kill();
        let data = self.folder.path().join("data");
        std::fs::remove_dir_all(&data).expect("the old data");
        data
    }

    /// Others use it, too: its log grows until it is longer than this.
    pub async fn grow_beyond(&self, log_length: u64) {
        while self.log_length().await <= log_length {
            self.put("others/key", "value").await;
        }
    }
}

/// Runs etcd's own command to its end.
async fn etcdctl(words: &[&str]) {
    let mut command = command("etcdctl");
    command.env("ETCDCTL_API", "3").args(words);
    let output = Process::spawn("etcdctl", command).ended().await;
    assert_eq!(output.code, 0, "etcdctl {words:?}: {output:?}");
}
