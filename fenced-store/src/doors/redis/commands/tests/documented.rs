//! Test that the page of commands matches the code.

use std::collections::HashSet;

use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/redis-commands.md");

/// `FENCE_REGENERATE=1 cargo test -p fenced-store redis_commands_page` regenerates the page.
#[test]
#[expect(clippy::disallowed_methods, reason = "a switch for the caller of this test")]
fn redis_commands_page_is_as_the_code() {
    let mut redis = Redis::start();
    let newer = [Redis::newer("redis-8.2"), Redis::newer("valkey-9.1")];
    let tables: Vec<CommandTable> =
        std::iter::once(redis.table()).chain(newer.map(|mut newer| newer.table())).collect();
    let page = page::page(&tables);
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
         redis_commands_page regenerates it"
    );
}

/// A later version has more commands, and the page still holds for those of 7.0.
fn still_holds(page: &str) {
    let written = std::fs::read_to_string(PAGE).unwrap();
    let made: HashSet<_> = page.lines().flat_map(facts).collect();
    let gone: Vec<_> =
        written.lines().flat_map(facts).filter(|fact| !made.contains(fact)).collect();
    assert!(gone.is_empty(), "this Redis is not 7.0, and the page is wrong about: {gone:#?}");
}

/// An item's head with each of the commands behind it; another line by itself.
fn facts(line: &str) -> Vec<(&str, &str)> {
    let item = line.strip_prefix("- ").and_then(|item| item.rsplit_once(": "));
    let (head, names) = item.unwrap_or(("", line.trim_end_matches('.')));
    names.split(", ").map(|name| (head, name)).collect()
}
