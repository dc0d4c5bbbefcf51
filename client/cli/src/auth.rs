//! `fence auth`: makes bearer tokens, and entries of the servers' access file.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use access_control::AccessList;
use access_control::secret::{self, SecretHash};
use clap::Subcommand;
use serde::Serialize;

use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Output, emit, say};

/// Longest bearer token that is read, in bytes; servers refuse longer ones.
const SECRET_BYTES_MAX: usize = 256;

/// Makes bearer tokens, and entries of the servers' access file
///
/// A bearer token identifies the caller: every command takes it with --auth-file. It has
/// nothing to do with fencing tokens.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence auth new ci --secret-file ci.secret >> access.toml
  fence auth hash < ci.secret")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Creates a bearer token and prints its entry for the access file
    New(New),
    /// Reads a bearer token on stdin and prints its hash
    Hash(Hash),
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence auth new ci --secret-file ci.secret >> access.toml
  fence auth new ops --allow 'read *' --allow 'revoke *' >> access.toml

The token is shown once, on standard error, or written to --secret-file; it is kept nowhere else.")]
struct New {
    /// Name of the principal: 1 to 64 of A-Z a-z 0-9 . _ -
    name: String,
    /// A right: verbs (read, acquire, write; use for these three; report; revoke, block, floor) and
    /// a name, a prefix or *; repeatable [default: 'use NAME/*']
    #[arg(long, value_name = "RIGHT")]
    allow: Vec<String>,
    /// Write the token to this new file
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence auth hash < ci.secret")]
struct Hash {}

/// A bearer token that was just made.
#[derive(Debug, Serialize)]
struct Made {
    name: String,
    /// Left out where it went to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    hash: String,
    entry: String,
}

/// Runs the command; returns the exit code.
pub(crate) fn auth(args: Args) -> Result<u8, Failure> {
    match args.command {
        Command::New(new) => make(new),
        Command::Hash(Hash {}) => hash(),
    }
}

fn make(new: New) -> Result<u8, Failure> {
    let secret = secret::generate();
    let hash = SecretHash::from_secret(&secret).to_string();
    let own = vec![format!("use {}/*", new.name)];
    let allow = if new.allow.is_empty() { own } else { new.allow };
    let entry = entry(&new.name, &hash, &allow);
    // What is printed here is what a server takes.
    AccessList::parse(&entry).map_err(|error| Failure::usage(error.to_string()))?;
    let mut made = Made { name: new.name, secret: None, hash, entry };
    match &new.secret_file {
        Some(path) => write_secret("--secret-file", path, &format!("{secret}\n"))?,
        None => made.secret = Some(secret),
    }
    let is_json = matches!(new.output.format, fence_terminal::output::Format::Json);
    if let Some(secret) = made.secret.as_ref().filter(|_| !is_json) {
        say(&format!("the bearer token of {}, shown once: {secret}", made.name));
    }
    new.output.print(&made, |made| made.entry.clone())?;
    Ok(code::OK)
}

/// The entry as TOML. Whatever is in the texts, they are quoted as TOML wants it.
fn entry(name: &str, hash: &str, allow: &[String]) -> String {
    let allow: Vec<String> = allow.iter().map(|right| quoted(right)).collect();
    format!(
        "[principals.{}]\ntokens = [{}]\nallow = [{}]\n",
        quoted(name),
        quoted(hash),
        allow.join(", ")
    )
}

/// A basic string of TOML: JSON's escapes are among its own.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Writes a new file that its owner alone may read; `what` names it in the error.
pub(crate) fn write_secret(what: &str, path: &Path, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        // A full disk leaves no empty file, which would be in the way of the next try.
        file.write_all(text.as_bytes()).inspect_err(|_| drop(std::fs::remove_file(path)))
    });
    written.map_err(|error| {
        Failure::usage(format!("{what} {} cannot be made: {error}", path.display()))
    })
}

fn hash() -> Result<u8, Failure> {
    let mut text = String::new();
    let mut bounded = io::stdin().lock().take(2 * SECRET_BYTES_MAX as u64);
    bounded
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?;
    let secret = text.trim();
    let is_word = secret.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_word || !(1..=SECRET_BYTES_MAX).contains(&secret.len()) {
        return Err(Failure::usage("a bearer token is one word of 1 to 256 printable characters"));
    }
    emit(format!("{}\n", SecretHash::from_secret(secret)).as_bytes())?;
    Ok(code::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_what_a_server_takes() {
        let hash = SecretHash::from_secret("abc");
        let text =
            entry("ops.eu", &hash.to_string(), &["read *".to_owned(), "revoke *".to_owned()]);
        let list = AccessList::parse(&text).unwrap();
        assert_eq!(list.find(&hash).unwrap().name, "ops.eu");
        let text = entry("a\"]\nb", &hash.to_string(), &["read *".to_owned()]);
        assert!(AccessList::parse(&text).unwrap_err().to_string().contains("1 to 64"));
    }
}
