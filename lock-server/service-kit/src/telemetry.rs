//! Logs: text or JSON on stderr.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Form of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people; in colour on a terminal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error(
        "the log filter \"{filter}\" cannot be read: {reason}; write a level (info) or \
         target=level pairs (info,lock_server=debug)"
    )]
    Filter {
        /// The filter as it was given.
        filter: String,
        /// The error in it.
        reason: String,
    },
    /// Logs were set up before.
    #[error("logs are set up already")]
    Twice,
}

/// Sends logs to stderr from now on, and panics with them. To be called once, early in `main`.
///
/// # Errors
/// [`TelemetryError`] for a filter that cannot be read, and when called twice.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let targets: Targets = filter.parse().map_err(|error: ParseError| TelemetryError::Filter {
        filter: filter.to_owned(),
        reason: error.to_string(),
    })?;
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .with_ansi(format == LogFormat::Text && std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.finish().with(targets).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(targets).try_init(),
    }
    .map_err(|_| TelemetryError::Twice)?;
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(place, panic = text, "a thread panicked");
    }));
    Ok(())
}
