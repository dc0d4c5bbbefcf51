//! The left side of a rule.

use fence_protocol::LockName;

/// A pattern over the segments of a key.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    segments: Vec<Segment>,
    /// Ends in `**`: any rest matches, also none.
    open_ended: bool,
}

#[derive(Clone, Debug)]
enum Segment {
    Literal(String),
    Any,
    Capture(String),
}

/// What the named segments of a pattern caught.
#[derive(Debug)]
pub(super) struct Captures<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Captures<'a> {
    /// What `name` caught; empty for a name that the pattern does not have (which
    /// [`Pattern::captures`] has ruled out, and which makes no valid lock name).
    pub(super) fn get(&self, name: &str) -> &'a str {
        self.0.iter().find_map(|(known, value)| (*known == name).then_some(*value)).unwrap_or("")
    }
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("its pattern is empty".to_owned());
        }
        let (head, open_ended) = match text.strip_suffix("/**") {
            Some(head) => (head, true),
            None if text == "**" => ("", true),
            None => (text, false),
        };
        let mut pattern = Self { segments: Vec::new(), open_ended };
        for segment in head.split('/').filter(|_| text != "**") {
            let segment = Segment::parse(segment)?;
            if let Segment::Capture(name) = &segment
                && pattern.captures(name)
            {
                return Err(format!("catches {{{name}}} twice"));
            }
            pattern.segments.push(segment);
        }
        Ok(pattern)
    }

    /// Whether the pattern has `{name}`.
    pub(super) fn captures(&self, name: &str) -> bool {
        self.segments.iter().any(|s| matches!(s, Segment::Capture(known) if known == name))
    }

    /// What it catches in `key`; `None` where it does not match.
    pub(super) fn matches<'a>(&'a self, key: &'a str) -> Option<Captures<'a>> {
        let mut captures = Vec::new();
        let mut rest = key.split('/');
        for segment in &self.segments {
            let part = rest.next()?;
            match segment {
                Segment::Literal(text) if text != part => return None,
                Segment::Literal(_) | Segment::Any => {}
                Segment::Capture(name) => captures.push((name.as_str(), part)),
            }
        }
        (self.open_ended || rest.next().is_none()).then_some(Captures(captures))
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if text == "**" {
            return Err("has ** anywhere but at the end".to_owned());
        }
        if text.contains(['{', '}']) {
            let name = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            return match name {
                Some(name) if is_name(name) => Ok(Self::Capture(name.to_owned())),
                _ => Err("can catch only a whole segment, written {name}".to_owned()),
            };
        }
        if text.contains('*') {
            return Err("has a * inside a segment; only a whole segment can be *".to_owned());
        }
        LockName::new(text).map_err(|error| match text {
            "" => "has an empty segment (a slash at an end, or two in a row)".to_owned(),
            _ => format!("its pattern is not like a key: {error}"),
        })?;
        Ok(Self::Literal(text.to_owned()))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
