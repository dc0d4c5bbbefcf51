//! One setting and where it came from.

use std::error::Error as _;
use std::ffi::OsString;
use std::fmt;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::command::{Kind, Spec, loosened, words};
use super::error::{ConfigError, first_paragraph};
use crate::login::without_password;
use crate::problem::shown;

/// Layer that a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Flag,
    Variable(String),
    /// A variable named a file with the value: a secret, perhaps.
    NamedFile {
        variable: String,
        path: String,
    },
    ConfigFile {
        path: String,
        key: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => write!(f, "command line"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::NamedFile { variable, path } => {
                write!(f, "file {path}, named by variable {variable}")
            }
            Self::ConfigFile { path, key } => write!(f, "file {path}, key {key}"),
        }
    }
}

/// A flag's values from the highest layer that has them.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) spec: Spec,
    pub(super) origin: Origin,
    pub(super) values: Vec<OsString>,
    pub(super) is_wrong: bool,
}

impl Setting {
    pub(super) fn new(spec: &Spec, origin: Origin, values: Vec<OsString>) -> Self {
        Self { spec: spec.clone(), origin, values, is_wrong: false }
    }

    /// Stands for a setting whose error has been reported.
    pub(super) fn wrong(spec: &Spec) -> Self {
        Self { is_wrong: true, ..Self::new(spec, Origin::Flag, Vec::new()) }
    }

    /// The words that set it on a command line.
    pub(super) fn tokens(&self) -> Vec<OsString> {
        let flag = format!("--{}", self.spec.long);
        if self.spec.kind == Kind::Switch {
            let is_on = self.values.iter().any(|value| value == "true");
            return is_on.then(|| flag.into()).into_iter().collect();
        }
        let token = |value: &OsString| {
            let mut token = OsString::from(format!("{flag}="));
            token.push(value);
            token
        };
        self.values.iter().map(token).collect()
    }

    /// The error of this setting by itself.
    pub(super) fn error(&self, loose: &Command, path: &[&str]) -> Option<String> {
        if self.is_wrong {
            return None;
        }
        let origin = &self.origin;
        let long = &self.spec.long;
        if self.spec.kind == Kind::Switch {
            let bad = self.values.iter().find(|value| *value != "true" && *value != "false")?;
            let bad = self.shown_value(&bad.to_string_lossy());
            return Some(format!("{origin}: {bad} is not valid for --{long}: write true or false"));
        }
        let args = words(loose, path, self.tokens());
        let error = loose.clone().try_get_matches_from(args).err()?;
        // Together with the other settings these may be right; the last pass decides.
        if matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict)
        {
            return None;
        }
        Some(format!("{origin}: {}", self.reason(&error)))
    }

    fn reason(&self, error: &clap::Error) -> String {
        let long = &self.spec.long;
        let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
            return first_paragraph(error);
        };
        let value = self.shown_value(value);
        match (error.source(), error.get(ContextKind::ValidValue)) {
            (Some(source), _) => {
                format!("{value} is not valid for --{long}: {}", self.without_secret(source))
            }
            (None, Some(ContextValue::Strings(valid))) if !valid.is_empty() => {
                format!("{value} is not valid for --{long}: write {}", valid.join(" or "))
            }
            _ if value == "\"\"" => format!("--{long} must not be empty"),
            _ => format!("{value} is not valid for --{long}"),
        }
    }

    /// A value without a password or control characters.
    pub(super) fn plain_value(&self, value: &std::ffi::OsStr) -> String {
        shown(&without_password(&value.to_string_lossy()))
    }

    fn shown_value(&self, value: &str) -> String {
        match self.origin {
            Origin::NamedFile { .. } => "its content".to_owned(),
            // A password in a URL must not reach a log either.
            _ => format!("\"{}\"", shown(&without_password(value))),
        }
    }

    /// A parser's message may repeat the value; that of a secret must not reach a log.
    fn without_secret(&self, message: &dyn std::error::Error) -> String {
        let text = message.to_string();
        let is_secret = matches!(self.origin, Origin::NamedFile { .. });
        if is_secret { "see the flag's help for what it takes".to_owned() } else { text }
    }
}

/// Clap's error for settings that are right one by one.
pub(super) fn combined(error: clap::Error, settings: &[Setting]) -> ConfigError {
    if !error.use_stderr() {
        return error.into();
    }
    ConfigError::settings(vec![with_origins(first_paragraph(&error), settings)])
}

/// Flags that exclude each other, reported beside other errors.
pub(super) fn conflict(strict: &Command, path: &[&str], settings: &[Setting]) -> Option<String> {
    let good = settings.iter().filter(|setting| !setting.is_wrong);
    let args = words(strict, path, good.flat_map(Setting::tokens));
    let error = loosened(strict.clone(), path, true).try_get_matches_from(args).err()?;
    let text = || with_origins(first_paragraph(&error), settings);
    (error.kind() == ErrorKind::ArgumentConflict).then(text)
}

/// The message, with where those flags came from that were not on the command line.
fn with_origins(mut message: String, settings: &[Setting]) -> String {
    let mut notes = Vec::new();
    for setting in settings.iter().filter(|setting| setting.origin != Origin::Flag) {
        let flag = format!("--{}", setting.spec.long);
        let is_named = message
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
            .any(|word| word == flag);
        if is_named {
            notes.push(format!("{flag} comes from {}", setting.origin));
        }
    }
    if !notes.is_empty() {
        message.push_str(&format!(" ({})", notes.join("; ")));
    }
    message
}
