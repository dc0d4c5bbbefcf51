//! The rules: what each one looks for, and what to write instead.

use super::comments::{docs, repeats_the_name};

/// A place that breaks a rule.
pub(super) struct Finding {
    pub(super) line: usize,
    pub(super) what: String,
}

pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) instead: &'static str,
    find: Find,
}

enum Find {
    /// The rule's name, as a word or a phrase of comments, strings and identifiers.
    Phrase,
    /// A search of its own, and a text in which it finds one place.
    Custom(fn(&str) -> Vec<Finding>, fn() -> String),
}

const fn word(name: &'static str, instead: &'static str) -> Rule {
    Rule { name, instead, find: Find::Phrase }
}

pub(crate) const RULES: [Rule; 29] = [
    word("told", "Write: notified, replied, reported, given."),
    word("tell", "Write: notify, reply, report; for \"tell apart\": distinguish."),
    word("tells", "Write: notifies, replies, reports."),
    word("nobody", "Write: no client, no holder, no waiter."),
    word("whoever", "Write: the client that, the caller that."),
    word("somebody", "Write: another client, an operator."),
    word("anybody", "Write: any client, any user."),
    word("hears", "Write: receives, is notified."),
    word("heard", "Write: received, was notified."),
    word("mended", "Write: fixed, repaired."),
    word("for keeps", "Write: permanently."),
    word("in earnest", "Write: actually, or leave it out."),
    word("came of", "Write: outcome, result."),
    word("stands still", "Write: is paused."),
    word("gives up", "Write: times out, stops."),
    word("goes on", "Write: continues, resumes."),
    word("is away", "Write: is unreachable."),
    word("in doubt", "Write: unverified, possibly granted, unknown outcome."),
    word("taken back", "Write: rolled back, returned."),
    word("asked again", "Write: retried."),
    Rule {
        name: "a doc comment opens with a question word",
        instead: "Open with a noun phrase or a verb: \"Highest token admitted for the lock.\", \"Returns the \
                  waiters in arrival order.\"",
        find: Find::Custom(question_words, || "/// What is granted.\nfn a() {}\n".to_owned()),
    },
    Rule {
        name: "a doc comment repeats the name",
        instead: "Say what the name does not: the unit, the range, the error. A private item needs no comment.",
        find: Find::Custom(repeated_names, || {
            "    /// The lease id.\n    pub lease_id: u8,\n".to_owned()
        }),
    },
    Rule {
        name: "a comment begins with \"The same\"",
        instead: "Name what it is, and then the difference: \"Renews as `renew` does, without waiting.\"",
        find: Find::Custom(the_same, || "/// The same, for two.\nfn a() {}\n".to_owned()),
    },
    Rule {
        name: "a line has more than 100 columns",
        instead: "Break the line; string literals do not count.",
        find: Find::Custom(long_lines, || format!("// {}\n", "x".repeat(98))),
    },
    Rule {
        name: "a file has more than 500 lines",
        instead: "Move one concern to a file of its own: a file a concept, its name a noun.",
        find: Find::Custom(long_files, || "x\n".repeat(501)),
    },
    Rule {
        name: "a path climbs three modules",
        instead: "Write the path from crate.",
        find: Find::Custom(
            |text| lines(text, |line| line.contains("super::super::super")),
            || "use super::super::super::key;\n".to_owned(),
        ),
    },
    Rule {
        name: "one let binds two values",
        instead: "Write two lines: one `let` a line, unless one expression gives both.",
        find: Find::Custom(pairs, || "    let (a, b) = (1, 2);\n".to_owned()),
    },
    Rule {
        name: "a type has a name that a search finds many times",
        instead: "Say whose: OutboxState, LaneStep, not State, Inner, Step, Known, Asked, Told, Outcome, \
                  Standing, Next.",
        find: Find::Custom(homonyms, || "pub(crate) enum Step {\n".to_owned()),
    },
    Rule {
        name: "a function has a name that says nothing",
        instead: "Name its effect: from_…, request, record, probe, reply, receive; not of, ask, note, look, tell, \
                  hear.",
        find: Find::Custom(vague_functions, || "    async fn ask(&self) {\n".to_owned()),
    },
];

impl Rule {
    pub(super) fn find(&self, text: &str) -> Vec<Finding> {
        match self.find {
            Find::Phrase => phrase(self.name, text),
            Find::Custom(find, _) => find(text),
        }
    }

