//! The flags of every command, from its `-h`: docs/reference/cli.md.

use std::collections::HashMap;
use std::process::Command;

use super::{Table, sentence};

/// A flag as `-h` prints it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Flag {
    /// As in `-l, --lock <NAME>`.
    spelling: String,
    text: String,
    default: Option<String>,
    /// The variable, where it is not the flag's own name.
    variable: Option<String>,
}

/// Help text of a command, as `-h` prints it.
struct Help {
    about: String,
    usage: String,
    commands: Vec<String>,
    /// With the heading above them.
    flags: Vec<(String, Flag)>,
}

pub(super) fn tables() -> Vec<Table> {
    let mut seen = HashMap::new();
    let mut common = String::new();
    for (_, flag) in help(&["lock", "list"]).flags.into_iter().filter(|(heading, flag)| {
        heading == "Servers" || flag.is("--log") || flag.is("--color") || flag.is("--output")
    }) {
        common += &flag.line("");
        seen.insert(flag, String::new());
    }
    let mut tables = vec![Table::new("fence", common)];
    for name in help(&[]).commands {
        let top = help(&[&name]);
        let mut text = String::new();
        match top.commands.is_empty() {
            true => text += &flags(&format!("fence {name}"), "", top, &mut seen),
            false => {
                for sub in &top.commands {
                    let help = help(&[&name, sub]);
                    let usage = help.usage.trim_start_matches("fence ");
                    text += &format!("- `{usage}`: {}\n", help.about);
                    text += &flags(&format!("{name} {sub}"), "  ", help, &mut seen);
                }
            }
        }
        if !text.is_empty() {
            tables.push(Table::new(format!("fence {name}"), text));
        }
    }
    tables
}

/// The flags of one command; of those of an earlier command only the names.
fn flags(name: &str, indent: &str, help: Help, seen: &mut HashMap<Flag, String>) -> String {
    let mut own = String::new();
    let mut known: Vec<(String, Vec<String>)> = Vec::new();
    for (_, flag) in help.flags {
        match seen.get(&flag) {
            None => {
                own += &flag.line(indent);
                seen.insert(flag, name.to_owned());
            }
            Some(first) if first.is_empty() => {}
            Some(first) => {
                let spelling = format!("`{}`", flag.long());
                match known.iter_mut().find(|(name, _)| name == first) {
                    Some((_, flags)) => flags.push(spelling),
                    None => known.push((first.clone(), vec![spelling])),
                }
            }
        }
    }
    for (first, flags) in known {
        own += &format!("{indent}- as `{first}`: {}\n", flags.join(", "));
    }
    own
}

impl Flag {
    fn is(&self, long: &str) -> bool {
        self.long() == long
    }

    /// As in `--lock`.
    fn long(&self) -> &str {
        let words = self.spelling.split([' ', ',', '[']);
        words.into_iter().find(|word| word.starts_with("--")).unwrap_or_default()
    }

    fn line(&self, indent: &str) -> String {
        let default = self.default.as_ref().map(|value| format!(" ({value})")).unwrap_or_default();
        let variable = self.variable.as_ref();
        let variable = variable.map(|name| format!("; variable `{name}`")).unwrap_or_default();
        let spelling = self.spelling.split(" <").next().unwrap_or_default();
        let spelling = spelling.split(" [").next().unwrap_or_default();
        format!("{indent}- `{spelling}`{default}: {}{variable}\n", self.text)
    }
}

fn help(path: &[&str]) -> Help {
    let mut command = Command::new(fence_tests::binaries::path("fence"));
    let output = command.args(path).arg("-h").env_clear().output().unwrap();
    parse(&String::from_utf8(output.stdout).unwrap())
}

fn parse(text: &str) -> Help {
    let mut help = Help {
        about: String::new(),
        usage: String::new(),
        commands: Vec::new(),
        flags: Vec::new(),
    };
    let mut heading = String::new();
    let mut entries: Vec<(String, String)> = Vec::new();
    for line in text.lines().take_while(|line| !line.starts_with("Example")) {
        let trimmed = line.trim();
        let indent = line.len() - line.trim_start().len();
        if let Some(usage) = line.strip_prefix("Usage: ") {
            help.usage = usage.replace(" [OPTIONS]", "");
        } else if indent == 0 && trimmed.ends_with(':') {
            heading = trimmed.trim_end_matches(':').to_owned();
        } else if indent == 0 && help.usage.is_empty() {
            help.about = format!("{} {trimmed}", help.about).trim().to_owned();
        } else if heading == "Commands" && indent == 2 {
            help.commands.extend(trimmed.split(' ').next().map(ToOwned::to_owned));
        } else if (2..=6).contains(&indent) && trimmed.starts_with('-') {
            entries.push((heading.clone(), trimmed.to_owned()));
        } else if let Some((_, entry)) = entries.last_mut().filter(|_| indent > 6) {
            let gap = if entry.contains("  ") { " " } else { "  " };
            *entry += &format!("{gap}{trimmed}");
        }
    }
    help.commands.retain(|name| name != "help");
    let flags = entries.into_iter().map(|(heading, entry)| (heading, flag(&entry)));
    help.flags = flags.filter(|(_, f)| !f.is("--help") && !f.is("--version")).collect();
    help
}

fn flag(entry: &str) -> Flag {
    let (spelling, text) = entry.split_once("  ").unwrap_or((entry, ""));
    let (text, values) = cut(text.trim(), "[possible values: ");
    let (text, variable) = cut(&text, "[env: ");
    let (text, default) = sentence(&text);
    let default = default.filter(|value| value != "\"\"").map(|value| match value.contains(' ') {
        true => value,
        false => format!("`{value}`"),
    });
    let text = match values {
        Some(values) => format!("{text}: {values}"),
        None => text,
    };
    let mut flag = Flag { spelling: spelling.to_owned(), text, default, variable: None };
    let own = flag.long().trim_start_matches('-').replace('-', "_").to_uppercase();
    let variable = variable.map(|name| name.trim_end_matches('=').to_owned());
    flag.variable = variable.filter(|name| *name != format!("FENCE_{own}"));
    flag
}

/// The text without a bracket, and what is in it.
fn cut(text: &str, begin: &str) -> (String, Option<String>) {
    match text.split_once(begin).and_then(|(before, rest)| Some((before, rest.split_once(']')?))) {
        Some((before, (inside, after))) => {
            (format!("{}{after}", before.trim_end()), Some(inside.to_owned()))
        }
        None => (text.to_owned(), None),
    }
}

#[test]
fn a_help_is_read() {
    let help = parse(
        "Does it\n\nUsage: fence do [OPTIONS] <LOCK>\n\nOptions:\n  -o, --output <FORMAT>  How: a \
         table\n                         or JSON [default: table] [possible values: table, json]\n\
         \x20     --token-header <HEADER>\n          The header [env: FENCE_HEADER=]\n  -h, --help \
                  \x20Print\n\nExamples:\n  --not",
    );
    assert_eq!((help.about.as_str(), help.usage.as_str()), ("Does it", "fence do <LOCK>"));
    let lines: Vec<_> = help.flags.iter().map(|(_, flag)| flag.line("")).collect();
    let output = "- `-o, --output` (`table`): How: a table or JSON: table, json\n";
    let header = "- `--token-header`: The header; variable `FENCE_HEADER`\n";
    assert_eq!(lines, [output, header]);
}
