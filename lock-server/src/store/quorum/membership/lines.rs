//! What people read of a node.

use crate::store::redis::judge::Finding;

/// Steps of what is told, in seconds: a text that changed every second would be logged every second.
const STEPS_S: [u64; 12] = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600];

/// That a node has rejoined and does not vote yet.
pub(super) fn joins(ms: u64) -> String {
    let within = STEPS_S.iter().find(|step| **step * 1_000 >= ms);
    let within = within.map_or_else(|| format!("{} s", ms / 1_000), |step| format!("{step} s"));
    format!(
        "it has rejoined, and votes within {within}: when every lease that it may have forgotten is over"
    )
}

/// What was found of a node's settings, in a quorum's words; none where all is well.
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
            finding.text.split(':').next().unwrap_or_default()
        ),
        _ => finding.text.clone(),
    }
}

/// Whether what was found means that a restart may forget votes.
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
    fn what_is_left_is_told_in_steps() {
        assert!(joins(700).contains("within 1 s"));
        assert!(joins(15_500).contains("within 20 s"));
        assert!(joins(7_200_000).contains("within 7200 s"));
    }
}
