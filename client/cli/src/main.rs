//! The `fence` command: holds locks for programs, shows and changes locks and fenced objects, runs
//! both services for trials, and checks an installation.

mod auth;
mod cli;
mod completions;
mod config;
mod connect;
mod doctor;
mod elect;
mod elect_observe;
mod identity;
mod keys;
mod kind;
mod lock;
mod object;
mod run;
#[cfg(feature = "servers")]
mod serve;
#[cfg(not(feature = "servers"))]
mod services;
mod session;
mod session_tables;
mod value;
mod waiting;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use fence_terminal::output::{self, Format};
use service_kit::config::{
    ConfigError, Env, ProcessEnv, misspelt_variables, parse_at, parse_flags,
};
use service_kit::telemetry::{self, LogFormat};

use crate::cli::{Cli, Command, Parsed};
#[cfg(not(feature = "servers"))]
use crate::services as serve;
use fence_terminal::exit::{Failure, code};

/// Requests allocate and free on every thread, which the system's allocator serves slowly: see
/// 0055 in docs/decisions/README.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Every HTTP client that a command or a demo makes may speak TLS.
    service_kit::tls::install_crypto();
    let args: Vec<_> = std::env::args_os().collect();
    let (cli, format) = match settings(&args) {
        Ok(Parsed { cli, format }) => (cli, format),
        Err(error) => return refuse(&error, &args),
    };
    // A role in a demo: a server sets up its own log and runtime.
    #[cfg(feature = "servers")]
    if let Command::Internal(role) = cli.command {
        return fence_demos::internal::start(role);
    }
    if let Err(error) = telemetry::init(LogFormat::Text, &cli.log) {
        output::say(&format!("fence: {error}"));
        return ExitCode::from(code::USAGE);
    }
    warn_of_misspelt_variables(&args);
    cli.color.apply();
    match start(cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.report(format);
            ExitCode::from(failure.code())
        }
    }
}

/// Flag, then variable (`FENCE_…`), then the file that `--config` names, then default.
fn settings(args: &[OsString]) -> Result<Parsed, ConfigError> {
    if cli::is_internal(args) {
        return parse_flags(args.iter().cloned());
    }
    let path = cli::path(args);
    if path.is_empty() {
        return Parsed::try_parse_from(args).map_err(ConfigError::from);
    }
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    parse_at("FENCE", &path, args.iter().cloned(), &Settings)
}

/// Variables that are no settings, though some are close to one: those that `fence run` gives its
/// command, and those of this project's tests.
const NO_SETTINGS: [&str; 11] = [
    "FENCE_LOCK",
    "FENCE_TOKEN",
    "FENCE_LEASE_ID",
    "FENCE_HEADER",
    "FENCE_CREDENTIAL",
    "FENCE_DEADLINE_MS",
    "FENCE_PROGRESS_FD",
    "FENCE_PROGRESS_PID",
    "FENCE_LEASES",
    "FENCE_SESSION_ID",
    "FENCE_LONG",
];

/// Warns of variables that set nothing, and are close to one of the command's settings.
fn warn_of_misspelt_variables(args: &[OsString]) {
    let path = cli::path(args);
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    if path.is_empty() {
        return;
    }
    for (name, near) in misspelt_variables::<Parsed>("FENCE", &path, &Settings) {
        if !NO_SETTINGS.contains(&name.as_str()) && !name.starts_with("FENCE_TEST_") {
            tracing::warn!("the variable {name} sets nothing; did you mean {near}?");
        }
    }
}

/// Reports wrong usage in the format that the command line wants, or help.
fn refuse(error: &ConfigError, args: &[OsString]) -> ExitCode {
    let format = cli::format(args, Settings.get("FENCE_OUTPUT"));
    if error.exit_code() == code::OK || format == Format::Table {
        return error.report();
    }
    Failure::usage(error.errors().join("\n")).report(format);
    ExitCode::from(code::USAGE)
}

/// The variables that are settings. FENCE_LOCK is none: `fence run` sets it for its command, and a
/// nested `fence run` must not take its parent's lock for its own.
#[derive(Debug)]
struct Settings;

impl Env for Settings {
    fn get(&self, name: &str) -> Option<String> {
        if self.sets(name) { ProcessEnv.get(name) } else { None }
    }

    fn names(&self) -> Vec<String> {
        ProcessEnv.names()
    }

    fn sets(&self, name: &str) -> bool {
        name != "FENCE_LOCK"
    }
}

fn start(command: Command) -> Result<u8, Failure> {
    // Not a command for people: it becomes another program at once, before there is a runtime.
    if let Command::JobHelper(helper) = command {
        return run::helper::start(helper);
    }
    // `run` and `elect` must use one thread: the kernel ties the job's life to the thread that
    // started it. A benchmark's load should cost as little of the machine as it can.
    let mut runtime = match command {
        Command::Run(_) | Command::Elect(_) => tokio::runtime::Builder::new_current_thread(),
        #[cfg(feature = "servers")]
        Command::Bench(_) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
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
        Command::Elect(args) => elect::elect(args).await,
        Command::Lock(args) => lock::lock(args).await,
        Command::Session(args) => session::session(args).await,
        Command::Object(args) => object::object(args).await,
        Command::Auth(args) => auth::auth(args),
        Command::Keys(args) => keys::keys(args),
        Command::Doctor(args) => doctor::doctor(*args).await,
        #[cfg(feature = "servers")]
        Command::Bench(args) => fence_demos::bench::bench(args).await,
        #[cfg(feature = "servers")]
        Command::Demo(args) => fence_demos::demo::demo(args).await,
        Command::Config(args) => config::config::<Parsed>(args),
        Command::Completions(args) => completions::completions(&args, &Cli::command()),
        Command::Man(args) => completions::man(&args, &Cli::command()),
        #[cfg(feature = "servers")]
        Command::Internal(_) => Err(Failure::internal("a role was not started at once")),
        Command::JobHelper(helper) => run::helper::start(helper),
    }
}
