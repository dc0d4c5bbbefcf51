//! Test that the page on configuration names every setting.

use crate::config::{Config, PREFIX};
use clap::CommandFactory as _;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/configuration.md");

#[test]
fn configuration_page_names_every_flag_with_its_variable() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut flags = 0;
    let command = Config::command();
    // Hidden flags are for tests.
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    for long in shown.filter_map(clap::Arg::get_long) {
        let variable = format!("{PREFIX}_{}", long.replace('-', "_").to_ascii_uppercase());
        for name in [format!("`--{long}`"), format!("`{variable}`")] {
            assert!(page.contains(&name), "{name} is missing");
        }
        flags += 1;
    }
    assert!(flags > 10, "{flags} flags were looked for");
}
