//! Tables of the pages that are generated from the code: a page that differs fails its test.
//!
//! A table stands between `<!-- generated: NAME -->` and `<!--end-->`.

mod commands;
mod errors;
mod metrics;
mod openapi;
mod routes;
mod settings;

use super::docs::pages;

const REGENERATE: &str = "cargo build --profile test --workspace --bins && \
                          FENCE_REGENERATE=1 cargo test -p fence-tests -- generated";
const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!--end-->";

/// A table and the name in its marker.
struct Table {
    name: String,
    text: String,
}

impl Table {
    fn new(name: impl Into<String>, text: String) -> Self {
        Self { name: name.into(), text }
    }
}

#[test]
fn pages_have_the_tables_of_the_code() {
    let tables: Vec<Table> = [
        errors::tables(),
        routes::tables(),
        settings::tables(),
        metrics::tables(),
        commands::tables(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut used = Vec::new();
    let mut stale = Vec::new();
    for page in pages() {
        let written = std::fs::read_to_string(&page).unwrap();
        let made = filled(&written, &tables, &mut used);
        if made == written {
            continue;
        }
        if regenerates() {
            std::fs::write(&page, made).unwrap();
        } else {
            let differs = made.lines().zip(written.lines()).find(|(made, read)| made != read);
            stale.push(format!("{}, first at {differs:?}", page.display()));
        }
    }
    assert!(stale.is_empty(), "{}\nrun {REGENERATE}", stale.join("\n"));
    let unused = tables.iter().filter(|table| !used.contains(&table.name));
    let unused: Vec<_> = unused.map(|table| format!("{BEGIN}{} -->", table.name)).collect();
    assert!(unused.is_empty(), "no page has these markers: {unused:?}");
}

pub(super) fn regenerates() -> bool {
    std::env::var("FENCE_REGENERATE").is_ok_and(|value| value == "1")
}

/// The page with every table as the code has it; notes the names of those that it has.
fn filled(page: &str, tables: &[Table], used: &mut Vec<String>) -> String {
    let mut out = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->").expect("a marker that is closed");
        let (old, after) =
            after.split_once("<!--").unwrap_or_else(|| panic!("no {END} after {name}"));
        assert!(!old.contains("\n#"), "the heading after {name} comes before {END}");
        let (_, after) = after.split_once("-->").expect("a marker that is closed");
        let table = tables.iter().find(|table| table.name == name);
        let text = &table.unwrap_or_else(|| panic!("no table is called {name}")).text;
        out += &format!("{before}{BEGIN}{name} -->\n\n{}\n\n{END}", text.trim_end());
        used.push(name.to_owned());
        rest = after;
    }
    out + rest
}

/// The first sentence of a help text, and the default that stands in brackets in it.
fn sentence(text: &str) -> (String, Option<String>) {
    let text = text.replace('\n', " ");
    let mut plain = text.clone();
    let mut default = None;
    if let Some((before, rest)) = text.split_once("[default: ")
        && let Some((value, after)) = rest.rsplit_once(']')
    {
        plain = format!("{before}{after}");
        default = Some(value.to_owned());
    }
    let plain = plain.replace(" .", ".");
    let first = plain.split_once(". ").map_or(plain.as_str(), |(first, _)| first);
    (first.trim().trim_end_matches('.').replace('|', "\\|"), default)
}

#[test]
fn tables_are_filled_in_at_their_markers() {
    let tables = [Table::new("a", "| 1 |".to_owned())];
    let page = format!("x\n{BEGIN}a -->\nold\n{END}\ny");
    let mut used = Vec::new();
    let made = filled(&page, &tables, &mut used);
    assert_eq!(made, format!("x\n{BEGIN}a -->\n\n| 1 |\n\n{END}\ny"));
    assert_eq!(filled(&made, &tables, &mut used), made);
    assert_eq!(used, ["a", "a"]);
}

#[test]
fn a_help_text_is_cut_to_its_first_sentence() {
    assert_eq!(sentence("The lock. As in a.\nb"), ("The lock".to_owned(), None));
    let expected = ("Time to live".to_owned(), Some("1s".to_owned()));
    assert_eq!(sentence("Time to live [default: 1s]. As in b."), expected);
}
