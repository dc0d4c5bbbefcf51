//! Self-description of a store: the result of its probe, and its gaps.

use fence_protocol::wire::fence::Guarantee;

/// Kind of a store, result of its start-up probe, and the gaps of its set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReport {
    /// `memory`, `embedded`, `redis`, `http`, …
    pub kind: &'static str,
    /// Address, without a password.
    pub target: String,
    /// Guarantee that the probe showed (invariant G7: never more than that).
    pub guarantee: Guarantee,
    /// Actions and result of the probe, in words.
    pub probe: String,
    /// Gaps that the set-up leaves.
    pub gaps: Gaps,
}

/// Properties of a set-up that can void the guarantee, a whole sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Those that other settings of the store would close.
    pub avoidable: Vec<String>,
    /// Those of the store's nature.
    pub inherent: Vec<String>,
}

impl Gaps {
    /// Gaps that no setting closes.
    pub(crate) fn inherent(sentences: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let inherent = sentences.into_iter().map(Into::into).collect();
        Self { avoidable: Vec::new(), inherent }
    }
}

/// Result of a probe; without one a store promises nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Option<String>);

impl Shown {
    /// A passed probe; `words` describe its result.
    pub(super) fn atomic(words: String) -> Self {
        Self(Some(words))
    }

    /// Returns the guarantee that may be claimed.
    pub(super) fn guarantee(&self) -> Guarantee {
        match self.0 {
            Some(_) => Guarantee::Atomic,
            None => Guarantee::Observe,
        }
    }

    /// Returns the description of the result.
    pub(super) fn words(&self) -> String {
        self.0.clone().unwrap_or_else(|| "not probed".to_owned())
    }
}
