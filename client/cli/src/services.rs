//! `fence serve` of packages, which have both services as programs of their own.

use std::ffi::OsString;

use fence_terminal::exit::Failure;

const INSTEAD: &str = "this fence has no serve, because packages have both services as programs of \
    their own: run `systemctl start lock-server fenced-store`, or `lock-server --store \
    embedded:leases --unsigned` and `fenced-store --store embedded:objects --unsigned`";

/// Names the services that run in place of this command
#[derive(Clone, Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _flags: Vec<OsString>,
}

/// Fails with what runs in its place.
pub(crate) async fn serve(_args: Args) -> Result<u8, Failure> {
    Err(Failure::usage(INSTEAD))
}
