//! The page of commands is as the code is.

use std::collections::HashSet;

use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/redis-commands.md");

/// `FENCE_REGENERATE=1 cargo test -p fenced-store redis_commands_page` writes the page anew.
#[test]
#[expect(clippy::disallowed_methods, reason = "a switch for the caller of this test")]
fn redis_commands_page_is_as_the_code() {
    let mut redis = Redis::start();
    let page = page::page(&redis.table());
    if !redis.is_7_0() {
        return still_holds(&page);
    }
    if std::env::var("FENCE_REGENERATE").is_ok_and(|value| value == "1") {
        std::fs::write(PAGE, &page).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    let differs = page.lines().zip(written.lines()).find(|(made, read)| made != read);
    assert!(
        page == written,
        "the page differs, first at {differs:?}; FENCE_REGENERATE=1 cargo test -p fenced-store \
         redis_commands_page writes it anew"
    );
}

/// A later version has more commands, and what the page says of those of 7.0 still holds.
fn still_holds(page: &str) {
    let written = std::fs::read_to_string(PAGE).unwrap();
    let made: HashSet<_> = page.lines().flat_map(facts).collect();
    let gone: Vec<_> =
        written.lines().flat_map(facts).filter(|fact| !made.contains(fact)).collect();
    assert!(gone.is_empty(), "this Redis is not 7.0, and what the page says is wrong: {gone:#?}");
}

/// A row's cells with each of the commands in its last one; another line by itself.
fn facts(line: &str) -> Vec<(&str, &str)> {
    let row = line.strip_suffix(" |").and_then(|row| row.rsplit_once("| "));
    let (cells, names) = row.unwrap_or(("", line.trim_end_matches('.')));
    names.split(", ").map(|name| (cells, name)).collect()
}
