//! The page on configuration names every setting that there is.

use clap::CommandFactory as _;
use lock_server::config::{Config, PREFIX};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/configuration.md");

#[test]
fn configuration_page_names_every_flag_with_its_variable() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut flags = 0;
    for long in Config::command().get_arguments().filter_map(clap::Arg::get_long) {
        let variable = format!("{PREFIX}_{}", long.replace('-', "_").to_ascii_uppercase());
        let begin = format!("- `--{long}`, `{variable}`");
        assert!(page.lines().any(|line| line.starts_with(&begin)), "no line begins with {begin}");
        flags += 1;
    }
    assert!(flags > 10, "{flags} flags were looked for");
}
