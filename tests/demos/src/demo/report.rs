//! A demo as one self-contained HTML page: inline SVG and CSS, no script, nothing from elsewhere.

mod axis;
mod svg;

use std::fmt::Write as _;

use super::record::{Event, Kind, Record, Story};

/// Shown where the picture scrolls.
const WIDE: &str =
    "<p class=\"wide\">The picture is wider than the screen: scroll it sideways.</p>";

const STYLE: &str = include_str!("report/style.css");

pub(super) fn page(record: &Record) -> String {
    let mut stories = String::new();
    for story in &record.stories {
        stories.push_str(&section(story));
    }
    let title = escaped(record.title);
    let explanation = escaped(record.explanation);
    let demo = escaped(record.demo);
    let store = escaped(&record.store);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title} · fence demo {demo}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <main>\n<header>\n<p class=\"over\">fence demo {demo}</p>\n<h1>{title}</h1>\n\
         <p class=\"lead\">{explanation}</p>\n{legend}</header>\n{stories}\
         <footer>Store: {store}. Every line comes from a reply, a report of a process, or a file \
         that was read back. Between two events the time axis is stretched so that all can be \
         seen; the times are below.</footer>\n</main>\n</body>\n</html>\n",
        legend = svg::legend(&record.stories),
    )
}

fn section(story: &Story) -> String {
    let mut rows = String::new();
    for (at, event) in svg::in_order(&story.events).iter().enumerate() {
        rows.push_str(&row(at + 1, event));
    }
    let notes: String = story
        .notes
        .iter()
        .map(|note| format!("<p class=\"note\">{}</p>\n", escaped(note)))
        .collect();
    let (word, class) = match (story.ok, story.name) {
        (false, _) => ("Not as expected", "wrong"),
        (true, "guarded") => ("Guarded", "good"),
        (true, _) => ("Unguarded", "bad"),
    };
    format!(
        "<section class=\"{class}\">\n<h2>{name} <small>{title}</small></h2>\n\
         <p class=\"verdict\"><b>{word}</b> {verdict}</p>\n{WIDE}\n\
         <div class=\"picture\">\n{picture}</div>\n<table>\n{rows}</table>\n{notes}</section>\n",
        name = escaped(&capitalised(story.name)),
        title = escaped(story.title),
        verdict = escaped(&story.verdict),
        picture = svg::timeline(story),
    )
}

fn row(number: usize, event: &Event) -> String {
    let mut row = String::new();
    let class = class_of(event.kind);
    let at_ms = event.at_ms;
    // Writing to a String does not fail.
    let _ = writeln!(
        row,
        "<tr class=\"{class}\"><td><span class=\"number\">{number}</span></td>\
         <td class=\"time\">{}.{:03} s</td><td class=\"lane\">{}</td><td>{}</td></tr>",
        at_ms / 1000,
        at_ms % 1000,
        escaped(&event.lane),
        escaped(&event.text),
    );
    row
}

/// The CSS class of a kind of event.
fn class_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Step => "step",
        Kind::Granted => "granted",
        Kind::Delay => "delay",
        Kind::Applied => "applied",
        Kind::Refused => "refused",
        Kind::Lost => "lost",
        Kind::Kept => "kept",
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Text as it may stand in HTML and in a quoted attribute.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter if letter.is_control() => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
