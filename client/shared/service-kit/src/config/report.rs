//! Every setting with its origin, for `config check` and `config show`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Command, Parser, Subcommand};
use serde::Serialize;

use super::command::{self, Spec};
use super::setting::{Origin, Setting};
use super::{ConfigError, Env, Layers, ProcessEnv, SettingsError, USAGE_EXIT_CODE};

/// Subcommand `config` of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum ConfigAction {
    /// Check all settings without serving; exit code 64 if one cannot be used.
    Check,
    /// Check all settings, and print each with its origin.
    Show,
}

/// A setting, as it may be shown: without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownSetting {
    /// The flag's name, without the dashes.
    pub name: String,
    /// Its values; none if it has neither a value nor a default.
    pub values: Vec<String>,
    /// The layer that they come from, as in `variable FENCE_TTL`, or `default`.
    pub origin: String,
}

/// Settings of a command, and what is wrong with each by itself.
#[derive(Clone, Debug, Serialize)]
pub struct SettingsReport {
    /// In the order of the help.
    pub settings: Vec<ShownSetting>,
    /// A sentence each, with the origin.
    pub errors: Vec<String>,
}

impl SettingsReport {
    /// Reads the settings of the subcommand at `path`, as [`parse_at`](super::parse_at) does, but
    /// a setting that is required may be missing.
    ///
    /// # Errors
    /// [`ConfigError`] for a command line that cannot be parsed.
    pub fn read<A: Parser>(
        prefix: &str,
        path: &[&str],
        args: &[OsString],
        env: &dyn Env,
    ) -> Result<Self, ConfigError> {
        let strict = A::command();
        let matches = command::parse_loosely(&strict, path, args)?;
        let own = command::descend(&matches, path).unwrap_or(&matches);
        let mut specs = command::specs(&strict, path);
        specs.iter_mut().for_each(|spec| spec.is_required = false);
        let (settings, errors) =
            Layers::read(prefix, specs.clone(), own, env).judged(&strict, path, env);
        let settings = specs.iter().filter_map(|spec| shown(spec, &settings, &strict, path));
        Ok(Self { settings: settings.collect(), errors })
    }

    /// The settings as a table: name, value, origin.
    pub fn table(&self) -> String {
        let value = |setting: &ShownSetting| match setting.values.as_slice() {
            [] => "-".to_owned(),
            values => values.join(" "),
        };
        let names = self.settings.iter().map(|setting| setting.name.chars().count()).max();
        let values = self.settings.iter().map(|setting| value(setting).chars().count()).max();
        let names = names.unwrap_or(0);
        let values = values.unwrap_or(0).min(VALUE_COLUMNS_MAX);
        let mut text = String::new();
        for setting in &self.settings {
            let ShownSetting { name, origin, .. } = setting;
            // Writing to a String does not fail.
            let _ = writeln!(text, "{name:<names$}  {:<values$}  {origin}", value(setting));
        }
        text
    }
}

/// Widest column of values; a longer value moves its origin to the right.
const VALUE_COLUMNS_MAX: usize = 40;

/// The setting of a flag, unless it is hidden.
fn shown(
    spec: &Spec,
    settings: &[Setting],
    strict: &Command,
    path: &[&str],
) -> Option<ShownSetting> {
    let mut args = command::arguments(strict, path).into_iter();
    let arg = args.find(|arg| arg.get_id().as_str() == spec.id)?;
    if arg.is_hide_set() {
        return None;
    }
    let name = spec.long.clone();
    if let Some(setting) = settings.iter().find(|setting| setting.spec.id == spec.id) {
        let origin = setting.origin.to_string();
        return Some(ShownSetting { name, values: setting.shown_values(), origin });
    }
    let values = arg.get_default_values().iter();
    let values = values.map(|value| value.to_string_lossy().into_owned()).collect();
    Some(ShownSetting { name, values, origin: "default".to_owned() })
}

/// Ends a service's `config check` or `config show`: prints the settings if they are to be shown,
/// and the error that they have together.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the terminal is the interface")]
pub fn finish<A: Parser>(
    prefix: &str,
    action: ConfigAction,
    args: &[OsString],
    error: Option<&SettingsError>,
) -> ExitCode {
    if action == ConfigAction::Show {
        match SettingsReport::read::<A>(prefix, &[], args, &ProcessEnv) {
            Ok(report) => print!("{}", report.table()),
            Err(error) => return error.report(),
        }
    }
    match error {
        None => ExitCode::SUCCESS,
        Some(error) => {
            eprintln!("{error}");
            ExitCode::from(USAGE_EXIT_CODE)
        }
    }
}

impl Setting {
    fn shown_values(&self) -> Vec<String> {
        match &self.origin {
            Origin::NamedFile { .. } => vec!["(its content)".to_owned()],
            _ => self.values.iter().map(|value| self.plain_value(value)).collect(),
        }
    }
}
