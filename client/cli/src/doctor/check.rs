//! One check and its result.

use fence_terminal::color::{BAD, FAINT, GOOD, STRONG, WARNING, painted};
use serde::Serialize;

/// From good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// Nothing is wrong, and an operator should know it.
    Note,
    Warning,
    Failing,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// Subject of the check.
    pub(super) about: String,
    /// Verdict on the subject.
    pub(super) verdict: Verdict,
    /// Finding and advice.
    pub(super) text: String,
}

impl Check {
    fn new(verdict: Verdict, about: impl Into<String>, text: impl Into<String>) -> Self {
        Self { about: about.into(), verdict, text: text.into() }
    }

    pub(super) fn ok(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, about, text)
    }

    pub(super) fn information(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Verdict::Note, about, text)
    }

    pub(super) fn warning(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, about, text)
    }

    pub(super) fn failing(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Verdict::Failing, about, text)
    }
}

/// A line a finding, and a summary.
pub(super) fn table(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let sign = match check.verdict {
            Verdict::Ok => painted(GOOD, "[+]"),
            Verdict::Note => painted(FAINT, "[ ]"),
            Verdict::Warning => painted(WARNING, "[!]"),
            Verdict::Failing => painted(BAD, "[-]"),
        };
        text.push_str(&format!("{sign} {}: {}\n", painted(STRONG, &check.about), check.text));
    }
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let warnings = count(Verdict::Warning);
    let failing = count(Verdict::Failing);
    text + &match (warnings, failing) {
        (0, 0) if count(Verdict::Ok) == 0 => "nothing fails, and nothing was shown\n".to_owned(),
        (0, 0) => "everything is fine\n".to_owned(),
        _ => format!("{failing} failing, {warnings} warnings\n"),
    }
}
