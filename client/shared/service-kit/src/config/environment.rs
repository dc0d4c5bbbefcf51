//! The layer of variables.

use std::collections::BTreeMap;

use https_client::read_text;

use super::command::{self, Kind, Spec};
use super::setting::{Origin, Setting};

/// The largest file that a `…_FILE` variable may name, in bytes.
const NAMED_FILE_BYTES_MAX: u64 = 64 * 1024;

/// A source of variables.
pub trait Env {
    /// The value of a variable. Bytes that are not UTF-8 are replaced, so that the value is
    /// refused where it is parsed.
    fn get(&self, name: &str) -> Option<String>;

    /// The names of all variables that are set.
    fn names(&self) -> Vec<String>;

    /// Returns `false` for a variable that sets nothing, though a flag has its name.
    fn sets(&self, _name: &str) -> bool {
        true
    }
}

/// The variables of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnv;

impl Env for ProcessEnv {
    #[expect(clippy::disallowed_methods, reason = "this module owns the environment")]
    fn get(&self, name: &str) -> Option<String> {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
    }
}

impl Env for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        BTreeMap::get(self, name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}

/// Variables that begin with the prefix and set nothing: misspelt ones, perhaps. They are worth a
/// warning and no more, because Kubernetes sets such variables for services of a like name.
pub fn unknown_variables<A: clap::Parser>(
    prefix: &str,
    path: &[&str],
    env: &dyn Env,
) -> Vec<String> {
    unknown(prefix, &command::specs(&A::command(), path), env)
}

/// Variables that no command reads, each with the variable of the command at `path` that it is
/// close to. Others with the prefix are of other programs.
pub fn misspelt_variables<A: clap::Parser>(
    prefix: &str,
    path: &[&str],
    env: &dyn Env,
) -> Vec<(String, String)> {
    let command = A::command();
    let own = command::specs(&command, path);
    let names = unknown(prefix, &command::all_specs(&command), env).into_iter();
    let near = |name: &str| {
        let word = name[prefix.len() + 1..].to_ascii_lowercase().replace('_', "-");
        let near = command::nearest(&word, &own)?;
        // A short word is a letter or two from many.
        (near.long.chars().next() == word.chars().next()).then(|| near.variable(prefix))
    };
    names.filter_map(|name| near(&name).map(|near| (name, near))).collect()
}

fn unknown(prefix: &str, specs: &[Spec], env: &dyn Env) -> Vec<String> {
    let known = |name: &String| {
        specs.iter().flat_map(|spec| spec.variables(prefix)).any(|variable| {
            name.strip_prefix(&variable).is_some_and(|end| end.is_empty() || end == "_FILE")
        })
    };
    let start = format!("{prefix}_");
    env.names().into_iter().filter(|name| name.starts_with(&start) && !known(name)).collect()
}

/// The setting of a flag by its variable.
pub(super) fn setting(
    prefix: &str,
    spec: &Spec,
    all: &[Spec],
    env: &dyn Env,
) -> Result<Option<Setting>, String> {
    let mut found: Option<Setting> = None;
    for variable in spec.variables(prefix) {
        let Some(next) = variable_setting(variable, prefix, spec, all, env)? else { continue };
        // `fence run` gives its command the flag's value under both names.
        if let Some(first) = found.as_ref().filter(|first| first.values != next.values) {
            return Err(format!(
                "{} and {} set the same flag, --{}; unset one of them",
                first.origin, next.origin, spec.long
            ));
        }
        found = found.or(Some(next));
    }
    Ok(found)
}

fn variable_setting(
    variable: String,
    prefix: &str,
    spec: &Spec,
    all: &[Spec],
    env: &dyn Env,
) -> Result<Option<Setting>, String> {
    let is_set = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let twin = format!("{variable}_FILE");
    // A flag of that very name has the variable for itself: --token-key-file.
    let twin_is_taken = all.iter().any(|other| other.variables(prefix).contains(&twin));
    let named = if twin_is_taken { None } else { is_set(&twin) };
    match (is_set(&variable), named) {
        (Some(_), Some(_)) => {
            Err(format!("variables {variable} and {twin} are both set; unset one of them"))
        }
        (Some(value), None) => {
            Ok(Some(Setting::new(spec, Origin::Variable(variable), values(spec, &value))))
        }
        (None, Some(path)) => {
            let value = read_text(path.as_ref(), NAMED_FILE_BYTES_MAX)
                .map_err(|error| format!("variable {twin}: file {error}"))?;
            let origin = Origin::NamedFile { variable: twin, path };
            Ok(Some(Setting::new(spec, origin, values(spec, value.trim()))))
        }
        (None, None) => Ok(None),
    }
}

fn values(spec: &Spec, value: &str) -> Vec<std::ffi::OsString> {
    match spec.kind {
        Kind::Many => {
            value.split(';').map(str::trim).filter(|v| !v.is_empty()).map(Into::into).collect()
        }
        Kind::Value | Kind::Switch => vec![value.into()],
    }
}
