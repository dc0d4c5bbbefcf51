//! The documentation: its links lead somewhere, its code blocks parse, the files and tests that it
//! names exist, and its words are those of the field.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tidy::rules::RULES;

pub(super) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The pages at the top, and everything below docs and .github that ends in .md.
pub(super) fn pages() -> Vec<PathBuf> {
    let mut pages =
        ["README.md", "CONTRIBUTING.md"].map(|page| Path::new(ROOT).join(page)).to_vec();
    for folder in ["docs", ".github"] {
        pages.extend(files(&Path::new(ROOT).join(folder), "md"));
    }
    pages
}

/// Every file below a folder whose name ends so.
pub(super) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                found.push(path);
            }
        }
    }
    found
}

/// The prose: what is between fences or in back quotes is no link.
fn prose(page: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.extend(line.split('`').step_by(2));
            prose.push('\n');
        }
    }
    prose
}

fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let is_relative = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    targets.map(|(target, _)| target).filter(is_relative).map(ToOwned::to_owned).collect()
}

/// The anchors of a page's headings: lower case, blanks as hyphens, no punctuation.
fn anchors(page: &str) -> Vec<String> {
    let mut is_fenced = false;
    let headings = page.lines().filter(|line| {
        is_fenced ^= line.trim_start().starts_with("```");
        !is_fenced && line.starts_with('#')
    });
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|text| text.chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

fn is_broken(page: &Path, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_owned(),
        path => page.parent().unwrap().join(path),
    };
    if !target.exists() {
        return true;
    }
    !anchor.is_empty()
        && !anchors(&std::fs::read_to_string(target).unwrap()).contains(&anchor.to_owned())
}

#[test]
fn links_lead_somewhere() {
    let mut seen = 0;
    let mut broken = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            seen += 1;
            if is_broken(&page, &link) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    assert!(seen > 20, "only {seen} links were found");
}

/// A link to the second of two headings would lead to the first.
#[test]
fn a_page_has_no_heading_twice() {
    let mut found = Vec::new();
    for page in pages() {
        let mut seen = std::collections::HashSet::new();
        let anchors = anchors(&std::fs::read_to_string(&page).unwrap());
        let twice = anchors.into_iter().filter(|anchor| !seen.insert(anchor.clone()));
        found.extend(twice.map(|anchor| format!("{}: #{anchor}", page.display())));
    }
    let found = found.join("\n");
    assert!(found.is_empty(), "headings that stand twice; say in each what it is about:\n{found}");
}

#[test]
fn pages_name_who_does_what() {
    let mut found = Vec::new();
    for page in pages() {
        let text = prose(&std::fs::read_to_string(&page).unwrap()).to_lowercase();
        let words = text.split(|c: char| !c.is_alphanumeric());
        for word in words {
            let rule = RULES.iter().find(|rule| rule.name == word);
            found.extend(rule.map(|rule| format!("{}: {word}. {}", page.display(), rule.instead)));
        }
    }
    assert!(found.is_empty(), "vague words:\n{}", found.join("\n"));
}

/// The names in back quotes in the last column of a page's tables that end in "shown by".
fn named_tests(page: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut shown = false;
    for line in page.lines() {
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        match line.starts_with('|') {
            false => shown = false,
            true if last == "shown by" => shown = true,
            true if shown => names.extend(last.split('`').skip(1).step_by(2)),
            true => {}
        }
    }
    names
}

/// Every `fn name(` and every module's name in the sources of the packages.
fn functions() -> HashSet<String> {
    let mut found = HashSet::new();
    for package in ["tests", "lock-server", "fenced-store", "client"] {
        for path in files(&Path::new(ROOT).join(package), "rs") {
            let module = path.file_stem().unwrap().to_string_lossy();
            found.insert(module.into_owned());
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split_once('('));
            found.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    found
}

#[test]
fn guarantees_name_tests_that_exist() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/reference/guarantees.md"));
    let page = page.unwrap();
    let functions = functions();
    let names = named_tests(&page);
    let missing: Vec<_> = names.iter().filter(|name| !functions.contains(**name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
    assert!(names.len() > 20, "only {} tests are named", names.len());
}

/// A line names a test, the beginning of several, or their module.
#[test]
fn bugs_found_name_tests_that_exist() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/internals/bugs-found.md"));
    let page = page.unwrap();
    let functions = functions();
    let is_path = |name: &&str| {
        name.contains("::")
            && !name.contains(|c: char| !(c.is_ascii_lowercase() || "_:0123456789".contains(c)))
            || name.matches('_').count() > 2
    };
    let names: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_path).collect();
    let exists = |name: &&str| {
        name.split("::").all(|part| functions.iter().any(|function| function.starts_with(part)))
    };
    let missing: Vec<_> = names.iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
    assert!(names.len() > 80, "only {} tests are named", names.len());
}

