//! Tests with a real Redis: its description of its commands, their keys, and their real effects.

use std::ops::Range;

use redis::Value;

use super::meta::{self, Meta};
use super::*;

mod catalog;
mod denied;
mod documented;
mod effects;
mod every_command;
mod hand_made;
mod hostile;
mod newer_servers;
mod observed;
mod page;
mod real;
mod same_keys;
mod samples;
mod scripts;
mod words;

use real::Redis;

/// Returns the plan for these words, with the keys and their access, in order.
fn plan(table: &CommandTable, words: &[&[u8]]) -> Result<(Plan, Vec<KeyUse>), String> {
    let buf = words.concat();
    let mut begin = 0;
    let ranges: Vec<Range<usize>> = words
        .iter()
        .map(|word| {
            begin += word.len();
            begin - word.len()..begin
        })
        .collect();
    // Earlier content must not be taken for this command's keys.
    let mut keys = vec![KeyUse { arg: 0, access: KeyAccess::Read }];
    let plan = table.plan(Command::from_parts(&buf, &ranges), &mut keys);
    plan.map(|plan| (plan, keys)).map_err(|refused| refused.to_string())
}

/// Plans a command, from words with blanks between.
fn plan_line(table: &CommandTable, line: &str) -> Result<(Plan, Vec<KeyUse>), String> {
    plan(table, &line.split_whitespace().map(str::as_bytes).collect::<Vec<_>>())
}

/// Returns the keys of a line, with `r:` and `w:` before each.
fn keys_of(table: &CommandTable, line: &str) -> Result<Vec<String>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let shown = |key: &KeyUse| match key.access {
        KeyAccess::Read => format!("r:{}", words[key.arg]),
        KeyAccess::Write => format!("w:{}", words[key.arg]),
    };
    plan_line(table, line).map(|(_, keys)| keys.iter().map(shown).collect())
}

/// Returns commands and subcommands in one list.
fn flat(commands: &[Meta]) -> Vec<&Meta> {
    commands.iter().flat_map(|meta| std::iter::once(meta).chain(&meta.subcommands)).collect()
}
