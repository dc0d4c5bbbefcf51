//! The lock server as a process: read settings, build, print the address, serve, drain.
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "the terminal is the interface")]

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use crate::app;
use crate::config::{Command, Config, PREFIX, Settings};
use crate::engines;
use crate::guards::Guards;
use service_kit::config::USAGE_EXIT_CODE;
use service_kit::config::report::{self, ConfigAction};
use service_kit::health::Health;
use service_kit::process::{self, StartError};
use service_kit::{Kit, config, health_check, telemetry};

/// Time-out for tasks to end when the server cannot start.
const TASKS_END: Duration = Duration::from_secs(1);

/// Runs a lock server until a signal ends it; `args` begin with the program's name. The binary and
/// the hidden subcommand of `fence` call this function.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let config: Config = match config::parse(PREFIX, args.clone(), &config::ProcessEnv) {
        Ok(config) => config,
        Err(error) => return error.report(),
    };
    if let Some(Command::Config(action)) = config.command {
        return check(config, action, &args);
    }
    if let Some(Command::Health) = config.command {
        return health_check::run(config.listen, config.service.tls.tls_cert.as_deref());
    }
    if let Err(error) = telemetry::init(config.service.log_format, &config.service.log_filter) {
        return usage(&error.to_string());
    }
    process::warn_of_unknown_variables::<Config>(PREFIX);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("the runtime cannot start: {error}")),
    };
    if let Some(Command::Init { .. }) = config.command {
        return runtime.block_on(init(&config)).unwrap_or_else(|error| usage(&error));
    }
    let settings = match config.settings() {
        Ok(settings) => settings,
        Err(error) => return usage(&error.to_string()),
    };
    match runtime.block_on(serve(settings)) {
        Ok(code) => code,
        Err(error) => {
            // Tasks that still try to connect log nothing behind the line that counts.
            runtime.shutdown_timeout(TASKS_END);
            failed(&error.to_string())
        }
    }
}

fn check(mut config: Config, action: ConfigAction, args: &[OsString]) -> ExitCode {
    config.access = config.access.for_check();
    report::finish::<Config>(PREFIX, action, args, config.settings().err().as_ref())
}

async fn serve(settings: Settings) -> Result<ExitCode, StartError> {
    let kit = Kit::new("lock-server");
    if settings.keys.is_none() {
        tracing::warn!("tokens are not signed (--unsigned): anyone on this machine can make one");
    }
    let bound = app::build(settings, &kit).await?.bind().await?;
    if let Some(url) = bound.url() {
        println!("lock-server listening on {url}");
    }
    Ok(process::serve_until_signal(&kit, bound.serve()).await)
}

/// Prepares a namespace, and returns the exit code.
///
/// # Errors
/// A sentence where the settings are wrong.
async fn init(config: &Config) -> Result<ExitCode, String> {
    let (store, login) = config.store_and_login()?;
    let options = config.store_options(config.guards()?, login);
    let guards = Guards::new(&options.guards, &options.namespace, &Health::new())?;
    match engines::open::init_fresh(&store, &options, &guards).await {
        Some(Ok((target, first))) => {
            let namespace = &options.namespace;
            println!("namespace {namespace} at {target} is ready; its tokens begin at {first}");
            Ok(ExitCode::SUCCESS)
        }
        Some(Err(error)) => {
            eprintln!("lock-server: init: {error}");
            Ok(ExitCode::FAILURE)
        }
        None => Err("init --fresh prepares a Redis, a quorum, an etcd or a PostgreSQL: name it \
                     with --store, as in --store redis://HOST:PORT"
            .to_owned()),
    }
}

fn usage(error: &str) -> ExitCode {
    eprintln!("lock-server: {error}\nSee lock-server --help.");
    ExitCode::from(USAGE_EXIT_CODE)
}

fn failed(error: &str) -> ExitCode {
    eprintln!("lock-server: cannot start: {error}");
    ExitCode::FAILURE
}
