//! Errors in the settings.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// The exit code for wrong usage (EX_USAGE of sysexits.h).
pub const USAGE_EXIT_CODE: u8 = 64;

/// Every wrong setting with its origin; or what clap answers, `--help` and `--version` included.
#[derive(Debug)]
pub struct ConfigError {
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    Settings(Vec<String>),
    Clap(Box<clap::Error>),
}

impl ConfigError {
    pub(super) fn settings(errors: Vec<String>) -> Self {
        Self { answer: Answer::Settings(errors) }
    }

    /// Every error, one a line or more; empty for `--help` and `--version`.
    pub fn errors(&self) -> Vec<String> {
        match &self.answer {
            Answer::Settings(errors) => errors.clone(),
            Answer::Clap(error) if error.use_stderr() => vec![first_paragraph(error)],
            Answer::Clap(_) => Vec::new(),
        }
    }

    /// 0 for `--help` and `--version`, else [`USAGE_EXIT_CODE`].
    pub fn exit_code(&self) -> u8 {
        match &self.answer {
            Answer::Clap(error) if !error.use_stderr() => 0,
            _ => USAGE_EXIT_CODE,
        }
    }

    /// Prints help to stdout and errors to stderr; returns the exit code for `main`.
    pub fn report(&self) -> ExitCode {
        // A closed stderr leaves nowhere to report to.
        let _ = match &self.answer {
            Answer::Clap(error) => error.print(),
            Answer::Settings(_) => writeln!(std::io::stderr().lock(), "error: {self}"),
        };
        ExitCode::from(self.exit_code())
    }
}

impl From<clap::Error> for ConfigError {
    fn from(error: clap::Error) -> Self {
        Self { answer: Answer::Clap(Box::new(error)) }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.answer {
            Answer::Clap(error) => error.render().fmt(f),
            Answer::Settings(errors) => match errors.as_slice() {
                [one] => f.write_str(one),
                many => {
                    write!(f, "{} settings are wrong:", many.len())?;
                    many.iter().try_for_each(|error| write!(f, "\n  - {error}"))
                }
            },
        }
    }
}

impl std::error::Error for ConfigError {}

/// Settings that are valid each and conflict together, or name a file that cannot be used; a line
/// each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SettingsError(pub Vec<String>);

/// Returns the value, or collects the problem, so that all problems are reported at once.
pub fn keep<T>(result: Result<T, String>, problems: &mut Vec<String>) -> Option<T> {
    result.map_err(|problem| problems.push(problem)).ok()
}

/// clap's message without its usage and its invitation to `--help`.
pub(super) fn first_paragraph(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let end = ["\n\nUsage:", "\n\nFor more"].iter().filter_map(|mark| text.find(mark)).min();
    let text = &text[..end.unwrap_or(text.len())];
    text.strip_prefix("error: ").unwrap_or(text).trim_end().to_owned()
}
