//! Metrics of a quorum.

use prometheus_client::metrics::counter::Counter;
use service_kit::Kit;

/// Counters of this server.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    /// New views that this server brought about.
    pub(super) view_bumps: Counter,
    /// Nodes that were found to have lost their memory.
    pub(super) amnesia: Counter,
    /// Rounds of a proposal beyond its first.
    pub(super) extra_rounds: Counter,
    /// Rounds in which no proposer had a majority.
    pub(super) split_votes: Counter,
}

impl Counters {
    pub(super) fn new(kit: &Kit) -> Self {
        let counter = |name, help| kit.metrics.counter(name, help);
        Self {
            view_bumps: counter(
                "lock_quorum_view_bumps",
                "New views of the quorum that this server brought about",
            ),
            amnesia: counter(
                "lock_quorum_amnesia",
                "Nodes of the quorum that this server found without their memory",
            ),
            extra_rounds: counter(
                "lock_quorum_extra_rounds",
                "Rounds of votes beyond the first of a proposal",
            ),
            split_votes: counter(
                "lock_quorum_split_votes",
                "Rounds of votes in which no proposer had a majority",
            ),
        }
    }
}
