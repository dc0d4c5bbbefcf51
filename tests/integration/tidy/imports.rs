//! Imports between the files of the packages and SDKs, read as text.
//!
//! An import is a name of one file in another: in a `use`, or in a path with `::`. It leads to the
//! file that defines the name, also through another `use` that the file may name. A name of an
//! enclosing module is no import: a module and its submodules are one unit. Not seen: paths with
//! `super` in a module within a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::rust_text::{RustText, read};

/// A file of a package, and its place among the package's modules.
struct Module {
    package: String,
    path: Vec<String>,
    file: PathBuf,
    text: RustText,
}

/// Imports by file: the names that each takes from each other one.
pub(super) type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

/// Production files of Rust: package (as in paths), folder of its sources, and contents.
pub(super) fn of_rust(files: &[(String, PathBuf, PathBuf, String)]) -> Imports {
    let modules: Vec<Module> = files.iter().map(module).collect();
    let places: BTreeMap<(&str, &[String]), usize> = modules
        .iter()
        .enumerate()
        .map(|(at, module)| ((module.package.as_str(), module.path.as_slice()), at))
        .collect();
    let graph = Graph { modules: &modules, places };
    let mut imports = Imports::new();
    for (from, module) in modules.iter().enumerate() {
        let text = &module.text;
        let paths = text.uses.iter().map(|used| used.path.clone());
        let paths = paths.chain(text.paths.iter().cloned()).chain(graph.through_globs(from));
        for path in paths {
            let Some(to) = graph.resolve(from, from, &path, 0) else { continue };
            if to != from && !graph.encloses(to, from) {
                let name = path.last().cloned().unwrap_or_default();
                let of_file = imports.entry(module.file.clone()).or_default();
                of_file.entry(modules[to].file.clone()).or_default().insert(name);
            }
        }
    }
    imports
}

fn module((package, source, file, text): &(String, PathBuf, PathBuf, String)) -> Module {
    let below = file.strip_prefix(source).unwrap().with_extension("");
    let parts = below.iter().map(|part| part.to_string_lossy().into_owned());
    let path: Vec<String> = parts.filter(|part| part != "lib" && part != "main").collect();
    Module { package: package.clone(), path, file: file.clone(), text: read(text) }
}

struct Graph<'a> {
    modules: &'a [Module],
    places: BTreeMap<(&'a str, &'a [String]), usize>,
}

impl Graph<'_> {
    /// `true` if module `outer` has `inner` in it, at any depth.
    fn encloses(&self, outer: usize, inner: usize) -> bool {
        let (outer, inner) = (&self.modules[outer], &self.modules[inner]);
        outer.package == inner.package && inner.path.starts_with(&outer.path)
    }

    /// Paths that a file takes over from modules around it by `use super::*`: those of its names
    /// that such a module imports.
    fn through_globs(&self, from: usize) -> Vec<Vec<String>> {
        let here = &self.modules[from];
        let globs = here.text.uses.iter().filter(|used| used.name == "*");
        let above = globs.filter_map(|used| {
            let (_, above) = used.path.split_last()?;
            let found = self.resolve(from, from, above, 0)?;
            self.encloses(found, from).then_some((found, above))
        });
        let named = above.flat_map(|(found, above)| {
            let taken = self.modules[found].text.uses.iter();
            let taken = taken.filter(|used| here.text.names.contains(&used.name));
            taken.map(move |used| [above, std::slice::from_ref(&used.name)].concat())
        });
        named.collect()
    }

    /// Returns the module that defines what a path in module `from` names, for a use of it in
    /// module `user`.
    fn resolve(&self, user: usize, from: usize, path: &[String], depth: usize) -> Option<usize> {
        if depth > 8 {
            return None;
        }
        let here = &self.modules[from];
        let first = path.first()?.as_str();
        let mut package = here.package.as_str();
        let mut at = here.path.clone();
        let mut rest = path;
        match first {
            "crate" => (at, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            _ if self.child(package, &at, first).is_some() => {}
            _ if self.places.contains_key(&(first, &[][..])) => {
                (package, at, rest) = (first, Vec::new(), &path[1..]);
            }
            _ => {
                let used = here.text.uses.iter().find(|used| used.name == first)?;
                let whole = [&used.path, &path[1..]].concat();
                return (used.path[0] != first)
                    .then(|| self.resolve(user, from, &whole, depth + 1))?;
            }
        }
        while let Some(child) = rest.first().and_then(|part| self.child(package, &at, part)) {
            at.clone_from(&self.modules[child].path);
            rest = &rest[1..];
        }
        let found = *self.places.get(&(package, at.as_slice()))?;
        let Some(name) = rest.first() else { return Some(found) };
        let handed_on = self.modules[found].text.uses.iter().find(|used| {
            (used.is_public || self.encloses(found, user))
                && (used.name == *name || self.is_glob_of(found, &used.path, name))
        });
        let through = handed_on.and_then(|used| match used.name.as_str() {
            "*" => self.resolve(user, found, &used.path[..used.path.len() - 1], depth + 1),
            _ => self.resolve(user, found, &[&used.path, &rest[1..]].concat(), depth + 1),
        });
        through.or(Some(found))
    }

    fn child(&self, package: &str, at: &[String], name: &str) -> Option<usize> {
        let path = [at, &[name.to_owned()]].concat();
        self.places.get(&(package, path.as_slice())).copied()
    }

    /// `true` if a `pub use path::*` of a module hands on an item of this name.
    fn is_glob_of(&self, from: usize, path: &[String], name: &str) -> bool {
        let [above @ .., last] = path else { return false };
        last == "*"
            && self
                .resolve(from, from, above, 8)
                .is_some_and(|module| self.modules[module].text.items.contains(name))
    }
}

/// Imports of the files of a folder in another language: `names` reads the paths in a file.
pub(super) fn of_sdk(
    files: &[(PathBuf, String)],
    names: impl Fn(&Path, &str) -> Vec<PathBuf>,
) -> Imports {
    let known: BTreeSet<&Path> = files.iter().map(|(file, _)| file.as_path()).collect();
    let mut imports = Imports::new();
    for (file, text) in files {
        let named = names(file, text).into_iter().filter(|other| known.contains(other.as_path()));
        for other in named.filter(|other| other != file) {
            imports.entry(file.clone()).or_default().entry(other).or_default();
        }
    }
    imports
}

/// Groups of files that import each other, each with the imports that tie it.
pub(super) fn circles(imports: &Imports) -> Vec<String> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        imports.keys().map(|file| (file.as_path(), reach(imports, file))).collect();
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    let mut found = Vec::new();
    for (file, beyond) in &reached {
        if !beyond.contains(file) || seen.contains(file) {
            continue;
        }
        let tied = |other: &&&Path| reached.get(**other).is_some_and(|back| back.contains(file));
        let circle: BTreeSet<&Path> = beyond.iter().filter(tied).copied().collect();
        seen.extend(&circle);
        let mut text = format!("{} files import each other", circle.len());
        for from in &circle {
            for (to, names) in imports[*from].iter().filter(|(to, _)| circle.contains(to.as_path()))
            {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let (from, to) = (from.display(), to.display());
                text.push_str(&format!("\n        {from} -> {to}: {}", names.join(", ")));
            }
        }
        found.push(text);
    }
    found
}

fn reach<'a>(imports: &'a Imports, from: &Path) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Path> =
        imports.get(from).into_iter().flatten().map(|(to, _)| to.as_path()).collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(imports.get(file).into_iter().flatten().map(|(to, _)| to.as_path()));
        }
    }
    reached
}
