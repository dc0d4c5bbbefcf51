//! Data goes to stdout, as a table or as JSON. Everything else goes to stderr.

use std::io::{self, Write as _};

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use crate::color::plain;
use crate::exit::{Failure, code};

/// Format of data on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON document.
    Json,
}

/// The option of every command that prints data.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Output format: a table for people, or JSON
    #[arg(long = "output", short = 'o', value_enum, default_value_t)]
    pub format: Format,
}

impl Output {
    /// Prints `data` as JSON, or what `table` makes of it.
    pub fn print<T: Serialize>(
        self,
        data: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Table => emit_text(&table(data)),
            Format::Json => {
                let json = serde_json::to_string_pretty(data)
                    .map_err(|error| Failure::internal(format!("no JSON: {error}")))?;
                emit_text(&(json + "\n"))
            }
        }
    }
}

/// Writes text to stdout, without its [colours](crate::color) unless they are wanted there.
pub fn emit_text(text: &str) -> Result<(), Failure> {
    let is_plain = AutoStream::choice(&io::stdout()) == ColorChoice::Never;
    let text = harmless(text);
    if is_plain { emit(plain(&text).as_bytes()) } else { emit(text.as_bytes()) }
}

/// The text with control characters and marks of direction written out, but for line ends, tabs and
/// colours: what other clients wrote does not move the cursor or the words.
fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, sign) in text.char_indices() {
        let begins_color = || {
            let rest = text[at..].strip_prefix("\u{1b}[");
            let end =
                rest.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';'));
            end.is_some_and(|end| end.starts_with('m'))
        };
        match sign {
            '\n' | '\t' => out.push(sign),
            '\u{1b}' if begins_color() => out.push(sign),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push_str(&escaped(sign)),
            _ if sign.is_control() => out.push_str(&escaped(sign)),
            _ => out.push(sign),
        }
    }
    out
}

/// As JSON writes it in a string.
fn escaped(sign: char) -> String {
    format!("\\u{:04x}", u32::from(sign))
}

/// Writes to stdout. A reader that has closed the pipe (`| head`) is not an error.
pub fn emit(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::silent(code::OK)
        } else {
            Failure::new(code::UNKNOWN, format!("stdout cannot be written: {error}"))
        }
    })
}

/// Writes a line to stderr. There is nowhere to report that this failed.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", harmless(line));
}

impl Failure {
    /// Writes the failure to stderr: as a line, or with JSON as a problem document (RFC 9457) in
    /// one line. That of a server keeps its type and members; `exit_code` is always there.
    pub fn report(&self, format: Format) {
        match format {
            _ if self.message.is_empty() => {}
            Format::Table => say(&format!("fence: {}", self.message)),
            Format::Json => say(&self.document().to_string()),
        }
    }

    fn document(&self) -> Value {
        let mut document = match &self.problem {
            Some(problem) => serde_json::to_value(problem).unwrap_or_default(),
            None => {
                let name = code::name(self.code);
                json!({"type": format!("urn:fencepost:fence:{name}"), "code": name,
                    "title": "The command failed", "detail": self.message})
            }
        };
        document["exit_code"] = self.code.into();
        document
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_does_not_drive_the_terminal() {
        let colored = format!("{}\n\tb", crate::color::painted(crate::color::GOOD, "a"));
        assert_eq!(harmless(&colored), colored);
        let given = "\u{1b}[2J\u{1b}]0;x\u{7}a\rb\u{9b}2J\u{202e}c\u{1b}";
        let out = "\\u001b[2J\\u001b]0;x\\u0007a\\u000db\\u009b2J\\u202ec\\u001b";
        assert_eq!(harmless(given), out);
        let json = json!({"a": "\u{9b}\u{202e}\n\u{7f}"});
        assert_eq!(harmless(&json.to_string()).parse::<Value>().unwrap(), json);
    }
}
