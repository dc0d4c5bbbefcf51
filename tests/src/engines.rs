//! Programs of the servers that tests start: Debian's, or another version's.
//!
//! `FENCE_TEST_REDIS=valkey-9.1`, `FENCE_TEST_POSTGRES=postgres-18` and `FENCE_TEST_ETCD=etcd-3.5`
//! name one of `tests/engines` for every server of its kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::process::command;

/// The program that speaks Redis' protocol.
pub(crate) fn redis() -> PathBuf {
    chosen("FENCE_TEST_REDIS").unwrap_or_else(|| "redis-server".into())
}

/// The program of etcd.
pub(crate) fn etcd() -> PathBuf {
    chosen("FENCE_TEST_ETCD").unwrap_or_else(|| "etcd".into())
}

/// The folder of PostgreSQL's server programs; `None` for Debian's.
pub(crate) fn postgres() -> Option<PathBuf> {
    chosen("FENCE_TEST_POSTGRES")
}

fn chosen(variable: &str) -> Option<PathBuf> {
    std::env::var(variable).ok().map(|engine| installed(&engine))
}

/// Installs one of `tests/engines --list`; returns its program, or PostgreSQL's folder of programs.
///
/// # Panics
/// If it cannot be installed.
pub(crate) fn installed(engine: &str) -> PathBuf {
    static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = found.get(engine) {
        return path.clone();
    }
    let mut install = command(Path::new(env!("CARGO_MANIFEST_DIR")).join("engines"));
    let done = install.arg(engine).output().expect("tests/engines runs");
    assert!(done.status.success(), "{engine}: {}", String::from_utf8_lossy(&done.stderr));
    let path = PathBuf::from(String::from_utf8(done.stdout).expect("a path").trim_end());
    found.insert(engine.to_owned(), path.clone());
    path
}
