//! The left side of a rule: a pattern over keys of any bytes.
//!
//! Parsing turns the text into runs of literal bytes with wildcards between them, so that matching
//! compares slices and allocates nothing.

mod automaton;

pub(super) use automaton::{Automaton, Position};

/// A pattern over the segments of a key.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// Literal beginning, up to the first wildcard.
    lead: Vec<u8>,
    wilds: Vec<Wild>,
    tail: Tail,
    separators: Separators,
}

/// A wildcard with the literal bytes behind it. It catches the rest of its segment but for
/// `suffix`; the part of the segment before it belongs to the run before.
#[derive(Clone, Debug)]
struct Wild {
    name: Option<String>,
    /// Literal rest of its segment.
    suffix: Vec<u8>,
    /// Literal bytes from the separator that ends its segment to the next wildcard.
    then: Vec<u8>,
}

/// Keys allowed after the last segment.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Nothing,
    /// Nothing, or this separator and anything.
    Under(u8),
    Anything,
}

/// Bytes that end a segment of the key: those that divide the pattern itself.
#[derive(Clone, Copy, Debug)]
struct Separators {
    slash: bool,
    colon: bool,
}

impl Separators {
    /// Finds a pattern's separators. A pattern without any is a single segment between slashes.
    fn in_pattern(pattern: &str) -> Self {
        let colon = pattern.contains(':');
        Self { slash: pattern.contains('/') || !colon, colon }
    }

    fn contains(self, byte: u8) -> bool {
        (self.slash && byte == b'/') || (self.colon && byte == b':')
    }
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("has an empty pattern".to_owned());
        }
        let separators = Separators::in_pattern(text);
        let mut pattern =
            Self { lead: Vec::new(), wilds: Vec::new(), tail: Tail::Nothing, separators };
        if text == "**" {
            pattern.tail = Tail::Anything;
            return Ok(pattern);
        }
        let head = match (text.strip_suffix("/**"), text.strip_suffix(":**")) {
            (Some(head), _) => pattern.under(b'/', head),
            (_, Some(head)) => pattern.under(b':', head),
            (None, None) => text,
        };
        if separators.slash {
            text.split('/').try_for_each(check_dots)?;
        }
        let mut rest = head;
        while let Some(at) = rest.find(|c: char| c.is_ascii() && separators.contains(c as u8)) {
            pattern.push_segment(&rest[..at])?;
            pattern.literal().push(rest.as_bytes()[at]);
            rest = &rest[at + 1..];
        }
        pattern.push_segment(rest)?;
        Ok(pattern)
    }

    fn under<'t>(&mut self, separator: u8, head: &'t str) -> &'t str {
        self.tail = Tail::Under(separator);
        head
    }

    /// Returns the run for literal bytes between segments, or before the first wildcard.
    fn literal(&mut self) -> &mut Vec<u8> {
        match self.wilds.last_mut() {
            Some(wild) => &mut wild.then,
            None => &mut self.lead,
        }
    }

    fn push_segment(&mut self, text: &str) -> Result<(), String> {
        let segment = Segment::parse(text)?;
        self.literal().extend(unescaped(segment.before)?);
        let Some((name, after)) = segment.wild else { return Ok(()) };
        if let Some(name) = name
            && self.index_of(name).is_some()
        {
            return Err(format!("catches {{{name}}} twice"));
        }
        let suffix = unescaped(after)?;
        if let Some(byte) = suffix.iter().find(|byte| self.separators.contains(**byte)) {
            return Err(format!(
                "has an escaped '{}' behind a wildcard that ends there: it would never match",
                char::from(*byte)
            ));
        }
        self.wilds.push(Wild { name: name.map(ToOwned::to_owned), suffix, then: Vec::new() });
        Ok(())
    }

    /// Returns the index of the wildcard `{name}`.
    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.wilds.iter().position(|wild| wild.name.as_deref() == Some(name))
    }

    /// Returns `true` if the pattern matches all of `key`.
    pub(super) fn matches(&self, key: &[u8]) -> bool {
        let Some(mut rest) = key.strip_prefix(self.lead.as_slice()) else { return false };
        for wild in &self.wilds {
            let Some((_, next)) = wild.catch(rest, self.separators) else { return false };
            rest = next;
        }
        match self.tail {
            Tail::Nothing => rest.is_empty(),
            Tail::Under(separator) => rest.first().is_none_or(|byte| *byte == separator),
            Tail::Anything => true,
        }
    }

    /// Returns `true` for `**`.
    pub(super) fn matches_everything(&self) -> bool {
        self.lead.is_empty() && self.wilds.is_empty() && matches!(self.tail, Tail::Anything)
    }

    /// Returns the text that each wildcard catches in a key that [`matches`](Self::matches), with
    /// its name.
    pub(super) fn caught<'a>(
        &'a self,
        key: &'a [u8],
    ) -> impl Iterator<Item = (Option<&'a str>, &'a [u8])> {
        let mut rest = key.get(self.lead.len()..).unwrap_or_default();
        self.wilds.iter().map_while(move |wild| {
            let (caught, next) = wild.catch(rest, self.separators)?;
            rest = next;
            Some((wild.name.as_deref(), caught))
        })
    }
}

