//! What a store says of itself: what its probe showed, and what could void it.

use fence_protocol::wire::fence::Guarantee;

/// What a store is, what its start-up probe showed, and which gaps its set-up leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReport {
    /// `memory`, `embedded`, `redis`, `http`, …
    pub kind: &'static str,
    /// Where it is, without a password.
    pub target: String,
    /// What the probe showed (invariant G7: never more than that).
    pub guarantee: Guarantee,
    /// What the probe did and saw, in words.
    pub probe: String,
    /// What can void the guarantee as it is set up, a whole sentence each.
    pub gaps: Vec<String>,
}

/// Shown by a probe; without one a store promises nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Option<String>);

impl Shown {
    /// The probe passed; `words` say what it saw.
    pub(super) fn atomic(words: String) -> Self {
        Self(Some(words))
    }

    /// What may be claimed.
    pub(super) fn guarantee(&self) -> Guarantee {
        match self.0 {
            Some(_) => Guarantee::Atomic,
            None => Guarantee::Observe,
        }
    }

    /// What was seen.
    pub(super) fn words(&self) -> String {
        self.0.clone().unwrap_or_else(|| "not probed".to_owned())
    }
}
