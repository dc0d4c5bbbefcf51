use std::fmt;

/// Characters of a refused value that an error shows; the rest is cut, so that a megabyte of input
/// does not end up in a log line.
const SHOWN_CHARS: usize = 80;

/// A value was refused where it was made.
///
/// The message names the thing, the value as it came (shortened, control characters escaped) and
/// the rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    what: &'static str,
    value: String,
    rule: String,
}

impl Invalid {
    /// `what` was given as `value`, which breaks `rule` (a clause such as "must not be empty").
    pub fn new(what: &'static str, value: impl AsRef<str>, rule: impl Into<String>) -> Self {
        Self { what, value: shown(value.as_ref()), rule: rule.into() }
    }

    /// The thing that was refused: `"lock name"`, `"token"`, …
    pub fn what(&self) -> &'static str {
        self.what
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\" {}", self.what, self.value, self.rule)
    }
}

impl std::error::Error for Invalid {}

fn shown(value: &str) -> String {
    let mut out: String =
        value.chars().take(SHOWN_CHARS).flat_map(|c| c.escape_debug()).collect::<String>();
    if value.chars().nth(SHOWN_CHARS).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_unprintable_values_are_shortened_and_escaped() {
        let error = Invalid::new("lock name", format!("a\0{}", "x".repeat(500)), "is too long");
        let text = error.to_string();
        assert!(text.starts_with("lock name \"a\\0xxx"), "{text}");
        assert!(text.ends_with("…\" is too long"), "{text}");
        assert!(text.len() < 200);
    }
}
