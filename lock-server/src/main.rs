//! The `lock-server` binary; see [`lock_server::process`].

use std::process::ExitCode;

/// Requests allocate and free on every thread, which the system's allocator serves slowly: see
/// 0055 in docs/decisions/README.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lock_server::process::run(std::env::args_os())
}
