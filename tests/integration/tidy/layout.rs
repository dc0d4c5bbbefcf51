//! The layout of the tree: which files may import which, and how large packages may be.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::imports::{Imports, circles, of_rust, of_sdk};
use super::{Part, ROOT, sources};

const LINES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/integration/tidy/lines.txt");
/// Folders of the doors that others may use.
const SHARED_BY_DOORS: [&str; 2] = ["tcp", "http"];

/// Folders with a `Cargo.toml`, by the name of the package as paths have it. Those below `tests`
/// are no production code.
fn packages() -> BTreeMap<PathBuf, String> {
    let mut packages = BTreeMap::new();
    let mut folders = ["client", "lock-server", "fenced-store"].map(PathBuf::from).to_vec();
    while let Some(folder) = folders.pop() {
        if let Ok(manifest) =
            std::fs::read_to_string(Path::new(ROOT).join(&folder).join("Cargo.toml"))
        {
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")).unwrap();
            packages.insert(folder.clone(), name.trim_end_matches('"').replace('-', "_"));
        }
        for entry in std::fs::read_dir(Path::new(ROOT).join(&folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("src") && !path.ends_with("node_modules") {
                folders.push(path.strip_prefix(ROOT).unwrap().to_owned());
            }
        }
    }
    packages
}

/// The package that a file belongs to: its folder, and its name.
fn package_of<'a>(
    packages: &'a BTreeMap<PathBuf, String>,
    file: &Path,
) -> Option<(&'a Path, &'a str)> {
    let found = file.ancestors().find_map(|folder| packages.get_key_value(folder))?;
    Some((found.0, found.1))
}

fn production(parts: &[Part]) -> impl Iterator<Item = &Part> {
    parts.iter().filter(|part| !part.is_test)
}

fn imports_of_rust(parts: &[Part]) -> Imports {
    let packages = packages();
    let files: Vec<_> = production(parts)
        .filter(|part| part.path.extension().is_some_and(|ending| ending == "rs"))
        .filter_map(|part| {
            let (folder, name) = package_of(&packages, &part.path)?;
            let source = folder.join("src");
            // A binary beside a library only calls it.
            let is_start = part.path == source.join("main.rs");
            let is_both = is_start && Path::new(ROOT).join(&source).join("lib.rs").exists();
            (part.path.starts_with(&source) && !is_both)
                .then(|| (name.to_owned(), source, part.path.clone(), part.text.clone()))
        })
        .collect();
    assert!(files.len() > 500, "only {} files were found", files.len());
    of_rust(&files)
}

fn files_of(parts: &[Part], ending: &str) -> Vec<(PathBuf, String)> {
    let files = production(parts).filter(|part| part.path.extension().is_some_and(|e| e == ending));
    files.map(|part| (part.path.clone(), part.text.clone())).collect()
}

/// Files that a file of TypeScript imports: relative paths in texts.
fn named_in_typescript(file: &Path, text: &str) -> Vec<PathBuf> {
    let paths = text.split('"').skip(1).step_by(2);
    let paths = paths.filter(|path| path.starts_with('.') && path.ends_with(".js"));
    let named = paths.map(|path| {
        let mut place = file.parent().unwrap().to_owned();
        for part in path.split('/') {
            match part {
                "." => {}
                ".." => drop(place.pop()),
                name => place.push(name),
            }
        }
        place.with_extension("ts")
    });
    named.collect()
}

/// Files that a file of Python imports from its own package.
fn named_in_python(file: &Path, text: &str) -> Vec<PathBuf> {
    let text = text.replace("from fencepost.", "from .").replace("from fencepost ", "from . ");
    let mut named = Vec::new();
    for rest in text.split("from .").skip(1) {
        let words: Vec<&str> = match rest.strip_prefix(" import ") {
            Some(names) if names.starts_with('(') => {
                names[1..].split(')').next().unwrap_or_default().split(',').collect()
            }
            Some(names) => names.lines().next().unwrap_or_default().split(',').collect(),
            None => rest.split(' ').take(1).collect(),
        };
        let names = words.iter().filter_map(|word| word.split_whitespace().next());
        named.extend(names.map(|name| file.with_file_name(format!("{name}.py"))));
    }
    named
}

#[test]
fn no_file_is_in_a_circle_of_imports() {
    let parts = sources();
    let mut found = circles(&imports_of_rust(&parts));
    found.extend(circles(&of_sdk(&files_of(&parts, "ts"), named_in_typescript)));
    found.extend(circles(&of_sdk(&files_of(&parts, "py"), named_in_python)));
    assert!(
        found.is_empty(),
        "move what ties them to a file of its own:\n    {}",
        found.join("\n    ")
    );
}

