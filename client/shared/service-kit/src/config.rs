//! Layered configuration over any clap command: flag, then variable, then file, then default.
//!
//! Every long flag `--foo-bar` of the command is also the variable `PREFIX_FOO_BAR`, the variable
//! `PREFIX_FOO_BAR_FILE` (the content of the file that it names, for secrets) and the key `foo-bar`
//! (or `foo_bar`) of the TOML file that `--config` or `PREFIX_CONFIG` names. The highest layer that
//! has a setting decides it wholly. An empty variable counts as not set; `--config` alone has no
//! `PREFIX_CONFIG_FILE`.
//!
//! Flags that may be repeated are arrays in the file and separated by `;` in a variable. Switches
//! are `true` or `false`. All wrong settings are reported at once, each with where it came from.

mod command;
mod environment;
mod error;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod report;
mod setting;

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use command::Spec;
pub use environment::{Env, ProcessEnv, misspelt_variables, unknown_variables};
pub use error::{ConfigError, SettingsError, USAGE_EXIT_CODE, keep};
use setting::{Origin, Setting};

/// The settings of a command whose flags are at its top level; see [`parse_at`].
///
/// # Errors
/// [`ConfigError`], with every wrong setting; also for `--help` and `--version`.
pub fn parse<A: clap::Parser>(
    prefix: &str,
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Env,
) -> Result<A, ConfigError> {
    parse_at(prefix, &[], args, env)
}

/// The settings of a command, where the layers apply to the flags of the subcommand at `path`.
///
/// `args` begin with the program's name. When they do not lead to that subcommand, then they are
/// parsed as they are. A global flag of a command above `path` is among them. Subcommands below
/// `path` take their flags from the command line alone, unless a flag is global.
///
/// # Errors
/// [`ConfigError`], with every wrong setting; also for `--help` and `--version`.
pub fn parse_at<A: clap::Parser>(
    prefix: &str,
    path: &[&str],
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Env,
) -> Result<A, ConfigError> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if args.is_empty() {
        args.push(A::command().get_name().into());
    }
    let strict = A::command();
    let matches = command::parse_loosely(&strict, path, &args)?;
    let Some(own) = command::descend(&matches, path) else {
        return A::try_parse_from(args).map_err(ConfigError::from);
    };
    let layers = Layers::read(prefix, command::specs(&strict, path), own, env);
    let (settings, errors) = layers.judged(&strict, path, env);
    if !errors.is_empty() {
        return Err(ConfigError::settings(errors));
    }
    let at = command::insert_position(&strict, path, &args);
    let injected = settings.iter().filter(|setting| setting.origin != Origin::Flag);
    args.splice(at..at, injected.flat_map(Setting::tokens));
    command::without_global_variables(strict)
        .try_get_matches_from(args)
        .and_then(|matches| A::from_arg_matches(&matches))
        .map_err(|error| setting::combined(error, &settings))
}

/// The settings of a command line alone: for a program that this one starts itself, in which a
/// variable of the user's must not be wrong.
///
/// # Errors
/// [`ConfigError`], as for [`parse_at`].
pub fn parse_flags<A: clap::Parser>(
    args: impl IntoIterator<Item = OsString>,
) -> Result<A, ConfigError> {
    command::without_global_variables(A::command())
        .try_get_matches_from(args)
        .and_then(|matches| A::from_arg_matches(&matches))
        .map_err(ConfigError::from)
}

/// Settings of all layers, before they are checked.
struct Layers {
    prefix: String,
    specs: Vec<Spec>,
    settings: Vec<Setting>,
    errors: Vec<String>,
}

impl Layers {
    fn read(prefix: &str, specs: Vec<Spec>, matches: &ArgMatches, env: &dyn Env) -> Self {
        let mut layers =
            Self { prefix: prefix.to_owned(), specs, settings: Vec::new(), errors: Vec::new() };
        layers.add_flags(matches);
        layers.add_variables(env);
        layers.add_file();
        layers
    }

    fn add_flags(&mut self, matches: &ArgMatches) {
        for spec in &self.specs {
            if matches.value_source(&spec.id) == Some(ValueSource::CommandLine) {
                let values = matches.get_raw(&spec.id).into_iter().flatten();
                let values = values.map(ToOwned::to_owned).collect();
                self.settings.push(Setting::new(spec, Origin::Flag, values));
            }
        }
    }

    fn add_variables(&mut self, env: &dyn Env) {
        for spec in &self.specs {
            if self.settings.iter().any(|setting| setting.spec.id == spec.id) {
                continue;
            }
            match environment::setting(&self.prefix, spec, &self.specs, env) {
                Ok(found) => self.settings.extend(found),
                Err(error) => {
                    self.errors.push(error);
                    // What is wrong in one layer is not quietly replaced by a lower one.
                    self.settings.push(Setting::wrong(spec));
                }
            }
        }
    }

    fn add_file(&mut self) {
        let Some(config) = self.settings.iter().find(|setting| setting.spec.long == "config")
        else {
            return;
        };
        let Some(path) = config.values.first() else {
            return;
        };
        // Its content, taken for a path, would be repeated, with the secrets in it.
        if let Origin::NamedFile { variable, .. } = &config.origin {
            let prefix = &self.prefix;
            self.errors.push(format!(
                "variable {variable} is not read: name the configuration file by {prefix}_CONFIG"
            ));
            return;
        }
        let (found, mut errors) = file::settings(path.as_ref(), &self.specs);
        self.errors.append(&mut errors);
        for setting in found {
            if !self.settings.iter().any(|higher| higher.spec.id == setting.spec.id) {
                self.settings.push(setting);
            }
        }
    }

    /// The settings, and everything that is wrong with them.
    fn judged(
        mut self,
        strict: &Command,
        path: &[&str],
        env: &dyn Env,
    ) -> (Vec<Setting>, Vec<String>) {
        let loose = command::loosened(strict.clone(), path, true);
        for setting in &mut self.settings {
            if let Some(error) = setting.error(&loose, path) {
                self.errors.push(error);
                setting.is_wrong = true;
            }
        }
        for spec in self.specs.iter().filter(|spec| spec.is_required) {
            if !self.settings.iter().any(|setting| setting.spec.id == spec.id) {
                let long = &spec.long;
                let variable = Some(spec.variable(&self.prefix)).filter(|name| env.sets(name));
                let variable = variable.map(|name| format!("the variable {name}, "));
                let variable = variable.unwrap_or_default();
                self.errors.push(format!(
                    "--{long} is missing: give the flag, {variable}or the key {long} in the file \
                     that --config names"
                ));
            }
        }
        if !self.errors.is_empty() {
            self.errors.extend(setting::conflict(strict, path, &self.settings));
        }
        (self.settings, self.errors)
    }
}

#[cfg(test)]
mod tests;
