//! The `lock-server` binary; see [`lock_server::process`].

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_server::process::run(std::env::args_os())
}
