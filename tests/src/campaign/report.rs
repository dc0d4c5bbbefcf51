//! Counts of a row, as a table and as JSON.

use serde_json::{Value, json};

use super::Row;

/// Counts of one row.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Faults that the engine got.
    pub rounds: usize,
    /// Grants that reached a client.
    pub grants: usize,
    /// L1: grants whose token is another's, or not above an earlier one.
    pub token_breaks: Vec<String>,
    /// L2: grants of a lock of which another lease was certainly live.
    pub overlaps: Vec<String>,
    /// L4: leases that a server called gone before their time.
    pub lost_leases: Vec<String>,
    /// The longest time without a grant after a fault, of the middle one of all faults.
    pub gap_median_ms: u64,
    /// The longest time without a grant after a fault, of the worst fault.
    pub gap_longest_ms: u64,
}

impl Counts {
    /// `true` if L1 is broken where the engine promises it.
    pub fn breaks_promise(&self, row: &Row) -> bool {
        row.promise.is_some() && !self.token_breaks.is_empty()
    }
}

/// The rows as a Markdown table.
pub fn markdown(results: &[(Row, Counts)]) -> String {
    let mut text = "\
| engine | fault | flags of lock-server | rounds | grants | L1 promised | L1 broken | L2 broken | \
leases lost | no grant for, median | longest |
| --- | --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |
"
    .to_owned();
    for (row, counts) in results {
        let flags =
            if row.flags.is_empty() { "-".to_owned() } else { format!("`{}`", row.flags_text()) };
        text += &format!(
            "| {} | {} | {flags} | {} | {} | {} | {} | {} | {} | {} ms | {} ms |\n",
            row.engine,
            row.fault,
            counts.rounds,
            counts.grants,
            if row.promise.is_some() { "yes" } else { "no" },
            counts.token_breaks.len(),
            counts.overlaps.len(),
            counts.lost_leases.len(),
            counts.gap_median_ms,
            counts.gap_longest_ms,
        );
    }
    text
}

/// The rows as one JSON value, with the text of every finding.
pub fn json(results: &[(Row, Counts)], seed: u64) -> Value {
    let rows = results.iter().map(|(row, counts)| {
        json!({
            "engine": row.engine,
            "fault": row.fault,
            "flags": row.flags,
            "rounds": counts.rounds,
            "grants": counts.grants,
            "l1_promised": row.promise.is_some(),
            "l1_broken": counts.token_breaks,
            "l2_broken": counts.overlaps,
            "leases_lost": counts.lost_leases,
            "gap_median_ms": counts.gap_median_ms,
            "gap_longest_ms": counts.gap_longest_ms,
        })
    });
    json!({"seed": seed, "rows": rows.collect::<Vec<_>>()})
}
