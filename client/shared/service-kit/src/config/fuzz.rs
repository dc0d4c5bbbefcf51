//! Fuzz target: settings from a command line, variables, the files that they name, and a
//! configuration file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use super::{ConfigError, parse};

/// Flags of every kind.
#[derive(Debug, Parser, PartialEq)]
#[command(name = "server")]
struct Args {
    #[arg(long)]
    store: Option<String>,
    #[arg(long, default_value_t = 15_000)]
    ttl_max_ms: u64,
    #[arg(long)]
    rule: Vec<String>,
    #[arg(long, conflicts_with = "token")]
    unsigned: bool,
    #[arg(long)]
    token: Option<u32>,
    #[arg(long, value_enum, default_value_t)]
    log_format: crate::telemetry::LogFormat,
    #[arg(long)]
    config: Option<PathBuf>,
}

/// The content of every file that a variable names begins with this; no error may show it.
const SECRET: &str = "hunter2";

/// Layers that the input is taken apart into.
#[derive(Debug, Default)]
struct Layers {
    args: Vec<OsString>,
    variables: BTreeMap<String, String>,
    file: Option<String>,
}

/// Lines that begin with `-` are words of the command line, those with `SRV_…=` are variables, and
/// behind a line `+++` comes the configuration file. The highest layer decides, and what is wrong
/// is reported with where it came from, without what a named file holds.
pub(crate) fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if text.contains('\0') {
        return;
    }
    let folder = folder();
    let layers = layers(text, &folder);
    let args = std::iter::once("server".into()).chain(layers.args.iter().cloned());
    match parse::<Args>("SRV", args, &layers.variables) {
        Ok(settings) if layers.args.is_empty() => decided_by_layers(&layers, &settings),
        Ok(_) => {}
        Err(error) => reports(&layers, &error),
    }
}

/// A folder of this process for the files.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("fence-fuzz-{}", std::process::id()));
    let made = std::fs::create_dir_all(&folder);
    assert!(made.is_ok(), "{} cannot be made", folder.display());
    folder
}

fn layers(text: &str, folder: &std::path::Path) -> Layers {
    let mut layers = Layers::default();
    let (head, file) = match text.split_once("+++\n") {
        Some((head, file)) => (head, Some(file)),
        None => (text, None),
    };
    for line in head.lines() {
        if let Some((name, value)) = line.split_once('=').filter(|_| line.starts_with("SRV_")) {
            let mut value = value.to_owned();
            if name.ends_with("_FILE") {
                let named = folder.join("named");
                let written = std::fs::write(&named, format!("{SECRET}{value}"));
                assert!(written.is_ok(), "a file cannot be written");
                value = named.display().to_string();
            }
            if name != "SRV_CONFIG" {
                layers.variables.insert(name.to_owned(), value);
            }
        } else if line.starts_with('-') && !line.starts_with("--c") {
            layers.args.push(line.into());
        }
    }
    if let Some(file) = file {
        let path = folder.join("server.toml");
        assert!(std::fs::write(&path, file).is_ok(), "a file cannot be written");
        layers.variables.insert("SRV_CONFIG".to_owned(), path.display().to_string());
        layers.file = Some(file.to_owned());
    }
    layers
}

/// Without a command line: a variable beats the file, which beats the default.
fn decided_by_layers(layers: &Layers, settings: &Args) {
    let file: toml::Table = layers.file.as_deref().unwrap_or_default().parse().unwrap_or_default();
    let variable = |name: &str| layers.variables.get(name).filter(|value| !value.is_empty());
    if let Some(store) = variable("SRV_STORE") {
        assert_eq!(settings.store.as_ref(), Some(store));
    } else if variable("SRV_STORE_FILE").is_none() {
        let text = file.get("store").and_then(toml::Value::as_str);
        assert_eq!(settings.store.as_deref().filter(|_| text.is_some()), text);
    }
    let ms = match variable("SRV_TTL_MAX_MS") {
        Some(value) => value.parse().ok(),
        None => file
            .iter()
            .find(|(key, _)| key.replace('_', "-") == "ttl-max-ms")
            .map(|(_, value)| value)
            .map_or(Some(15_000), |value| u64::try_from(value.as_integer()?).ok()),
    };
    if variable("SRV_TTL_MAX_MS_FILE").is_none() && ms.is_some() {
        assert_eq!(Some(settings.ttl_max_ms), ms);
    }
}

fn reports(layers: &Layers, error: &ConfigError) {
    let errors = error.errors();
    let is_help = error.exit_code() == 0;
    assert_eq!(errors.is_empty(), is_help, "{errors:?}");
    let asks = |word: &OsString| word.to_string_lossy().contains('h');
    assert!(!is_help || layers.args.iter().any(asks), "help was not asked for");
    let shown = error.to_string();
    // clap shows a word without its control characters.
    let plain = |word: &OsString| word.to_string_lossy().replace(char::is_control, "");
    let is_open = layers.args.iter().any(|word| plain(word).contains(SECRET))
        || layers.file.as_deref().is_some_and(|file| file.contains(SECRET))
        || layers.variables.values().any(|value| value.contains(SECRET));
    assert!(is_open || !shown.contains(SECRET), "{shown}");
    if layers.args.is_empty() {
        for error in &errors {
            let origins = ["variable SRV_", "variables SRV_", "file ", "is missing"];
            assert!(origins.iter().any(|origin| error.contains(origin)), "no origin: {error}");
        }
    }
}
