//! Texts that report the state of a node.

use crate::engines::redis::judge::Finding;

/// Steps of reported times, in seconds, and their names: a text that changed every second would be
/// logged every second. Above an hour it is given in hours.
const STEPS: [(u64, &str); 12] = [
    (1, "1 s"),
    (2, "2 s"),
    (5, "5 s"),
    (10, "10 s"),
    (20, "20 s"),
    (30, "30 s"),
    (60, "60 s"),
    (120, "2 min"),
    (300, "5 min"),
    (600, "10 min"),
    (1_800, "30 min"),
    (3_600, "60 min"),
];

/// That a node has rejoined and does not vote yet.
pub(super) fn joins(ms: u64) -> String {
    let within = STEPS.iter().find(|(step, _)| *step * 1_000 >= ms);
    let within = within
        .map_or_else(|| format!("{} h", ms.div_ceil(3_600_000)), |(_, name)| (*name).to_owned());
    format!(
        "it has rejoined, and votes within {within}: when every lease that it may have forgotten is over"
    )
}

/// That a node does not vote, and what it refused the last time that it was to be brought back.
pub(super) fn is_not(why: &str, refusal: Option<&str>) -> String {
    refusal.map_or_else(|| why.to_owned(), |refusal| format!("{why}: {refusal}"))
}

/// Returns the findings on a node's settings in a quorum's words; `None` if there are none.
pub(super) fn findings(findings: &[Finding]) -> Option<String> {
    let texts: Vec<String> = findings.iter().map(finding).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn finding(finding: &Finding) -> String {
    match finding.about {
        "appendonly" | "appendfsync" | "no-appendfsync-on-rewrite" => {
            let setting = finding.text.split(':').next().unwrap_or_default();
            format!(
                "{setting}: a restart may forget votes, so this node will not vote after one until \
                 the longest lease is over; set appendonly yes, appendfsync always and \
                 no-appendfsync-on-rewrite no"
            )
        }
        "clock" => format!(
            "{}; only mutual exclusion depends on it, tokens do not",
            rounded(finding.text.split(':').next().unwrap_or_default())
        ),
        _ => finding.text.clone(),
    }
}

/// The text with its milliseconds rounded to seconds, and to minutes above ten of them: to the
/// nearest, because clocks that are wrong are mostly wrong by whole ones, a little more or less
/// each time.
fn rounded(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let at = words.iter().position(|word| *word == "ms").and_then(|at| at.checked_sub(1));
    let Some((at, ms)) = at.and_then(|at| Some((at, words[at].parse::<i64>().ok()?))) else {
        return text.to_owned();
    };
    let nearest = |unit: i64| (ms + unit / 2 * ms.signum()) / unit;
    let shown = match ms.unsigned_abs() {
        600_000.. => format!("{} min", nearest(60_000)),
        10_000.. => format!("{} s", nearest(1_000)),
        _ => format!("{} ms", nearest(100) * 100),
    };
    format!("{}{shown}{}", join(&words[..at], "", " "), join(&words[at + 2..], " ", ""))
}

fn join(words: &[&str], before: &str, after: &str) -> String {
    if words.is_empty() { String::new() } else { format!("{before}{}{after}", words.join(" ")) }
}

/// Returns whether a finding means that a restart may forget votes.
pub(super) fn is_lax(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| {
        ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "persistence"]
            .contains(&finding.about)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_is_reported_in_steps() {
        assert!(joins(700).contains("within 1 s"));
        assert!(joins(15_500).contains("within 20 s"));
        assert!(joins(3_599_000).contains("within 60 min"));
        // The text stays for an hour, whatever the seconds are.
        assert!(joins(7_199_000).contains("within 2 h"));
        assert_eq!(joins(7_199_000), joins(3_600_001));
    }

    /// A value that changes slightly at every probe is reported in the same words.
    #[test]
    fn clocks_are_reported_in_round_numbers() {
        for (from, to) in [
            ("is 3600003 ms from this machine's", "is 60 min from this machine's"),
            ("is 3599996 ms from this machine's", "is 60 min from this machine's"),
            ("is -61003 ms from this machine's", "is -61 s from this machine's"),
            ("is -60996 ms from this machine's", "is -61 s from this machine's"),
            ("moved by 743 ms against ours", "moved by 700 ms against ours"),
            ("is paused", "is paused"),
        ] {
            assert_eq!(rounded(from), to);
        }
    }
}
