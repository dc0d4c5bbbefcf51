//! The storage guard as a process: reads settings, builds, logs addresses, serves, drains.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "settings can be wrong before there is a log, and the addresses are data"
)]

use std::ffi::OsString;
use std::process::ExitCode;

use crate::app;
use crate::config::{Command, Config, PREFIX};
use crate::postgres_pack;
use crate::settings::{Backend, Settings};
use service_kit::config::USAGE_EXIT_CODE;
use service_kit::config::report::{self, ConfigAction};
use service_kit::process::{self, StartError};
use service_kit::{Kit, config, health_check, telemetry};

/// Runs a guard until a signal ends it; `args` begin with the program's name. The binary and the
/// hidden subcommand of `fence` call this.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (format, filter, settings) = match read_settings(args) {
        Ok(read) => read,
        Err(code) => return code,
    };
    if let Err(error) = telemetry::init(format, &filter) {
        eprintln!("fenced-store: {error}");
        return ExitCode::from(USAGE_EXIT_CODE);
    }
    process::warn_of_unknown_variables::<Config>(PREFIX);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(settings)) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read_settings(
    args: impl IntoIterator<Item = OsString>,
) -> Result<(telemetry::LogFormat, String, Settings), ExitCode> {
    let args: Vec<OsString> = args.into_iter().collect();
    let config: Config = match config::parse(PREFIX, args.clone(), &config::ProcessEnv) {
        Ok(config) => config,
        Err(error) => return Err(error.report()),
    };
    if let Some(Command::Config(action)) = config.command {
        return Err(check(config, action, &args));
    }
    if let Some(Command::Postgres(action)) = &config.command {
        return Err(postgres_pack::run(&config, action));
    }
    if let Some(Command::Health) = config.command {
        return Err(health_check::run(config.listen, config.service.tls.tls_cert.as_deref()));
    }
    let format = config.service.log_format;
    let filter = config.service.log_filter.clone();
    let settings = config.settings().map_err(|error| {
        eprintln!("fenced-store: {error}\nSee fenced-store --help.");
        ExitCode::from(USAGE_EXIT_CODE)
    })?;
    Ok((format, filter, settings))
}

fn check(mut config: Config, action: ConfigAction, args: &[OsString]) -> ExitCode {
    config.access = config.access.for_check();
    report::finish::<Config>(PREFIX, action, args, config.settings().err().as_ref())
}

async fn serve(settings: Settings) -> Result<ExitCode, StartError> {
    let kit = Kit::new("fenced-store");
    let backend = describe(&settings);
    if settings.keys.is_none() {
        tracing::warn!("tokens are not verified (--unsigned): anyone on this machine can make one");
    }
    let bound = app::build(settings, &kit).await?.bind().await?;
    let guarantee = bound.guarantee().as_str();
    for (name, title, url) in bound.doors() {
        println!("fenced-store{name} listening on {url}");
        let backend = name.is_empty().then_some(backend.as_str());
        tracing::info!(backend, guarantee, "serving {title} on {url}");
    }
    Ok(process::serve_until_signal(&kit, bound.serve()).await)
}

fn describe(settings: &Settings) -> String {
    match &settings.backend {
        Backend::Store(url) => url.to_string(),
        Backend::Postgres => {
            let port = settings.postgres_port.as_ref();
            port.map_or_else(String::new, |port| port.upstream.to_string())
        }
        Backend::Proxy(upstream) => upstream.url.to_string(),
    }
}
