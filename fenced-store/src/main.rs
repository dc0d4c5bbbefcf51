//! Binary `fenced-store`; see [`fenced_store::process`].

use std::process::ExitCode;

fn main() -> ExitCode {
    fenced_store::process::run(std::env::args_os())
}
