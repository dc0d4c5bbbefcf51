//! The layer of the TOML file.

use std::ffi::OsString;
use std::path::Path;

use https_client::read_text;
use toml::{Table, Value};

use super::command::{Kind, Spec, nearest};
use super::setting::{Origin, Setting};

/// The largest configuration file, in bytes.
const CONFIG_FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The settings of the file, and all its errors.
pub(super) fn settings(path: &Path, specs: &[Spec]) -> (Vec<Setting>, Vec<String>) {
    let name = path.display().to_string();
    let text = match read_text(path, CONFIG_FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) => return (Vec::new(), vec![format!("file {error}")]),
    };
    let table = match text.parse::<Table>() {
        Ok(table) => table,
        Err(error) => {
            // The error's own text repeats the line, which may hold a password.
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            let why = error.message();
            return (Vec::new(), vec![format!("file {name} is not TOML: line {line}: {why}")]);
        }
    };
    let mut found: Vec<Setting> = Vec::new();
    let mut errors = Vec::new();
    for (key, value) in &table {
        let is_twice = |spec: &Spec| found.iter().any(|other| other.spec.id == spec.id);
        let setting = match spec_of(key, specs) {
            Ok(spec) if is_twice(spec) => {
                Err("sets a flag that another key sets already".to_owned())
            }
            Ok(spec) => values(spec, value).map(|values| {
                let origin = Origin::ConfigFile { path: name.clone(), key: key.clone() };
                Setting::new(spec, origin, values)
            }),
            Err(error) => Err(error),
        };
        match setting {
            Ok(setting) => found.push(setting),
            Err(error) => errors.push(format!("file {name}, key {key}: {error}")),
        }
    }
    (found, errors)
}

fn spec_of<'a>(key: &str, specs: &'a [Spec]) -> Result<&'a Spec, String> {
    let long = key.replace('_', "-");
    if long == "config" {
        return Err("a configuration file cannot name another one; remove the key".to_owned());
    }
    specs.iter().find(|spec| spec.names().any(|name| *name == long)).ok_or_else(|| {
        match nearest(&long, specs) {
            Some(near) => format!("there is no such setting; did you mean {}?", near.long),
            None => "there is no such setting; --help lists them all".to_owned(),
        }
    })
}

fn values(spec: &Spec, value: &Value) -> Result<Vec<OsString>, String> {
    match (spec.kind, value) {
        (Kind::Many, Value::Array(values)) => values.iter().map(scalar).collect(),
        (_, Value::Array(_)) => Err("takes one value, not an array".to_owned()),
        (_, value) => Ok(vec![scalar(value)?]),
    }
}

fn scalar(value: &Value) -> Result<OsString, String> {
    Ok(match value {
        Value::String(text) => text.into(),
        Value::Integer(number) => number.to_string().into(),
        Value::Float(number) => number.to_string().into(),
        Value::Boolean(is) => is.to_string().into(),
        Value::Datetime(time) => time.to_string().into(),
        Value::Array(_) => return Err("takes no array inside an array".to_owned()),
        Value::Table(_) => return Err("takes a value, not a table".to_owned()),
    })
}
