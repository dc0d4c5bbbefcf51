//! Selection of refusals for the next report. Pure.

use std::collections::VecDeque;

use fence_protocol::wire::event::{REFUSALS_MAX, RefusalsReport, ReportedRefusal};

use http::HeaderValue;

use super::Waiting;

/// Maximum size of a report's refusals as JSON, in bytes: a lock server reads 64 KiB.
const BYTES_MAX: usize = 48 * 1024;

/// Refusals to be reported next, oldest first: not many more than fit into a report.
#[derive(Debug, Default)]
pub(super) struct Batches {
    waiting: VecDeque<Waiting>,
    /// Number of refusals at the front that are sent one by one, because together they were
    /// refused.
    alone: usize,
}

impl Batches {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < REFUSALS_MAX
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Returns the next report. Its refusals stay queued until [`Self::taken`].
    pub(super) fn next(&self, dropped: u64, now_ms: u64) -> RefusalsReport {
        let count = if self.alone > 0 { 1 } else { REFUSALS_MAX };
        let mut bytes = 0;
        let refusals = self
            .waiting
            .iter()
            .take(count)
            .map(|Waiting { refusal, at_ms, .. }| {
                let ms_ago = now_ms.saturating_sub(*at_ms);
                ReportedRefusal { ms_ago, ..refusal.clone() }
            })
            .take_while(|refusal| {
                bytes += serde_json::to_vec(refusal).map_or(0, |json| json.len() + 1);
                bytes <= BYTES_MAX
            })
            .collect();
        RefusalsReport { refusals, dropped }
    }

    /// Trace of the oldest refusal: the report is a part of it.
    pub(super) fn trace(&self) -> Option<&HeaderValue> {
        self.waiting.front()?.trace.as_ref()
    }

    /// Removes the first `count`.
    pub(super) fn taken(&mut self, count: usize) {
        self.waiting.drain(..count.min(self.waiting.len()));
        self.alone = self.alone.saturating_sub(count);
    }

    /// Sends the first `count` one by one: they were refused together, and perhaps only one is at
    /// fault.
    pub(super) fn one_by_one(&mut self, count: usize) {
        self.alone = count;
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::{LockName, Owner, Token};

    use super::*;
    use crate::verdict::tests::mark;

    fn waiting(token: u64, text: &str) -> Waiting {
        let refusal = ReportedRefusal {
            lock: LockName::new(&"l".repeat(256)).unwrap(),
            token: Token::new(token).unwrap(),
            lease_id: mark(token, 1).lease,
            mark: Token::new(99).unwrap(),
            operation: text.repeat(256 / text.len()),
            owner: Owner::new("\\".repeat(256)).ok(),
            ms_ago: 0,
        };
        Waiting { refusal, at_ms: token, trace: None }
    }

    fn tokens(report: &RefusalsReport) -> Vec<u64> {
        report.refusals.iter().map(|refusal| refusal.token.get()).collect()
    }

    #[test]
    fn a_report_is_small_enough_for_a_lock_server() {
        let mut batches = Batches::default();
        let mut token = 0;
        while batches.has_room() {
            token += 1;
            batches.push(waiting(token, "\\"));
        }
        let mut seen = Vec::new();
        while !batches.is_empty() {
            let report = batches.next(u64::MAX, 1_000);
            assert!(serde_json::to_vec(&report).unwrap().len() < 60 * 1024);
            assert_eq!(report.refusals[0].ms_ago, 1_000 - report.refusals[0].token.get());
            let reported = tokens(&report);
            assert_eq!(tokens(&batches.next(0, 1_000)), reported, "it stays until it is taken");
            batches.taken(reported.len());
            seen.extend(reported);
        }
        assert_eq!(seen, (1..=REFUSALS_MAX as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_refused_batch_is_sent_one_by_one() {
        let mut batches = Batches::default();
        (1..=4).for_each(|token| batches.push(waiting(token, "a")));
        batches.one_by_one(3);
        batches.push(waiting(5, "a"));
        for token in 1..=3 {
            assert_eq!(tokens(&batches.next(0, 0)), [token]);
            batches.taken(1);
        }
        assert_eq!(tokens(&batches.next(0, 0)), [4, 5]);
    }
}
