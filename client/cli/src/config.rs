//! `fence config`: settings of the commands and where each comes from.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use service_kit::config::report::SettingsReport;

use crate::Settings;
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Output, say};

/// Checks or shows settings: variables, and the file of --config
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence config check run --config fence.toml
  fence config show                              addresses, owner, bearer token, log
  fence config show lock acquire --output json

Exit code 64 if a setting cannot be used; stderr names each with its origin.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Checks the settings of a command
    Check(Of),
    /// Checks the settings of a command and prints them, each with its origin
    Show(Of),
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example, with check or show:
  fence config show lock acquire --config fence.toml")]
struct Of {
    /// The command, as in `run` or `lock acquire` [default: what all commands have]
    command: Vec<String>,
    /// The TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// A command that has no flags but those of every command.
const USUAL: [&str; 2] = ["lock", "show"];

/// Reports the settings of the command line `P`; returns the exit code.
pub(crate) fn config<P: Parser>(args: Args) -> Result<u8, Failure> {
    let (of, is_shown) = match args.action {
        Action::Check(of) => (of, false),
        Action::Show(of) => (of, true),
    };
    let report = of.report::<P>()?;
    if is_shown {
        of.output.print(&report, SettingsReport::table)?;
    }
    for error in &report.errors {
        say(&format!("fence: {error}"));
    }
    Ok(if report.errors.is_empty() { code::OK } else { code::USAGE })
}

impl Of {
    fn report<P: Parser>(&self) -> Result<SettingsReport, Failure> {
        let named: Vec<&str> = self.command.iter().map(String::as_str).collect();
        let path = if named.is_empty() { &USUAL[..] } else { &named[..] };
        let mut command = &P::command();
        for name in path {
            let next = command.find_subcommand(name);
            command =
                next.ok_or_else(|| Failure::usage(format!("there is no command {name:?}")))?;
        }
        if command.has_subcommands() {
            let names = command.get_subcommands().map(clap::Command::get_name);
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(Failure::usage(format!("{}: add one of {names}", path.join(" "))));
        }
        let mut words: Vec<OsString> = vec!["fence".into()];
        words.extend(path.iter().map(OsString::from));
        if let Some(file) = &self.config {
            words.extend(["--config".into(), file.into()]);
        }
        let read = SettingsReport::read::<P>("FENCE", path, &words, &Settings);
        read.map_err(|error| Failure::usage(error.to_string()))
    }
}
