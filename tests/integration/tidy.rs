//! The sources keep to plain English and to the sizes of CONTRIBUTING.md: each rule counts its
//! findings, and tidy/allowed.txt has how many of them are still allowed. `layout` has the rules of
//! the tree, and tidy/lines.txt the sizes of packages.
//!
//! `FENCE_REGENERATE=1 tests/run -- tidy` lowers the numbers of both tables to what is found. It
//! never raises one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rules::{Finding, RULES};

mod comments;
mod imports;
mod layout;
pub(super) mod rules;
mod rust_text;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/integration/tidy/allowed.txt");
/// Places that a message names for a rule.
const SHOWN_MAX: usize = 15;

/// A part of a source file that is production code, or tests.
struct Part {
    path: PathBuf,
    is_test: bool,
    text: String,
    /// Lines of the file before this part.
    lines_before: usize,
}

/// Endings of the files of the SDKs in other languages.
const SDK_ENDINGS: [&str; 3] = ["py", "ts", "go"];
/// Folders of what tools have made or downloaded.
const NOT_OURS: [&str; 4] = ["node_modules", "build", "dist", "__pycache__"];

/// Every source file of the workspace and of the SDKs, cut where its tests begin.
fn sources() -> Vec<Part> {
    let files = files_below(&["client", "fenced-store", "lock-server", "tests"]);
    // The rules have the words that they forbid.
    let files = files.into_iter().filter(|path| is_source(path) && !is_of_the_rules(path));
    let mut parts: Vec<Part> = files.flat_map(parts_of).collect();
    parts.sort_by(|one, other| one.path.cmp(&other.path));
    parts
}

/// Files of folders of the root, relative to it.
fn files_below(roots: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = roots.iter().map(|root| Path::new(ROOT).join(root)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let is_ours = !NOT_OURS.iter().any(|other| path.ends_with(other));
                folders.extend(is_ours.then_some(path));
            } else {
                files.push(path.strip_prefix(ROOT).unwrap().to_owned());
            }
        }
    }
    files
}

fn files_with(roots: &[&str], ending: &str) -> Vec<PathBuf> {
    let mut files = files_below(roots);
    files.retain(|path| path.extension().is_some_and(|other| other == ending));
    files
}

fn is_of_the_rules(path: &Path) -> bool {
    path.starts_with("tests/integration/tidy")
}

fn is_source(path: &Path) -> bool {
    let is_sdk = path.starts_with("client");
    path.extension().is_some_and(|ending| {
        ending == "rs" || (is_sdk && SDK_ENDINGS.iter().any(|other| ending == *other))
    })
}

fn parts_of(path: PathBuf) -> Vec<Part> {
    let text = std::fs::read_to_string(Path::new(ROOT).join(&path)).unwrap();
    let is_test = path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem == "tests" || stem == "fuzz")
        || path.to_string_lossy().ends_with("_test.go");
    match text.find("#[cfg(test)]\nmod tests {").filter(|_| !is_test) {
        None => vec![Part { path, is_test, text, lines_before: 0 }],
        Some(at) => {
            let (production, tests) = text.split_at(at);
            let lines_before = production.lines().count();
            vec![
                Part {
                    path: path.clone(),
                    is_test: false,
                    text: production.to_owned(),
                    lines_before: 0,
                },
                Part { path, is_test: true, text: tests.to_owned(), lines_before },
            ]
        }
    }
}

/// Findings of each rule: "in production" or "in tests", then the rule's name.
fn findings() -> BTreeMap<(&'static str, &'static str), Vec<String>> {
    let mut found: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for part in sources() {
        let scope = if part.is_test { "tests" } else { "production" };
        for rule in RULES {
            let places = found.entry((scope, rule.name)).or_default();
            for Finding { line, what } in rule.find(&part.text) {
                let line = line + part.lines_before;
                places.push(format!("{}:{line}: {what}", part.path.display()));
            }
        }
    }
    found
}

/// The table: scope, number, name of the rule.
fn allowed() -> BTreeMap<(String, String), usize> {
    let table = std::fs::read_to_string(TABLE).unwrap();
    let rows = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    rows.map(|row| {
        let mut columns = row.splitn(3, '\t');
        let mut column =
            || columns.next().expect("scope, number, rule, with tabs between").to_owned();
        let scope = column();
        let number = column();
        ((scope, column()), number.parse().expect("a number"))
    })
    .collect()
}

fn write_lowered(
    found: &BTreeMap<(&str, &str), Vec<String>>,
    allowed: &BTreeMap<(String, String), usize>,
) {
    let mut table =
        "# Findings that are still allowed; see ../tidy.rs. A rule that is not here allows none.\n"
            .to_owned();
    for ((scope, rule), places) in found {
        let before = allowed.get(&((*scope).to_owned(), (*rule).to_owned())).copied();
        let now = places.len().min(before.unwrap_or(0));
        if now > 0 {
            writeln!(table, "{scope}\t{now}\t{rule}").unwrap();
        }
    }
    std::fs::write(TABLE, table).unwrap();
}

#[test]
fn sources_keep_to_plain_english_and_sizes() {
    let found = findings();
    let mut allowed = allowed();
    if std::env::var_os("FENCE_REGENERATE").is_some() {
        write_lowered(&found, &allowed);
        allowed = self::allowed();
    }
    let mut message = String::new();
    for ((scope, name), places) in &found {
        let allowed = allowed.get(&((*scope).to_owned(), (*name).to_owned())).copied().unwrap_or(0);
        if places.len() <= allowed {
            continue;
        }
        let instead = RULES.iter().find(|rule| rule.name == *name).unwrap().instead;
        let count = places.len();
        writeln!(message, "\n{name}: {count} in {scope}, {allowed} allowed. {instead}").unwrap();
        for place in places.iter().take(SHOWN_MAX) {
            writeln!(message, "    {place}").unwrap();
        }
        if count > SHOWN_MAX {
            writeln!(message, "    … and {} more", count - SHOWN_MAX).unwrap();
        }
    }
    assert!(message.is_empty(), "see CONTRIBUTING.md, Style:\n{message}");
}

/// Each rule finds what it is for, and nothing in a good text.
#[test]
fn every_rule_finds_its_sample() {
    for rule in RULES {
        let found = rule.find(&rule.sample()).len();
        assert_eq!(found, 1, "{}: findings in its sample", rule.name);
        let good = "/// Highest token admitted for the lock.\npub mark: Token,\n";
        assert_eq!(rule.find(good).len(), 0, "{}: findings in a good text", rule.name);
    }
}

/// The simulation's mutants quote the sources, and are built by hand only.
#[test]
fn mutants_fit_the_sources() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/simulation/mutants");
    let output = std::process::Command::new(script).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Files that tools make are not committed.
#[test]
fn no_tracked_file_is_ignored() {
    if !Path::new(ROOT).join(".git").exists() {
        return;
    }
    let list = ["ls-files", "--cached", "--ignored", "--exclude-standard"];
    let output = std::process::Command::new("git").current_dir(ROOT).args(list).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = String::from_utf8_lossy(&output.stdout);
    assert!(files.is_empty(), "remove them (git rm --cached), or change .gitignore:\n{files}");
}
