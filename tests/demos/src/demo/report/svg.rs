//! The timeline as SVG: a lane for each process, bars for what lasted, numbered marks for events.

use std::fmt::Write as _;

use super::axis::Axis;
use super::{class_of, escaped};
use crate::demo::record::{Event, Kind, Span, SpanKind, Story};

/// Start and height of lanes, in pixels.
const GUTTER: f64 = 112.0;
const TOP: f64 = 14.0;
const LANE: f64 = 64.0;
/// Offsets of events, leases and other spans in a lane, in pixels.
const UPPER: f64 = 27.0;
const LOWER: f64 = 49.0;
/// Width of a letter of a lease's label, and half the width of a remark, in pixels.
const LABEL_LETTER: f64 = 6.8;
const REMARK_HALF: f64 = 13.0;

/// Events by time; those of one moment in the order of the record.
pub(super) fn in_order(events: &[Event]) -> Vec<&Event> {
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| event.at_ms);
    events
}

/// Legend of the symbols.
pub(super) fn legend(stories: &[Story]) -> String {
    let keys = [
        (SpanKind::Lease, "lease"),
        (SpanKind::Stall, "process stopped"),
        (SpanKind::Wait, "waiting"),
        (SpanKind::Flight, "write in flight"),
    ];
    let mut legend = "<p class=\"legend\">".to_owned();
    let spans = stories.iter().flat_map(|story| &story.spans);
    for (kind, text) in keys {
        if !spans.clone().any(|span| span.kind == kind) {
            continue;
        }
        let class = class_of_span(kind);
        let _ = write!(legend, "<span><i class=\"{class}\"></i>{text}</span>");
    }
    legend.push_str("<span><b class=\"yes\">✓</b>applied</span>");
    legend.push_str("<span><b class=\"no\">✕</b>refused</span></p>\n");
    legend
}

fn class_of_span(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Lease => "lease",
        SpanKind::Stall => "stall",
        SpanKind::Wait => "wait",
        SpanKind::Flight => "flight",
    }
}

/// The picture of one story.
pub(super) fn timeline(story: &Story) -> String {
    let events = in_order(&story.events);
    let times: Vec<u64> = events.iter().map(|event| event.at_ms).collect();
    let axis = Axis::new(&times);
    let picture = Picture { story, events, axis, id: escaped(story.name) };
    picture.draw()
}

struct Picture<'a> {
    story: &'a Story,
    events: Vec<&'a Event>,
    axis: Axis,
    id: String,
}

