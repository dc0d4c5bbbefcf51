//! Narration of a demo while it runs, and its record.

use std::io::IsTerminal as _;

use fence_client::clock::{self, Moment};
use fence_client::config;
use serde::Serialize;
use serde_json::Value;

use super::record::{Dot, Event, Kind, Record, Span, SpanKind, Story};
use super::verdict::Verdict;
use fence_terminal::exit::Failure;
use fence_terminal::output::emit;

/// Output: lines for people, or one JSON document in the end.
#[derive(Clone, Copy, Debug)]
enum Voice {
    Lines { colour: bool },
    Silent,
}

#[derive(Debug)]
pub(super) struct Narrator {
    voice: Voice,
    began: Moment,
    record: Record,
}

impl Narrator {
    pub(super) fn new(
        demo: &'static str,
        title: &'static str,
        explanation: &'static str,
        store: &str,
        json: bool,
    ) -> Result<Self, Failure> {
        let colour = std::io::stdout().is_terminal() && config::variable("NO_COLOR").is_none();
        let voice = if json { Voice::Silent } else { Voice::Lines { colour } };
        let store = store.to_owned();
        let record = Record { demo, store, title, explanation, ok: true, stories: Vec::new() };
        let narrator = Self { voice, began: clock::now(), record };
        let heading =
            narrator.painted(BOLD, &format!("{title} (store: {})", narrator.record.store));
        narrator.say(&format!("{heading}\n{}\n", wrapped(explanation)))?;
        Ok(narrator)
    }

    /// Begins a story; its time starts at zero.
    pub(super) fn begin(
        &mut self,
        name: &'static str,
        title: &'static str,
        lanes: &[&str],
    ) -> Result<(), Failure> {
        self.began = clock::now();
        self.record.stories.push(Story::new(name, title, lanes));
        let heading = self.painted(BOLD, &name.to_uppercase());
        self.say(&format!("{heading}  {title}"))
    }

    /// Now, on the clock of [`Narrator::event_at`].
    pub(super) fn now(&self) -> u64 {
        clock::now().ms()
    }

    /// Records and prints an event of now.
    pub(super) fn event(&mut self, lane: &str, kind: Kind, text: &str) -> Result<(), Failure> {
        self.event_at(self.now(), lane, kind, text, EventFigures::default())
    }

    /// Records and prints an event at `at_ms` on the machine's clock.
    pub(super) fn event_at(
        &mut self,
        at_ms: u64,
        lane: &str,
        kind: Kind,
        text: &str,
        figures: EventFigures,
    ) -> Result<(), Failure> {
        let at_ms = self.since(at_ms);
        let time = format!("{:>3}.{:03} s", at_ms / 1000, at_ms % 1000);
        let text_shown = self.painted(colour_of(kind), text);
        self.say(&format!("  {time}  {:<12}  {text_shown}", lane))?;
        let EventFigures { token, status } = figures;
        let lane = lane.to_owned();
        let text = text.to_owned();
        if let Some(story) = self.record.stories.last_mut() {
            story.events.push(Event { at_ms, lane, kind, text, token, status });
        }
        Ok(())
    }

    /// Something that lasted, on the machine's clock.
    pub(super) fn span(&mut self, lane: &str, kind: SpanKind, ms: (u64, u64), label: &str) {
        let from_ms = self.since(ms.0);
        let to_ms = self.since(ms.1);
        let lane = lane.to_owned();
        let label = label.to_owned();
        if let Some(story) = self.record.stories.last_mut() {
            story.spans.push(Span { lane, kind, from_ms, to_ms, label });
        }
    }

    /// Records one of many small events.
    pub(super) fn dot(&mut self, lane: &str, at_ms: u64) {
        let lane = lane.to_owned();
        let at_ms = self.since(at_ms);
        if let Some(story) = self.record.stories.last_mut() {
            story.dots.push(Dot { lane, at_ms });
        }
    }

    /// Records and prints a remark outside of the timeline.
    pub(super) fn remark(&mut self, text: &str) -> Result<(), Failure> {
        if let Some(story) = self.record.stories.last_mut() {
            story.notes.push(text.to_owned());
        }
        self.say(&format!("  {text}"))
    }

    /// Ends the story with what its facts add up to.
    pub(super) fn end(&mut self, facts: &impl Serialize, verdict: Verdict) -> Result<(), Failure> {
        let facts = serde_json::to_value(facts).unwrap_or(Value::Null);
        self.record.ok &= verdict.ok;
        let (word, colour) =
            if verdict.ok { ("as expected", GREEN) } else { ("NOT as expected", RED) };
        let line = self.painted(colour, &format!("{word}: {}", verdict.text));
        let Some(story) = self.record.stories.last_mut() else { return Ok(()) };
        story.ok = verdict.ok;
        story.verdict = verdict.text;
        story.facts = facts;
        let name = story.name;
        self.say(&format!("  {name} ended {line}\n"))
    }

    pub(super) fn record(self) -> Record {
        self.record
    }

    fn since(&self, at_ms: u64) -> u64 {
        at_ms.saturating_sub(self.began.ms())
    }

    fn painted(&self, colour: &str, text: &str) -> String {
        match self.voice {
            Voice::Lines { colour: true } if !colour.is_empty() => {
                format!("\x1b[{colour}m{text}\x1b[0m")
            }
            _ => text.to_owned(),
        }
    }

    fn say(&self, line: &str) -> Result<(), Failure> {
        match self.voice {
            Voice::Lines { .. } => emit(format!("{line}\n").as_bytes()),
            Voice::Silent => Ok(()),
        }
    }
}

/// Numbers that an event carries for programs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventFigures {
    pub(super) token: Option<u64>,
    pub(super) status: Option<u16>,
}

/// Width of a line for people.
const COLUMNS: usize = 96;

/// Text in lines that fit.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, String::len);
        if line > 0 && line + word.len() >= COLUMNS {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

const BOLD: &str = "1";
const RED: &str = "1;31";
const GREEN: &str = "32";

fn colour_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Step => "",
        Kind::Granted => "36",
        Kind::Delay => "33",
        Kind::Applied | Kind::Kept => GREEN,
        Kind::Refused | Kind::Lost => RED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_between_words() {
        let text = "word ".repeat(60);
        let lines = wrapped(&text);
        assert!(lines.lines().count() > 1 && lines.lines().all(|line| line.len() <= COLUMNS));
        assert_eq!(lines.split_whitespace().count(), 60);
    }
}
