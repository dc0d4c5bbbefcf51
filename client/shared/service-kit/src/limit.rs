//! Limits that flags set.

/// Parses a limit that lets something through.
///
/// # Errors
/// A sentence with the value.
pub fn parse(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| format!("{text:?} is out of range: at least 1"))
}
