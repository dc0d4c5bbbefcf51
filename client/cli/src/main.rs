//! The `fence` command: holds locks for programs, shows and changes locks and fenced objects, runs
//! both services for a first look, and judges an installation.

mod cli;
mod connect;
mod doctor;
mod duration;
mod exit;
mod lock;
mod object;
mod output;
mod run;
mod serve;
mod table;

use std::process::ExitCode;

use clap::Parser as _;
use service_kit::telemetry::{self, LogFormat};

use crate::cli::{Cli, Command};
use crate::exit::{Failure, code};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if let Err(error) = telemetry::init(LogFormat::Text, &cli.log) {
        output::say(&format!("fence: {error}"));
        return ExitCode::from(code::USAGE);
    }
    match start(cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.message().is_empty() {
                output::say(&format!("fence: {failure}"));
            }
            ExitCode::from(failure.code())
        }
    }
}

/// Help and the version are no errors; everything else that clap reports is one of usage. Its own
/// exit code for that, 2, could be the one of a command under `fence run`.
fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.exit_code() == 0 && printed.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(code::USAGE)
    }
}

fn start(command: Command) -> Result<u8, Failure> {
    // Not a command for people: it becomes another program at once, before there is a runtime.
    if let Command::JobHelper(helper) = command {
        return run::helper::start(helper);
    }
    // A server uses all processors. `run` must use one thread: the kernel ties the job's life to
    // the thread that started it.
    let mut runtime = match command {
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("the runtime does not start: {error}")))?;
    let result = runtime.block_on(dispatch(command));
    // A task that reads a terminal or a slow disk must not keep the process alive.
    runtime.shutdown_background();
    result
}

async fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Serve(args) => serve::serve(args).await,
        Command::Run(args) => run::run(args).await,
        Command::Lock(args) => lock::lock(args).await,
        Command::Object(args) => object::object(args).await,
        Command::Doctor(args) => doctor::doctor(args).await,
        Command::JobHelper(helper) => run::helper::start(helper),
    }
}
