//! Finding the programs under test.

use std::path::PathBuf;

/// The path of a program of this workspace (`lock-server`, `fenced-store`, `fence`), built by
/// `tests/run` before the tests.
///
/// # Panics
/// If it has not been built; the message says how to.
pub fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test program");
    let found = test
        .ancestors()
        .skip(1)
        .take(3)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "{name} is not built beside {}: run tests/run, or first \
             `cargo build --profile test --workspace --bins`",
            test.display()
        )
    })
}