/// A key, or all keys with a common beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Forced {
    /// One key.
    One(Vec<u8>),
    /// All keys that begin with this text.
    Under(Vec<u8>),
}

impl Forced {
    /// Prepends a text.
    pub(super) fn in_front(&self, text: &[u8]) -> Self {
        match self {
            Self::One(rest) => Self::One([text, rest].concat()),
            Self::Under(rest) => Self::Under([text, rest].concat()),
        }
    }

    /// Removes the first byte; `None` if the text begins with another.
    pub(super) fn behind(&self, byte: u8) -> Option<Self> {
        match self {
            Self::One(text) => text.strip_prefix(&[byte]).map(|text| Self::One(text.to_vec())),
            Self::Under(text) => text.strip_prefix(&[byte]).map(|text| Self::Under(text.to_vec())),
        }
    }
}

impl Pattern {
    /// Returns the number of wildcards.
    pub(super) fn wildcards(&self) -> usize {
        self.wilds.len()
    }

    /// Returns `true` if a wildcard has a name.
    pub(super) fn has_names(&self) -> bool {
        self.wilds.iter().any(|wild| wild.name.is_some())
    }

    /// Returns exactly the keys that match with these texts as wildcards. `None` if a wildcard
    /// without a text is not at the end: then the keys have no common beginning.
    pub(super) fn bounded(&self, texts: &[Option<&str>]) -> Option<Vec<Forced>> {
        let mut lead = self.lead.clone();
        for (index, wild) in self.wilds.iter().enumerate() {
            let Some(text) = texts.get(index).copied().flatten() else {
                let is_last = index + 1 == self.wilds.len();
                let is_all = is_last && wild.catches_all() && self.is_divided_by_its_tail();
                return is_all.then(|| vec![Forced::Under(lead)]);
            };
            if text.bytes().any(|byte| self.separators.contains(byte)) {
                return None;
            }
            lead.extend(text.bytes().chain(wild.suffix.iter().copied()));
            lead.extend(&wild.then);
        }
        Some(self.end(lead))
    }

    /// Returns at least the keys that match and begin with `lead`, each without it.
    pub(super) fn forced_under(&self, lead: &[u8]) -> Vec<Forced> {
        let mut rest = lead;
        let mut literal = self.lead.as_slice();
        for index in 0..=self.wilds.len() {
            let Some(behind) = rest.strip_prefix(literal) else {
                let forced = literal.strip_prefix(rest).map(<[u8]>::to_vec);
                return forced.map_or_else(Vec::new, |forced| match self.wilds.get(index) {
                    Some(_) => vec![Forced::Under(forced)],
                    None => self.end(forced),
                });
            };
            rest = behind;
            let Some(wild) = self.wilds.get(index) else { break };
            let Some(end) = rest.iter().position(|byte| self.separators.contains(*byte)) else {
                // The segment may continue.
                return vec![Forced::Under(Vec::new())];
            };
            let (segment, behind) = rest.split_at(end);
            if !segment.ends_with(&wild.suffix) {
                return Vec::new();
            }
            (rest, literal) = (behind, &wild.then);
        }
        match self.tail {
            _ if rest.is_empty() => self.end(Vec::new()),
            Tail::Anything => vec![Forced::Under(Vec::new())],
            Tail::Under(separator) if rest.first() == Some(&separator) => {
                vec![Forced::Under(Vec::new())]
            }
            Tail::Under(_) | Tail::Nothing => Vec::new(),
        }
    }