    /// A text that breaks the rule once.
    pub(super) fn sample(&self) -> String {
        match self.find {
            Find::Phrase => format!("/// A client is_{}_here.\n", self.name.replace(' ', "\n/// ")),
            Find::Custom(_, sample) => sample(),
        }
    }
}

fn finding(line: usize, what: &str) -> Finding {
    Finding { line, what: what.trim().chars().take(100).collect() }
}

/// Findings in single lines; `is_bad` gets each line.
fn lines(text: &str, is_bad: impl Fn(&str) -> bool) -> Vec<Finding> {
    let numbered = text.lines().enumerate();
    numbered.filter(|(_, line)| is_bad(line)).map(|(at, line)| finding(at + 1, line)).collect()
}

/// A phrase may go on in the next line of a comment.
fn phrase(phrase: &str, text: &str) -> Vec<Finding> {
    let wanted: Vec<&str> = phrase.split(' ').collect();
    let longest = wanted.iter().max_by_key(|word| word.len()).expect("a word");
    if !text.to_lowercase().contains(longest) {
        return Vec::new();
    }
    let mut words = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let parts = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        words.extend(parts.map(|word| (at, line, word.to_lowercase())));
    }
    let is_it = |window: &&[(usize, &str, String)]| {
        window.iter().zip(&wanted).all(|((_, _, word), wanted)| word == wanted)
    };
    let found = words.windows(wanted.len()).filter(is_it);
    found.map(|window| finding(window[0].0 + 1, window[0].1)).collect()
}

const QUESTION_WORDS: [&str; 6] = ["What", "Who", "Whether", "How", "Where", "Which"];

fn question_words(text: &str) -> Vec<Finding> {
    let begins = |words: &str| {
        words
            .split(|c: char| !c.is_alphabetic())
            .next()
            .is_some_and(|w| QUESTION_WORDS.contains(&w))
    };
    docs(text)
        .into_iter()
        .filter(|doc| begins(&doc.text))
        .map(|d| finding(d.line, &d.text))
        .collect()
}

fn repeated_names(text: &str) -> Vec<Finding> {
    docs(text)
        .iter()
        .filter(|doc| repeats_the_name(doc))
        .map(|d| finding(d.line, &d.text))
        .collect()
}

fn the_same(text: &str) -> Vec<Finding> {
    let begins = |text: &str| text == "The same." || text.starts_with("The same,");
    docs(text).iter().filter(|doc| begins(&doc.text)).map(|d| finding(d.line, &d.text)).collect()
}

fn long_lines(text: &str) -> Vec<Finding> {
    let outside = |line: &str| {
        let is_comment = line.trim_start().starts_with("//");
        let step = if is_comment { 1 } else { 2 };
        line.split('"').step_by(step).map(|part| part.chars().count()).sum::<usize>()
    };
    lines(text, |line| line.chars().count() > 100 && outside(line) > 100)
}

fn long_files(text: &str) -> Vec<Finding> {
    let count = text.lines().count();
    if count > 500 { vec![finding(1, &format!("{count} lines"))] } else { Vec::new() }
}

/// `let (a, b) = (x, y);`
fn pairs(text: &str) -> Vec<Finding> {
    lines(text, |line| {
        line.trim_start().starts_with("let (") && line.contains(") = (") && line.ends_with(");")
    })
}

const HOMONYMS: [&str; 9] =
    ["State", "Inner", "Step", "Known", "Asked", "Told", "Outcome", "Standing", "Next"];

fn homonyms(text: &str) -> Vec<Finding> {
    lines(text, |line| {
        let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let is_type = words.any(|word| matches!(word, "struct" | "enum" | "type" | "trait"));
        // An associated type has the name that its trait gives it.
        let is_associated = line.starts_with("    type ") && line.contains(" = ");
        let is_code = !line.trim_start().starts_with("//") && !is_associated;
        is_type && is_code && words.next().is_some_and(|name| HOMONYMS.contains(&name))
    })
}

const VAGUE_FUNCTIONS: [&str; 6] = ["of", "ask", "note", "look", "tell", "hear"];

fn vague_functions(text: &str) -> Vec<Finding> {
    lines(text, |line| {
        let name = line.split_once("fn ").map_or("", |(_, rest)| rest);
        let name = name.split(['(', '<']).next().unwrap_or_default();
        !line.trim_start().starts_with("//") && VAGUE_FUNCTIONS.contains(&name)
    })
}
