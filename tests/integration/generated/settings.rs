//! The settings of both servers, from clap: docs/operating/configuration.md.

use clap::CommandFactory as _;

use super::{Table, sentence};

pub(super) fn tables() -> Vec<Table> {
    use {fenced_store::config as guard, lock_server::config as lock_server};
    vec![
        Table::new(
            "lock-server settings",
            settings(&lock_server::Config::command(), lock_server::PREFIX),
        ),
        Table::new("fenced-store settings", settings(&guard::Config::command(), guard::PREFIX)),
    ]
}

fn settings(command: &clap::Command, prefix: &str) -> String {
    let mut rows =
        "| flag | variable | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) else {
            continue;
        };
        let variable = format!("{prefix}_{}", long.replace('-', "_").to_ascii_uppercase());
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (text, written) = sentence(&help);
        let values = arg.get_default_values().iter().map(|value| value.to_string_lossy());
        let default: Vec<_> = values.filter(|value| value != "false").collect();
        let default = match default.is_empty() {
            true => written.unwrap_or_default(),
            false => format!("`{}`", default.join(",")),
        };
        let row = format!("| `--{long}` | `{variable}` | {default} | {text} |\n");
        rows += &row.replace("|  |", "| |");
    }
    rows
}