#[test]
fn code_is_not_searched_for_links() {
    let page = "[a](a.md) `[b](b.md)`\n```\n[c](c.md)\n```\n[d](https://d) [e](e.md#f)";
    assert_eq!(links(page), ["a.md", "e.md#f"]);
}

/// Pages of docs that a page links, relative to docs.
fn listed(page: &str) -> BTreeSet<PathBuf> {
    let docs = Path::new(ROOT).join("docs");
    let folder = docs.join(page).parent().unwrap().strip_prefix(&docs).unwrap().to_owned();
    let text = std::fs::read_to_string(docs.join(page)).unwrap();
    links(&text).iter().map(|link| folder.join(link)).collect()
}

/// The site has the pages of SUMMARY.md, and readers on a forge start at README.md.
#[test]
fn every_page_is_listed() {
    let docs = Path::new(ROOT).join("docs");
    let within = |page: &PathBuf| page.strip_prefix(&docs).ok().map(Path::to_owned);
    let mut expected: BTreeSet<_> = pages().iter().filter_map(within).collect();
    assert!(expected.remove(Path::new("SUMMARY.md")));
    assert_eq!(listed("SUMMARY.md"), expected, "docs/SUMMARY.md (left) lists other pages");

    let linked = &listed("README.md") | &listed("decisions/README.md");
    let missing: Vec<_> =
        expected.difference(&linked).filter(|page| *page != Path::new("README.md")).collect();
    assert!(missing.is_empty(), "not in docs/README.md or docs/decisions/README.md: {missing:?}");
}

#[test]
fn headings_are_unique_in_their_page() {
    for page in pages() {
        let text = prose(&std::fs::read_to_string(&page).unwrap());
        let mut seen = HashSet::new();
        for anchor in anchors(&text) {
            assert!(seen.insert(anchor.clone()), "{}: two headings #{anchor}", page.display());
        }
    }
}

/// A page's code blocks: language and text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, text)), None) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// Commands of a console block, without their output.
fn commands(console: &str) -> String {
    let command =
        |line: &str| line.strip_prefix("$ ").or(line.strip_prefix("> ")).map(str::to_owned);
    console.lines().filter_map(command).collect::<Vec<_>>().join("\n")
}

/// Error of `bash -n`, which parses and runs nothing.
fn shell_error(script: &str) -> Option<String> {
    let bash =
        Command::new("bash").args(["-n", "-c", script]).stdin(Stdio::null()).output().unwrap();
    (!bash.status.success()).then(|| String::from_utf8_lossy(&bash.stderr).into_owned())
}

fn block_error(language: &str, text: &str) -> Option<String> {
    match language {
        "" => Some("no language".to_owned()),
        "json" => {
            serde_json::from_str::<serde_json::Value>(text).err().map(|error| error.to_string())
        }
        "bash" | "sh" => shell_error(text),
        "console" => shell_error(&commands(text)),
        _ => None,
    }
}

#[test]
fn code_blocks_have_a_language_and_parse() {
    let mut seen = 0;
    let mut broken = Vec::new();
    for page in pages() {
        for (language, text) in blocks(&std::fs::read_to_string(&page).unwrap()) {
            seen += 1;
            if let Some(error) = block_error(&language, &text) {
                broken.push(format!("{}: {error}\n{text}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "code blocks:\n{}", broken.join("\n"));
    assert!(seen > 50, "only {seen} code blocks were found");
}

/// Paths in back quotes: of `.rs` and `.lua` files, and of folders that end in a slash. They are
/// relative to the folder that follows "elative to", up to the next heading, or to the root.
fn named_paths(page: &str) -> Vec<PathBuf> {
    let mut base = PathBuf::new();
    let mut paths = Vec::new();
    for line in page.lines() {
        if line.starts_with("##") {
            base = PathBuf::new();
        }
        if let Some((_, rest)) = line.split_once("elative to `") {
            base =
                rest.split_once('`').map(|(folder, _)| PathBuf::from(folder)).unwrap_or_default();
        }
        let spans = line.split('`').skip(1).step_by(2);
        let is_path = |span: &&str| [".rs", ".lua", "/"].iter().any(|end| span.ends_with(end));
        paths.extend(spans.filter(is_path).map(|span| base.join(span)));
    }
    paths
}

#[test]
fn internals_name_files_that_exist() {
    let mut missing = Vec::new();
    for name in ["architecture.md", "engines.md", "quorum-store.md", "redis-store.md"] {
        let page =
            std::fs::read_to_string(Path::new(ROOT).join("docs/internals").join(name)).unwrap();
        let paths = named_paths(&page);
        assert!(!paths.is_empty(), "{name} names no file");
        missing.extend(paths.into_iter().filter(|path| !Path::new(ROOT).join(path).exists()));
    }
    assert!(missing.is_empty(), "no such files: {missing:?}");
}
