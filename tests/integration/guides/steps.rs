//! Steps of a page: files that it shows, commands, and what these print.

use std::fmt::Write as _;

/// Line that the shell prints before the output of the next command; no command prints this.
pub(super) const MARK: &str = "=== command ";

/// A command of a page, and what it is said to print.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) command: String,
    pub(super) prints: String,
}

/// A step of a reader who follows a page.
#[derive(Debug)]
pub(super) enum PageStep {
    /// Saves a file that the page shows.
    Save { name: String, text: String },
    /// Pastes a command into the shell.
    Paste(Shown),
    /// Types a line at the prompt of the program that was pasted last.
    Type(Shown),
}

/// The blocks of a page between fences, with what stands behind the opening one.
pub(super) fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some((kind.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, text)), None) => writeln!(text, "{line}").unwrap(),
            (None, None) => {}
        }
    }
    blocks
}

/// Name of the file that a block shows: its first line is a comment with it, or the second one if
/// the first says what runs a script.
fn file_name(kind: &str, text: &str) -> Option<String> {
    let marks = ["# ", "// ", "-- "];
    let mut lines = text.lines().skip_while(|line| line.starts_with("#!"));
    let line = lines.next().unwrap_or_default();
    let name = marks.iter().find_map(|mark| line.strip_prefix(mark));
    let name = name.filter(|name| name.contains('.') && !name.contains(' '));
    assert!(kind != "sh" || name.is_some(), "a script without a name:\n{text}");
    name.map(ToOwned::to_owned)
}

/// Command typed at a prompt such as `127.0.0.1:6380> `.
fn typed(line: &str) -> Option<&str> {
    let (prompt, command) = line.split_once("> ")?;
    prompt.parse::<std::net::SocketAddr>().ok().map(|_| command)
}

pub(super) fn steps(blocks: &[(String, String)]) -> Vec<PageStep> {
    let mut steps = Vec::new();
    for (kind, text) in blocks {
        if kind != "console" {
            let file = file_name(kind, text);
            steps.extend(file.map(|name| PageStep::Save { name, text: text.clone() }));
            continue;
        }
        for line in text.lines() {
            let new = |command: &str| Shown { command: command.to_owned(), prints: String::new() };
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(PageStep::Paste(new(command)));
            } else if let Some(command) = typed(line) {
                steps.push(PageStep::Type(new(command)));
            } else {
                let Some(PageStep::Paste(last) | PageStep::Type(last)) = steps.last_mut() else {
                    panic!("a block begins with a command, not with {line}");
                };
                match line.strip_prefix("> ") {
                    Some(more) => write!(last.command, "\n{more}").unwrap(),
                    None => writeln!(last.prints, "{line}").unwrap(),
                }
            }
        }
    }
    steps
}

/// Commands that a page shows and the tests do not run: they build or install what the tests have.
const INSTALLS: [&str; 4] = ["cargo build", "cargo run -q", "pip install", "npm "];

fn is_left_out(command: &str) -> bool {
    INSTALLS.iter().any(|begin| command.starts_with(begin))
}

/// `true` if a command prints a prompt, at which the next line is typed.
fn opens_prompt(command: &Shown, next: Option<&PageStep>) -> bool {
    command.prints.is_empty() && matches!(next, Some(PageStep::Type(_)))
}

/// Script of a shell that follows the steps, and what they are said to print.
pub(super) fn script(steps: Vec<PageStep>) -> (String, Vec<Shown>) {
    let mut script = String::from("exec 2>&1\n");
    let mut shown = Vec::new();
    let mut steps = steps.into_iter().peekable();
    while let Some(step) = steps.next() {
        let (one, run) = match step {
            PageStep::Save { name, text } => {
                writeln!(script, "cat > '{name}' <<'{END_OF_FILE}'\n{text}{END_OF_FILE}").unwrap();
                continue;
            }
            PageStep::Paste(one) if is_left_out(&one.command) => continue,
            PageStep::Paste(one) if one.command.starts_with("fence serve ") => {
                let run = SERVER.replace("COMMAND", &one.command);
                (one, run)
            }
            PageStep::Paste(one) if opens_prompt(&one, steps.peek()) => {
                let run = PROMPT.replace("COMMAND", &one.command);
                (one, run)
            }
            PageStep::Paste(one) => {
                let run = one.command.replace("cargo run -- ", "fence ");
                (one, run)
            }
            PageStep::Type(one) => {
                let lines = one.prints.lines().count().to_string();
                let run = TYPED.replace("LINES", &lines).replace("COMMAND", &one.command);
                (one, run)
            }
        };
        writeln!(script, "echo '{MARK}{}'\n{run}", shown.len()).unwrap();
        shown.push(one);
    }
    (script, shown)
}

/// Ends a file in the script.
const END_OF_FILE: &str = "=== end of file";
/// A terminal of its own, whose program runs until the page's end: its last line is this.
const SERVER: &str = "COMMAND > served 2>&1 & others=\"$others $!\"
until grep -q '^Ctrl-C ends it' served; do sleep 0.1; done; cat served";
/// A program that reads lines, with the output that it has on a terminal (redis-cli).
const PROMPT: &str = "mkfifo typed; : > session; stdbuf -oL COMMAND < typed > session 2>&1 &
others=\"$others $!\"; exec 9> typed";
/// A line for it, whose reply has so many lines.
const TYPED: &str = "seen=$(wc -l < session); echo 'COMMAND' >&9
until [ $(wc -l < session) -ge $((seen + LINES)) ]; do sleep 0.1; done
tail -n +$((seen + 1)) session";
/// Ends what still runs in other terminals: the reader closes them.
pub(super) const CLOSE: &str = "[ -z \"$others\" ] || { kill $others; wait $others; } 2> /dev/null";