impl Picture<'_> {
    fn draw(&self) -> String {
        let bottom = TOP + self.story.lanes.len() as f64 * LANE;
        let width = GUTTER + self.axis.width();
        let height = bottom + 34.0;
        let id = &self.id;
        let title = escaped(self.story.title);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"Timeline: {title}\">\n\
             <defs><pattern id=\"hatch-{id}\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect class=\"hatch-ground\" width=\"7\" height=\"7\"/>\
             <rect class=\"hatch-line\" width=\"3\" height=\"7\"/></pattern></defs>\n"
        );
        self.lanes(&mut svg, width);
        for span in &self.story.spans {
            self.span(&mut svg, span);
        }
        for dot in &self.story.dots {
            let x = GUTTER + self.axis.first(dot.at_ms);
            let y = self.lane(&dot.lane) + UPPER;
            let _ = writeln!(
                svg,
                "<line class=\"dot\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                y - 9.0,
                y + 9.0
            );
        }
        for (number, event) in self.events.iter().enumerate() {
            self.reach(&mut svg, number, event);
        }
        for (number, event) in self.events.iter().enumerate() {
            self.event(&mut svg, number, event, bottom);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn lanes(&self, svg: &mut String, width: f64) {
        for (at, lane) in self.story.lanes.iter().enumerate() {
            let y = TOP + at as f64 * LANE;
            let class = if at % 2 == 0 { "lane even" } else { "lane" };
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"0\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{LANE}\" rx=\"6\"/>\
                 <text class=\"name\" x=\"14\" y=\"{:.1}\">{}</text>\
                 <line class=\"track\" x1=\"{GUTTER}\" x2=\"{width:.1}\" y1=\"{mid:.1}\" y2=\"{mid:.1}\"/>",
                y + UPPER + 4.5,
                escaped(lane),
                mid = y + UPPER,
            );
        }
    }

    /// The top of a lane; events of unknown lanes go to the last one.
    fn lane(&self, name: &str) -> f64 {
        let lanes = &self.story.lanes;
        let at =
            lanes.iter().position(|lane| lane == name).unwrap_or(lanes.len().saturating_sub(1));
        TOP + at as f64 * LANE
    }

    /// The column of the lane's own event at this moment: where a bar begins or ends with an event,
    /// it does so at its mark, also when other lanes have events at the same moment.
    fn own(&self, lane: &str, time: u64) -> Option<f64> {
        let at = self.events.iter().position(|event| event.lane == lane && event.at_ms == time)?;
        Some(self.axis.column(at))
    }

    fn span(&self, svg: &mut String, span: &Span) {
        let first = self.axis.first(span.from_ms);
        let last = self.axis.last(span.to_ms);
        let from = GUTTER + self.own(&span.lane, span.from_ms).unwrap_or(first);
        let to = (GUTTER + self.own(&span.lane, span.to_ms).unwrap_or(last)).max(from + 4.0);
        let is_lease = span.kind == SpanKind::Lease;
        let class = class_of_span(span.kind);
        let (middle, height) = if is_lease { (UPPER, 24.0) } else { (LOWER, 15.0) };
        let y = self.lane(&span.lane) + middle;
        let fill = match span.kind {
            SpanKind::Stall => format!(" fill=\"url(#hatch-{})\"", self.id),
            _ => String::new(),
        };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\"{fill} x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height}\" \
             rx=\"5\"/>",
            y - height / 2.0,
            to - from
        );
        // A lease's label is above its bar, where no mark is; the others' are in the middle of
        // theirs, or after it where it is too short.
        let room = to - from > 8.0 * span.label.chars().count() as f64;
        let (x, y, anchor) = match (is_lease, room) {
            (true, _) => (self.lease_label(span, from), y - 15.5, "start"),
            (false, true) => (f64::midpoint(from, to), y + 4.0, "middle"),
            (false, false) => (to + 5.0, y + 4.0, "start"),
        };
        let _ = writeln!(
            svg,
            "<text class=\"label {class}-label\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escaped(&span.label)
        );
    }

    /// The place of a lease's label: behind the remarks of refused writes that it would overlap.
    fn lease_label(&self, span: &Span, from: f64) -> f64 {
        let width = LABEL_LETTER * span.label.chars().count() as f64;
        let refused =
            |(_, event): &(usize, &&Event)| event.lane == span.lane && event.kind == Kind::Refused;
        self.events.iter().enumerate().filter(refused).fold(from + 13.0, |x, (at, _)| {
            let remark = GUTTER + self.axis.column(at);
            let is_clear = remark + REMARK_HALF < x || remark - REMARK_HALF > x + width;
            if is_clear { x } else { remark + REMARK_HALF + 3.0 }
        })
    }

    /// A line to the lane that an event of another lane reached, with its outcome.
    fn reach(&self, svg: &mut String, number: usize, event: &Event) {
        let targets: &[&str] = match event.kind {
            Kind::Granted => &["lock-server", "naive locks"],
            Kind::Applied | Kind::Refused => &["datastore", "document"],
            _ => return,
        };
        let target = self.story.lanes.iter().find(|lane| targets.contains(&lane.as_str()));
        let Some(target) = target.filter(|lane| **lane != event.lane) else { return };
        let x = GUTTER + self.axis.column(number);
        let from = self.lane(&event.lane) + UPPER;
        let to = self.lane(target) + UPPER;
        let class = class_of(event.kind);
        let (glyph, sign) = match event.kind {
            Kind::Applied => ("✓", "yes"),
            Kind::Refused => ("✕", "no"),
            _ => ("", ""),
        };
        let _ = writeln!(
            svg,
            "<line class=\"reach {class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\"/>\
             <circle class=\"end {class}\" cx=\"{x:.1}\" cy=\"{to:.1}\" r=\"{}\"/>",
            if glyph.is_empty() { 4.0 } else { 9.0 }
        );
        if !glyph.is_empty() {
            let _ = writeln!(
                svg,
                "<text class=\"glyph {sign}\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{glyph}</text>",
                to + 4.5
            );
        }
    }

    fn event(&self, svg: &mut String, number: usize, event: &Event, bottom: f64) {
        let x = GUTTER + self.axis.column(number);
        let y = self.lane(&event.lane) + UPPER;
        let remark = match (event.kind, event.status) {
            (Kind::Lost, _) => "lost".to_owned(),
            (Kind::Kept, _) => "kept".to_owned(),
            (Kind::Refused, Some(status)) => status.to_string(),
            (Kind::Refused, None) => "refused".to_owned(),
            _ => String::new(),
        };
        if !remark.is_empty() {
            let class = class_of(event.kind);
            // The line of a refused write goes down from its mark.
            let y = if event.kind == Kind::Refused { y - 15.0 } else { y + 23.0 };
            let _ = writeln!(
                svg,
                "<text class=\"remark {class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{remark}</text>"
            );
        }
        let class = class_of(event.kind);
        let at_ms = event.at_ms;
        let _ = writeln!(
            svg,
            "<g class=\"event {class}\"><title>{text}</title>\
             <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"10\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>\
             <line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom:.1}\" y2=\"{:.1}\"/>\
             <text class=\"time\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}.{:03}</text>",
            y + 3.8,
            number + 1,
            bottom + 6.0,
            bottom + 18.0,
            at_ms / 1000,
            at_ms % 1000,
            text = escaped(&event.text),
        );
    }
}
