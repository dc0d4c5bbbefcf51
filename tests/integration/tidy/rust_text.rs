//! The part of a Rust file that says what it imports.

use std::collections::BTreeSet;

/// A name that a `use` brings in.
pub(super) struct Used {
    pub(super) path: Vec<String>,
    pub(super) name: String,
    pub(super) is_public: bool,
}

/// Names that a file uses, and items that it defines.
#[derive(Default)]
pub(super) struct RustText {
    pub(super) uses: Vec<Used>,
    /// Paths of two names or more outside of a `use`.
    pub(super) paths: BTreeSet<Vec<String>>,
    pub(super) items: BTreeSet<String>,
    /// Names by themselves, and first ones of paths.
    pub(super) names: BTreeSet<String>,
}

const ITEMS: [&str; 9] =
    ["struct", "enum", "trait", "fn", "const", "static", "type", "mod", "macro_rules"];

/// Reads a file without its comments, texts and parts for tests.
pub(super) fn read(text: &str) -> RustText {
    let tokens = without_tests(&tokens(text));
    let mut read = RustText::default();
    let mut at = 0;
    while at < tokens.len() {
        let before = at.checked_sub(1).map_or("", |before| tokens[before].as_str());
        if tokens[at] == "use" {
            let end =
                tokens[at..].iter().position(|token| token == ";").map_or(tokens.len(), |n| at + n);
            let is_public = before == "pub" || before == ")";
            let mut rest = &tokens[at + 1..end];
            expand(&[], &mut rest, is_public, &mut read.uses);
            at = end;
        } else if is_name(&tokens[at]) && before != "::" && before != "." {
            let mut path = vec![tokens[at].clone()];
            while tokens.get(at + 1).is_some_and(|token| token == "::")
                && tokens.get(at + 2).is_some_and(|token| is_name(token))
            {
                path.push(tokens[at + 2].clone());
                at += 2;
            }
            if ITEMS.contains(&before) {
                read.items.insert(path[0].clone());
            }
            read.names.insert(path[0].clone());
            if path.len() > 1 {
                read.paths.insert(path);
            }
        }
        at += 1;
    }
    read
}

fn is_name(token: &str) -> bool {
    token.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Reads one tree of a `use`, up to the comma or brace behind it.
fn expand(above: &[String], rest: &mut &[String], is_public: bool, uses: &mut Vec<Used>) {
    let mut path = above.to_vec();
    while let [token, after @ ..] = *rest {
        match token.as_str() {
            "," | "}" => break,
            "{" => {
                *rest = after;
                while rest.first().is_some_and(|token| token != "}") {
                    expand(&path, rest, is_public, uses);
                    if rest.first().is_some_and(|token| token == ",") {
                        *rest = &rest[1..];
                    }
                }
                *rest = rest.get(1..).unwrap_or_default();
                return;
            }
            "::" => {}
            "as" => {
                let name = after.first().cloned().unwrap_or_default();
                *rest = after.get(1..).unwrap_or_default();
                uses.push(Used { path, name, is_public });
                return;
            }
            "self" if path.len() > above.len() || !above.is_empty() => {}
            name => path.push(name.to_owned()),
        }
        *rest = after;
    }
    let name = path.last().cloned().unwrap_or_default();
    uses.push(Used { path, name, is_public });
}

/// Removes the items that are compiled for tests or fuzzing alone.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] != "#" || tokens.get(at + 1).is_none_or(|token| token != "[") {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let end = end_of(tokens, at + 1);
        let words = &tokens[at..end];
        let has = |word: &str| words.iter().any(|token| token == word);
        at = end;
        if has("cfg") && (has("test") || has("fuzzing")) && !has("not") {
            at = end_of_item(tokens, at);
        }
    }
    kept
}

/// Place behind the item, field or attribute that begins at `at`.
fn end_of_item(tokens: &[String], mut at: usize) -> usize {
    let is_use = tokens[at..].iter().take(5).any(|token| token == "use");
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "{" if is_use => at = end_of(tokens, at),
            "(" | "[" => at = end_of(tokens, at),
            "{" => return end_of(tokens, at),
            ";" | "," => return at + 1,
            "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// Place behind the bracket that closes the one at `at`.
fn end_of(tokens: &[String], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Cuts a file into names, `::` and single characters, without comments, texts and blanks.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = skipped(rest);
        let length = if skipped > 0 {
            skipped
        } else if rest.starts_with("::") {
            2
        } else if is_name(&first.to_string()) {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        if skipped == 0 && !first.is_whitespace() {
            tokens.push(rest[..length].to_owned());
        }
        rest = &rest[length..];
    }
    tokens
}

/// Length of the comment or text that `rest` begins with; 0 if it begins with none.
fn skipped(rest: &str) -> usize {
    let through = |from: usize, end: &str| {
        rest[from..].find(end).map_or(rest.len(), |found| from + found + end.len())
    };
    if rest.starts_with("//") {
        return through(0, "\n");
    }
    if rest.starts_with("/*") {
        return through(2, "*/");
    }
    for marks in ["r\"", "br\"", "r#\"", "br#\"", "r##\""] {
        if rest.starts_with(marks) {
            let end = format!("\"{}", "#".repeat(marks.matches('#').count()));
            return through(marks.len(), &end);
        }
    }
    if let Some(escaped) = rest.strip_prefix("'\\") {
        return through(2 + escaped.chars().next().map_or(0, char::len_utf8), "'");
    }
    if rest.starts_with('\'') {
        let mut after = rest.char_indices().skip(2);
        return match after.next() {
            Some((at, '\'')) => at + 1,
            // A lifetime.
            _ => 1,
        };
    }
    if !rest.starts_with('"') {
        return 0;
    }
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    rest.len()
}
