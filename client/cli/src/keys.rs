//! `fence keys`: makes the keys that sign fencing tokens.

use std::path::PathBuf;

use clap::Subcommand;
use fence_protocol::KeyId;
use service_kit::ids;

use crate::auth::write_secret;
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::emit;

/// Makes the keys that sign fencing tokens
///
/// Lock servers and guards have the same file: --token-key-file. A reader of it can make tokens.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence keys new keys.txt                 a file that its owner alone may read
  fence keys new --kid k2 >> keys.txt     one more key, to replace the first")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Creates a key file, or prints a key
    New(New),
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence keys new keys.txt
  fence keys new --kid k2 >> keys.txt

A file that is there already is left as it is (exit code 64).")]
struct New {
    /// Write the key to this new file [default: standard output]
    file: Option<PathBuf>,
    /// Id of the key, which tokens name
    #[arg(long, value_name = "ID", default_value = "k1")]
    kid: KeyId,
}

/// Runs the command; returns the exit code.
pub(crate) fn keys(args: Args) -> Result<u8, Failure> {
    let Command::New(New { file, kid }) = args.command;
    let text = new_key(kid.as_str());
    match file {
        Some(path) => write_secret("the key file", &path, &text)?,
        None => emit(text.as_bytes())?,
    }
    Ok(code::OK)
}

/// A new key, as a key file has it.
pub(crate) fn new_key(kid: &str) -> String {
    format!("{kid}:{}\n", ids::random_hex(32))
}