    /// Returns the keys of this text and the tail.
    fn end(&self, text: Vec<u8>) -> Vec<Forced> {
        match self.tail {
            Tail::Nothing => vec![Forced::One(text)],
            Tail::Anything => vec![Forced::Under(text)],
            Tail::Under(separator) => {
                let under = [text.as_slice(), &[separator]].concat();
                vec![Forced::One(text), Forced::Under(under)]
            }
        }
    }

    /// Returns `true` if the only byte that ends a segment is the one before `**`.
    fn is_divided_by_its_tail(&self) -> bool {
        let Separators { slash, colon } = self.separators;
        match self.tail {
            Tail::Under(b'/') => slash && !colon,
            Tail::Under(_) => colon && !slash,
            Tail::Nothing | Tail::Anything => false,
        }
    }
}

impl Wild {
    /// Returns `true` if the wildcard catches a whole rest of a segment, of any bytes.
    fn catches_all(&self) -> bool {
        self.name.is_none() && self.suffix.is_empty() && self.then.is_empty()
    }

    /// Splits `rest` into the caught text and the text behind the literals that follow it.
    fn catch<'a>(&self, rest: &'a [u8], separators: Separators) -> Option<(&'a [u8], &'a [u8])> {
        let end = rest.iter().position(|byte| separators.contains(*byte)).unwrap_or(rest.len());
        let (segment, rest) = rest.split_at(end);
        let caught = segment.strip_suffix(self.suffix.as_slice())?;
        Some((caught, rest.strip_prefix(self.then.as_slice())?))
    }
}

/// A parsed segment: `before`, and a wildcard with the text behind it.
struct Segment<'t> {
    before: &'t str,
    wild: Option<(Option<&'t str>, &'t str)>,
}

impl<'t> Segment<'t> {
    fn parse(text: &'t str) -> Result<Self, String> {
        if text.contains("**") {
            return Err("has ** anywhere but at the end, after a separator".to_owned());
        }
        let Some(at) = text.find(['*', '{', '}']) else {
            return Ok(Self { before: text, wild: None });
        };
        let (before, rest) = text.split_at(at);
        let (name, after) = match rest.strip_prefix('*') {
            Some(after) => (None, after),
            None => {
                let (name, after) = rest
                    .strip_prefix('{')
                    .and_then(|rest| rest.split_once('}'))
                    .filter(|(name, _)| is_name(name))
                    .ok_or("catches text as {name}, and writes other braces as %7B and %7D")?;
                (Some(name), after)
            }
        };
        if after.contains(['*', '{', '}']) {
            return Err("has two wildcards in a segment; at most one can be in each".to_owned());
        }
        Ok(Self { before, wild: Some((name, after)) })
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Refuses segments that a lock name cannot have.
fn check_dots(segment: &str) -> Result<(), String> {
    match segment {
        "" => Err("has an empty segment (a slash at an end, or two in a row); where keys really \
                   have one, write the slash as %2F"
            .to_owned()),
        "." | ".." => Err(format!("has a segment \"{segment}\"; write its dots as %2E")),
        _ => Ok(()),
    }
}

/// Returns the bytes of literal text.
fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '%' => {
                let digits = rest.as_str().get(..2).filter(|text| is_hex(text));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.push(byte.ok_or("has a % without two hexadecimal digits behind it")?);
                rest = rest.as_str().get(2..).unwrap_or_default().chars();
            }
            '.' | '_' | ':' | '/' | '-' => bytes.push(c as u8),
            _ if c.is_ascii_alphanumeric() => bytes.push(c as u8),
            _ => {
                let mut utf8 = [0; 4];
                let escaped: String =
                    c.encode_utf8(&mut utf8).bytes().map(|byte| format!("%{byte:02X}")).collect();
                return Err(format!("its pattern contains {c:?}; write it as {escaped}"));
            }
        }
    }
    Ok(bytes)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
