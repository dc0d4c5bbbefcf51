//! Output that is equal in every run, and what of it a page shows.

use serde_json::Value;

use super::steps::{PageStep, Shown, blocks, script, steps};

/// Text that is equal in every run: ids, numbers, dates and times are made equal, as are signed
/// values, and the width of a table. A number alone in its line is an exit code and stays what it
/// is. The shell's own notes on what was killed depend on the shell.
pub(super) fn essence(text: &str) -> String {
    // Whether a wait is long enough to be shown depends on the machine.
    let is_chance = |line: &str| line.contains("Killed") || line.starts_with("fence: waiting for");
    let lines = text.lines().filter(|line| !is_chance(line)).map(|line| {
        let line = line.trim();
        if line.bytes().all(|byte| byte.is_ascii_digit()) {
            return line.to_owned();
        }
        if let Ok(mut json) = serde_json::from_str(line) {
            even(&mut json);
            return json.to_string();
        }
        line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
    });
    // A time is a number and a unit, or two of both.
    let text = lines.collect::<Vec<_>>().join("\n").replace("N ms", "TIME").replace("N s", "TIME");
    text.replace("N m TIME", "TIME")
}

/// A reply of a server: numbers and what is made of them are other ones in every run.
fn even(json: &mut Value) {
    match json {
        Value::Number(number) => *number = 0.into(),
        Value::Array(items) => items.iter_mut().for_each(even),
        Value::Object(members) => {
            members.remove("request_id");
            for (name, value) in members {
                match name.as_str() {
                    "fencing_token" | "fencing_credential" => *value = Value::Null,
                    "detail" => *value = essence(value.as_str().unwrap_or_default()).into(),
                    _ => even(value),
                }
            }
        }
        Value::String(text) => *text = word(text).to_owned(),
        Value::Null | Value::Bool(_) => {}
    }
}

/// `true` if a word is a day, as `date -u +%F` prints it.
fn is_date(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let digits = parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    digits && parts.iter().map(|part| part.len()).eq([4, 2, 2])
}

fn word(word: &str) -> &str {
    let bare = word.trim_matches(['"', ')', ',', ':']);
    if is_date(word) {
        "DATE"
    } else if word.len() == 27 && word.ends_with('Z') {
        "TIME"
    } else if word.starts_with("/tmp/fencepost-") {
        "FOLDER"
    } else if word.starts_with("pod-") {
        // Of those that start at once, which one is first.
        "POD"
    } else if word.starts_with("fc1_") {
        "CREDENTIAL"
    } else if word.starts_with('"') && word.len() == 51 {
        "ETAG"
    } else if word.contains('@') && word.contains(':') {
        "OWNER"
    } else if word.contains(";lock=") {
        "HEADER"
    } else if bare.len() == 36 && bare.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
    {
        "ID"
    } else if bare.parse::<f64>().is_ok() && bare != "0.8" {
        "N"
    } else {
        word
    }
}

/// True if a page shows what was printed; its line `…` stands for any lines, and `…` at either end
/// of a line for any words.
pub(super) fn is_shown(printed: &str, shown: &str) -> bool {
    let is_same = |printed: &str, shown: &str| match shown.strip_suffix('…') {
        Some(begin) => printed.starts_with(begin),
        None => match shown.strip_prefix("… ") {
            Some(end) => printed.ends_with(end),
            None => printed == shown,
        },
    };
    let mut printed = printed.lines();
    let mut is_cut = false;
    for line in shown.lines() {
        let found = match line {
            "…" => true,
            _ if is_cut => printed.any(|other| is_same(other, line)),
            _ => printed.next().is_some_and(|other| is_same(other, line)),
        };
        is_cut = line == "…";
        if !found {
            return false;
        }
    }
    is_cut || printed.next().is_none()
}

/// Commands of a page.
fn commands(page: &str) -> Vec<Shown> {
    script(steps(&blocks(page))).1
}

#[test]
fn a_page_that_says_something_else_is_noticed() {
    let page = "```console\n$ a\ntoken 7\n76\n$ b\n```\n```sh\n#!/bin/sh\n# x.sh\n```\n";
    let shown = commands(page);
    assert_eq!(shown.len(), 2);
    assert_eq!((shown[0].command.as_str(), shown[0].prints.as_str()), ("a", "token 7\n76\n"));
    assert_eq!(essence("token 8\n76\n"), essence(&shown[0].prints));
    for other in ["token 7\n75\n", "tokens 7\n76\n", "token 7\n", "token 7\n76\nmore\n"] {
        assert_ne!(essence(other), essence(&shown[0].prints), "{other}");
    }
    assert!(is_shown("a\nb\nc\nd", "a\n…\nc\n…") && is_shown("a\nb", "a\nb"));
    assert!(!is_shown("a\nb", "a") && !is_shown("a\nb", "a\n…\nc") && !is_shown("a", "b"));
    assert!(is_shown("a b c", "a …") && is_shown("a b c", "… b c") && !is_shown("a b c", "b …"));
    let table = "id  2f6c7a0e-9a0f-4d6c-b7f8-52a0c3c1b9ab  98 ms  2.9 s";
    assert_eq!(essence(table), "id ID TIME TIME");
    assert_eq!(essence("{\"token\":7,\"a\":\"b\"}"), essence("{\"token\":8,\"a\":\"b\"}"));
    assert_ne!(essence("{\"token\":7,\"a\":\"b\"}"), essence("{\"token\":7,\"a\":\"c\"}"));
    assert_eq!(essence("of 2026-11-21"), essence("of 2027-01-01"));
    let long = commands("```console\n$ for i in 1; do\n> echo $i; done\n1\n```\n");
    assert_eq!(
        (long[0].command.as_str(), long[0].prints.as_str()),
        ("for i in 1; do\necho $i; done", "1\n")
    );
    let prompt = steps(&blocks("```console\n$ a\n127.0.0.1:6380> b\nc\n```\n"));
    let [PageStep::Paste(_), PageStep::Type(last)] = &prompt[..] else { panic!("{prompt:?}") };
    assert_eq!((last.command.as_str(), last.prints.as_str()), ("b", "c\n"));
}
