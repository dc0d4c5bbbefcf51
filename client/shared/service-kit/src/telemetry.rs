//! Logs: text or JSON on stderr.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Form of log lines; text is in colour on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line.
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

/// Reads a filter. `Targets` alone takes a misspelt level for the name of a target, and then
/// nothing is logged.
fn targets(filter: &str) -> Result<Targets, String> {
    let is_target = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut targets = Targets::new();
    for directive in filter.split(',') {
        let (target, level) = directive.split_once('=').unwrap_or(("", directive));
        let target = target.trim();
        let level = level.trim();
        let level = level.parse().ok().filter(|_| level.starts_with(|c: char| c.is_alphabetic()));
        let Some(level): Option<LevelFilter> = level else {
            return Err(format!(
                "\"{}\" is not a level (off, error, warn, info, debug, trace)",
                directive.trim()
            ));
        };
        if directive.contains('=') && (target.is_empty() || target.contains(|c| !is_target(c))) {
            return Err(format!("\"{target}\" is not the name of a module"));
        }
        targets = match target {
            "" => targets.with_default(level),
            target => targets.with_target(target, level),
        };
    }
    Ok(targets)
}

/// Sends logs to stderr from now on, and panics with them. To be called once, early in `main`.
///
/// # Errors
/// [`TelemetryError`] for a filter that cannot be read, and when called twice.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let targets = targets(filter)
        .map_err(|reason| TelemetryError::Filter { filter: filter.to_owned(), reason })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_and_targets() {
        for good in ["info", "WARN", "off", "warn, lock_server=debug", "fenced_store::app=trace"] {
            assert!(targets(good).is_ok(), "{good}");
        }
        for bad in ["", "inof", "6", "info;debug", "info,", "a=b", "=info", "fence[span]=debug"] {
            assert!(targets(bad).is_err(), "{bad}");
        }
    }
}
