//! The settings of both servers, from clap: docs/operating/configuration.md.

use clap::CommandFactory as _;

use super::{Table, sentence};

/// A setting as the page shows it.
struct Setting {
    flag: String,
    /// Default and meaning.
    text: String,
}

impl Setting {
    fn line(&self) -> String {
        let Self { flag, text } = self;
        format!("- `--{flag}`{text}\n")
    }
}

pub(super) fn tables() -> Vec<Table> {
    use {fenced_store::config as guard, lock_server::config as lock_server};
    let locks = settings(&lock_server::Config::command());
    let fences = settings(&guard::Config::command());
    let is_shared = |setting: &Setting| {
        locks.iter().any(|other| other.flag == setting.flag && other.text == setting.text)
    };
    let (shared, own): (Vec<Setting>, Vec<Setting>) = fences.into_iter().partition(is_shared);
    let shared: Vec<String> =
        shared.iter().map(|setting| format!("`--{}`", setting.flag)).collect();
    let own: String = own.iter().map(Setting::line).collect();
    vec![
        Table::new("lock-server settings", locks.iter().map(Setting::line).collect()),
        Table::new(
            "fenced-store settings",
            format!("{own}- as for lock-server: {}\n", shared.join(", ")),
        ),
    ]
}

fn settings(command: &clap::Command) -> Vec<Setting> {
    let mut found = Vec::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) else {
            continue;
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (meaning, written) = sentence(&help);
        let values = arg.get_default_values().iter().map(|value| value.to_string_lossy());
        let default: Vec<_> = values.filter(|value| value != "false").collect();
        let default = match default.is_empty() {
            true => written.unwrap_or_default(),
            false => format!("`{}`", default.join(",")),
        };
        let text = match default.is_empty() {
            true => format!(": {meaning}"),
            false => format!(" ({default}): {meaning}"),
        };
        found.push(Setting { flag: long.to_owned(), text });
    }
    found
}
