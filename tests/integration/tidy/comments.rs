//! Doc comments, and what they are about.

/// A doc comment in one line of text, with the item below it.
pub(super) struct Doc {
    pub(super) line: usize,
    pub(super) text: String,
    /// First line of the item, without attributes; empty above a module's own.
    item: String,
}

/// The doc comments of a file, in order.
pub(super) fn docs(text: &str) -> Vec<Doc> {
    let mut docs: Vec<Doc> = Vec::new();
    let mut is_open = false;
    for (at, line) in text.lines().map(str::trim_start).enumerate() {
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        match (doc, is_open) {
            (Some(words), true) => {
                let text = &mut docs.last_mut().expect("an open comment").text;
                text.push(' ');
                text.push_str(words.trim());
            }
            (Some(words), false) => {
                docs.push(Doc { line: at + 1, text: words.trim().to_owned(), item: String::new() });
                is_open = true;
            }
            (None, true) if line.starts_with("#[") => {}
            (None, true) => {
                docs.last_mut().expect("an open comment").item = line.to_owned();
                is_open = false;
            }
            (None, false) => {}
        }
    }
    docs
}

const ARTICLES: [&str; 7] = ["the", "a", "an", "its", "of", "is", "this"];
const KEYWORDS: [&str; 13] = [
    "pub", "crate", "super", "in", "async", "const", "fn", "struct", "enum", "trait", "static",
    "type", "mod",
];

/// At most three words, and none that the name below does not have: "The lease id." on `lease_id`.
pub(super) fn repeats_the_name(doc: &Doc) -> bool {
    let words = words(&doc.text);
    let item = words_of_name(&doc.item);
    let said: Vec<&String> = words.iter().filter(|w| !ARTICLES.contains(&w.as_str())).collect();
    words.len() <= 3 && !said.is_empty() && said.iter().all(|word| item.contains(*word))
}

/// Lower-case words without the plural's s; `LeaseId` and `lease_id` are two words.
fn words(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut was_lower = false;
    for c in text.chars() {
        if c.is_uppercase() && was_lower {
            spaced.push(' ');
        }
        was_lower = c.is_lowercase();
        spaced.extend(c.to_lowercase());
    }
    let words = spaced.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| word.strip_suffix('s').unwrap_or(word).to_owned()).collect()
}

/// The words of the item's name: the first identifier that is no keyword.
fn words_of_name(item: &str) -> Vec<String> {
    let mut parts = item.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words(parts.find(|part| !part.is_empty() && !KEYWORDS.contains(part)).unwrap_or_default())
}
