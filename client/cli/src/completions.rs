//! `fence completions` and the hidden `fence man`: files for shells and packages, made from the
//! command lines of all three programs.

use std::path::PathBuf;

use clap::{CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use fence_terminal::exit::{Failure, code};
use fence_terminal::output::emit;

/// Prints the completions of a shell
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence completions bash > ~/.local/share/bash-completion/completions/fence
  fence completions zsh > ~/.zfunc/_fence          where fpath has ~/.zfunc
  fence completions fish lock-server > ~/.config/fish/completions/lock-server.fish")]
pub(crate) struct Args {
    /// Shell that reads the script
    shell: Shell,
    /// Program whose command line is completed
    #[arg(value_enum, default_value_t)]
    program: Program,
}

/// Writes the man pages of all programs into a folder
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Man {
    /// A folder, which is created
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Program {
    #[default]
    Fence,
    LockServer,
    FencedStore,
}

impl Program {
    /// The command line; `fence` is that of this program.
    fn command(self, fence: &clap::Command) -> clap::Command {
        match self {
            Self::Fence => fence.clone(),
            Self::LockServer => lock_server::config::Config::command(),
            Self::FencedStore => fenced_store::config::Config::command(),
        }
    }
}

/// Prints the completions; returns the exit code.
pub(crate) fn completions(args: &Args, fence: &clap::Command) -> Result<u8, Failure> {
    let mut command = args.program.command(fence);
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    emit(&script)?;
    Ok(code::OK)
}

/// Writes a page for every program and subcommand; returns the exit code.
pub(crate) fn man(args: &Man, fence: &clap::Command) -> Result<u8, Failure> {
    let written = std::fs::create_dir_all(&args.dir).and_then(|()| {
        let mut programs = Program::value_variants().iter();
        programs.try_for_each(|program| clap_mangen::generate_to(program.command(fence), &args.dir))
    });
    let failed = |error| Failure::internal(format!("{}: {error}", args.dir.display()));
    written.map_err(failed)?;
    Ok(code::OK)
}
