//! The first version of the rules, for keys with slashes alone: the oracle for rules without a
//! colon. Its code is unchanged.

use fence_protocol::{Invalid, LockName};

/// A rule of the first version.
pub(super) struct Rule {
    pattern: Pattern,
    target: Target,
}

impl Rule {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (pattern, target) = text.split_once('=').ok_or("has no \"=\"")?;
        let pattern = Pattern::parse(pattern)?;
        let target = Target::parse(target, &pattern)?;
        Ok(Self { pattern, target })
    }

    /// Returns the lock of `key`, `None` for @open, if the rule matches.
    pub(super) fn protection(&self, key: &str) -> Option<Result<Option<LockName>, Invalid>> {
        self.pattern.matches(key).map(|captures| self.target.fill(&captures))
    }
}

#[derive(Clone, Debug)]
enum Target {
    Open,
    Lock(Vec<Part>),
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Capture(String),
}

impl Target {
    fn parse(text: &str, pattern: &Pattern) -> Result<Self, String> {
        if text == "@open" {
            return Ok(Self::Open);
        }
        if text.starts_with('@') {
            return Err(format!("has an unknown word \"{text}\"; the only one is @open"));
        }
        let parts = parts(text)?;
        for part in &parts {
            if let Part::Capture(name) = part
                && !pattern.captures(name)
            {
                return Err(format!("uses {{{name}}}, which its pattern does not catch"));
            }
        }
        let sample: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Capture(_) => "x",
            })
            .collect();
        LockName::new(&sample).map_err(|error| format!("makes no lock name: {error}"))?;
        Ok(Self::Lock(parts))
    }

    fn fill(&self, captures: &Captures<'_>) -> Result<Option<LockName>, Invalid> {
        let Self::Lock(parts) = self else { return Ok(None) };
        let name: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Capture(name) => captures.get(name),
            })
            .collect();
        LockName::new(&name).map(Some)
    }
}

fn parts(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, tail) = after.split_once('}').ok_or("has a \"{\" without its \"}\"")?;
        parts.push(Part::Text(before.to_owned()));
        parts.push(Part::Capture(name.to_owned()));
        rest = tail;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

/// A pattern over the segments of a key.
#[derive(Clone, Debug)]
struct Pattern {
    segments: Vec<Segment>,
    /// Ends in `**`: any rest matches, also an empty one.
    open_ended: bool,
}

#[derive(Clone, Debug)]
enum Segment {
    Literal(String),
    Any,
    Capture(String),
}

/// Texts caught by the named segments of a pattern.
#[derive(Debug)]
struct Captures<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Captures<'a> {
    /// Returns the text caught by `name`; empty for a name that the pattern does not have (which
    /// [`Pattern::captures`] has ruled out, and which makes no valid lock name).
    fn get(&self, name: &str) -> &'a str {
        self.0.iter().find_map(|(known, value)| (*known == name).then_some(*value)).unwrap_or("")
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("has an empty pattern".to_owned());
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

    /// Returns `true` if the pattern has `{name}`.
    fn captures(&self, name: &str) -> bool {
        self.segments.iter().any(|s| matches!(s, Segment::Capture(known) if known == name))
    }

    /// Returns the caught text of `key`; `None` if it does not match.
    fn matches<'a>(&'a self, key: &'a str) -> Option<Captures<'a>> {
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
