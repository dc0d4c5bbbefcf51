//! Right side of a rule: the lock, or a word.

use fence_protocol::LockName;

use super::pattern::Pattern;

/// Protection that a rule gives to its keys.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Open,
    Deny,
    /// One lock for all keys, made once.
    Fixed(LockName),
    /// A lock made from caught text.
    Built(Vec<Part>),
}

#[derive(Clone, Debug)]
pub(super) enum Part {
    Text(String),
    /// Text caught by the wildcard of this number.
    Capture(usize),
}

impl Target {
    pub(super) fn parse(text: &str, pattern: &Pattern) -> Result<Self, String> {
        match text {
            "@open" => return Ok(Self::Open),
            "@deny" => return Ok(Self::Deny),
            _ if text.starts_with('@') => {
                return Err(format!("has an unknown word \"{text}\"; there are @open and @deny"));
            }
            _ => {}
        }
        let parts = parts(text, pattern)?;
        let mut is_fixed = true;
        let mut sample = String::new();
        for part in &parts {
            match part {
                Part::Text(text) => sample.push_str(text),
                Part::Capture(_) => {
                    is_fixed = false;
                    sample.push('x');
                }
            }
        }
        let name =
            LockName::new(&sample).map_err(|error| format!("makes no lock name: {error}"))?;
        Ok(if is_fixed { Self::Fixed(name) } else { Self::Built(parts) })
    }
}

fn parts(text: &str, pattern: &Pattern) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, tail) = after.split_once('}').ok_or("has a \"{\" without its \"}\"")?;
        let index = pattern
            .index_of(name)
            .ok_or_else(|| format!("uses {{{name}}}, which its pattern does not catch"))?;
        parts.push(Part::Text(before.to_owned()));
        parts.push(Part::Capture(index));
        rest = tail;
    }
    parts.push(Part::Text(rest.to_owned()));
    parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    Ok(parts)
}