/// Each way of importing is seen, and what is for tests is not.
#[test]
fn a_circle_is_found_in_a_sample() {
    let texts = [
        ("lib", "pub mod a;\npub mod b;\nmod c;\npub use b::Handed as Other;\n"),
        ("a", "use crate::{Other, c::{self, Thing}};\nfn f() { c::g(\"crate::d::x\") }\n"),
        ("b", "use crate::e::Private;\npub struct Handed { #[cfg(test)] a: crate::a::T, b: u8 }\n"),
        (
            "b/inner",
            "use super::{Handed, Private};\n#[cfg(test)]\nuse crate::a::f;\n// crate::a::f\n",
        ),
        ("b/glob", "use super::*;\nfn x(_: &Private) {}\n"),
        ("c", "fn g() { let _ = crate::a::f(); }\n#[cfg(test)]\nmod t { use crate::b::X; }\n"),
        ("d", "const R: &str = r\"\\\"; use crate::e::Private;\n"),
        ("e", "pub struct Private;\n"),
    ];
    let file = |name: &str| PathBuf::from(format!("src/{name}.rs"));
    let files = texts.map(|(name, text)| {
        ("sample".to_owned(), PathBuf::from("src"), file(name), text.to_owned())
    });
    let imports = of_rust(&files);
    let names = |from: &str, to: &str| {
        let found = imports.get(&file(from)).and_then(|named| named.get(&file(to)));
        found.map(|names| names.iter().cloned().collect::<Vec<_>>().join(" "))
    };
    assert_eq!(names("a", "c").as_deref(), Some("Thing c g"));
    assert_eq!(names("a", "b").as_deref(), Some("Other"), "through a pub use, by its new name");
    assert_eq!(names("c", "a").as_deref(), Some("f"));
    for from in ["b", "b/inner", "b/glob", "d"] {
        assert_eq!(names(from, "e").as_deref(), Some("Private"), "{from}");
    }
    for (from, to) in [("b/inner", "b"), ("b/inner", "a"), ("c", "b"), ("b", "a")] {
        assert_eq!(names(from, to), None, "{from} -> {to}");
    }
    let found = circles(&imports);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("2 files import each other"), "{found:?}");
}

/// Relative imports of the SDKs lead to their files.
#[test]
fn imports_of_the_sdks_are_read() {
    let text = "import \"./x.js\";\nimport { a } from \"../y.js\";\nimport * as t from \"tls\";\n";
    let named = named_in_typescript(Path::new("src/in/a.ts"), text);
    assert_eq!(named, ["src/in/x.ts", "src/y.ts"].map(PathBuf::from));
    let text = "from .x import (\n    A,\n)\nfrom . import y, z as w\nfrom . import (\n    u,\n)\nimport os\n";
    let named = named_in_python(Path::new("src/a.py"), text);
    assert_eq!(named, ["src/x.py", "src/y.py", "src/z.py", "src/u.py"].map(PathBuf::from));
}

/// What both services stand on imports neither; neither imports the other.
#[test]
fn services_share_only_what_is_in_client_shared() {
    let packages = packages();
    let service =
        |file: &Path| ["lock-server", "fenced-store"].into_iter().find(|s| file.starts_with(s));
    let mut wrong = Vec::new();
    for (from, named) in imports_of_rust(&sources()) {
        for to in named.keys() {
            let crosses =
                service(&from).is_some_and(|own| service(to).is_some_and(|other| own != other));
            let climbs = from.starts_with("client/shared")
                && package_of(&packages, to)
                    .is_some_and(|(folder, _)| !folder.starts_with("client/shared"));
            if crosses || climbs {
                wrong.push(format!("{} -> {}", from.display(), to.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The door, or the store, that a file of the guard belongs to.
fn room<'a>(file: &'a Path, folder: &str) -> Option<&'a str> {
    let below = file.strip_prefix("fenced-store/src").ok()?.strip_prefix(folder).ok()?;
    below.components().next()?.as_os_str().to_str().map(|name| name.trim_end_matches(".rs"))
}

/// A door imports its own folder, `tcp`, `http` and what is no door; no store imports a door.
#[test]
fn no_door_imports_another() {
    let mut wrong = Vec::new();
    for (from, named) in imports_of_rust(&sources()) {
        for to in named.keys() {
            let Some(door) = room(to, "doors").filter(|door| !SHARED_BY_DOORS.contains(door))
            else {
                continue;
            };
            let is_store = room(&from, "stores").is_some();
            if is_store || room(&from, "doors").is_some_and(|own| own != door) {
                wrong.push(format!("{} -> {}", from.display(), to.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "move what doors share to doors/tcp or doors/http:\n{}",
        wrong.join("\n")
    );
}

/// Lines of a text in Rust or Lua that are neither blank nor a comment.
fn code_lines(text: &str) -> usize {
    let lines = text.lines().map(str::trim_start);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//") && !line.starts_with("--"))
        .count()
}

/// Production lines of Rust and Lua by package; the largest it may have are in lines.txt.
#[test]
fn packages_do_not_grow() {
    let packages = packages();
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut add = |file: &Path, text: &str| {
        if let Some((folder, _)) = package_of(&packages, file) {
            *found.entry(folder.display().to_string()).or_default() += code_lines(text);
        }
    };
    for part in
        production(&sources()).filter(|part| part.path.extension().is_some_and(|e| e == "rs"))
    {
        add(&part.path, &part.text);
    }
    for file in super::files_with(&["client", "lock-server", "fenced-store"], "lua") {
        add(&file, &std::fs::read_to_string(Path::new(ROOT).join(&file)).unwrap());
    }
    let table = std::fs::read_to_string(LINES).unwrap_or_default();
    let rows = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('\t'));
    let mut most: BTreeMap<&str, usize> = rows.map(|(at, n)| (at, n.parse().unwrap())).collect();
    if std::env::var_os("FENCE_REGENERATE").is_some() {
        let mut table =
            "# Production lines of Rust and Lua by package, without blanks, comments and \
                         tests: they only fall.\n"
                .to_owned();
        let mut sum = 0;
        for (package, lines) in &found {
            let lines = most.get(package.as_str()).map_or(*lines, |most| *lines.min(most));
            sum += lines;
            writeln!(table, "{package}\t{lines}").unwrap();
        }
        writeln!(table, "# all\t{sum}").unwrap();
        std::fs::write(LINES, table).unwrap();
        return;
    }
    let mut message = String::new();
    for (package, lines) in &found {
        let most = most.remove(package.as_str()).unwrap_or_default();
        if *lines > most {
            writeln!(message, "{package} has {lines} lines, {most} allowed").unwrap();
        }
    }
    assert!(message.is_empty(), "shorten it, or say in the commit why lines.txt rises:\n{message}");
}
