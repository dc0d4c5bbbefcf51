//! The `lock-server` binary; see [`lock_server::process`].

use std::process::ExitCode;

/// Requests allocate and free on every thread, which the system's allocator serves slowly: see
/// docs/decisions/0055-an-allocator.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lock_server::process::run(std::env::args_os())
}
