//! Counts operations that the fence refuses, by rule. In observe mode it logs them and lets them
//! pass.
//!
//! That mode is for putting the guard before a system in use: clients adopt tokens one by one, and
//! the counts show which rules would still refuse a client. Meanwhile nothing is protected, and no
//! guarantee is claimed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fence_protocol::Code;
use fence_protocol::wire::fence::{Mode, WouldRefuse};
use service_kit::clock::Clock;

use crate::counters::Counters;

/// Maximum number of pairs of a rule and a code that are counted apart; there are at most 256
/// rules.
const MAX_LINES: usize = 4096;
/// Minimum time between two log lines of a rule and code, in milliseconds.
const LOG_EVERY_MS: u64 = 1000;

/// The code of commands that the Redis port refuses to every client.
const DENIED_COMMAND: &str = "denied-command";

/// Counts of operations that were refused, or would have been.
#[derive(Debug)]
pub struct Observer {
    mode: Mode,
    counters: Counters,
    clock: Arc<dyn Clock>,
    lines: Mutex<BTreeMap<(String, &'static str), Line>>,
}

#[derive(Debug, Default)]
struct Line {
    total: u64,
    logged_total: u64,
    log_again_ms: u64,
}

impl Observer {
    /// Makes an observer, which lets operations pass only in mode `observe`.
    pub fn new(mode: Mode, counters: Counters, clock: Arc<dyn Clock>) -> Self {
        Self { mode, counters, clock, lines: Mutex::default() }
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Counts a refused operation under `rule` (its text, or `default`), and returns `true` if it
    /// passes all the same. It is then logged, at most once a second for a rule and code.
    pub fn passes(&self, code: Code, rule: &str, detail: &str) -> bool {
        self.count(code.as_str(), rule, detail)
    }

    /// Counts a refused command of the Redis port under its name, and returns `true` if it passes
    /// all the same.
    pub(crate) fn passes_command(&self, name: &str) -> bool {
        self.count(DENIED_COMMAND, name, "the Redis port refuses this command")
    }

    fn count(&self, code: &'static str, rule: &str, detail: &str) -> bool {
        let now_ms = self.clock.monotonic_ms();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (rule.to_owned(), code);
        if lines.len() >= MAX_LINES && !lines.contains_key(&key) {
            key.0 = "other".to_owned();
        }
        match self.mode {
            Mode::Enforce => self.counters.refused(code, &key.0),
            Mode::Observe => self.counters.would_refuse(code, &key.0),
        }
        let line = lines.entry(key).or_default();
        line.total += 1;
        if self.mode == Mode::Enforce {
            return false;
        }
        let since = line.total - line.logged_total;
        let is_due = line.logged_total == 0 || now_ms >= line.log_again_ms;
        if is_due {
            line.logged_total = line.total;
            line.log_again_ms = now_ms + LOG_EVERY_MS;
            drop(lines);
            tracing::warn!(
                code,
                rule,
                since,
                "would be refused, and passes (observe mode): {detail}"
            );
        }
        true
    }

    /// Returns every rule and code with its count of what observe mode let pass, in the order of
    /// the rules' texts.
    pub fn lines(&self) -> Vec<WouldRefuse> {
        if self.mode == Mode::Enforce {
            return Vec::new();
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |((rule, code), line): (&(String, &'static str), &Line)| WouldRefuse {
            rule: rule.clone(),
            code: (*code).to_owned(),
            total: line.total,
        };
        lines.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use service_kit::Kit;
    use service_kit::clock::ManualClock;

    fn observer(mode: Mode) -> Observer {
        let counters = Counters::new(&Kit::new("test").metrics);
        Observer::new(mode, counters, Arc::new(ManualClock::new(0, 0)))
    }

    #[test]
    fn enforcing_lets_nothing_pass_and_counts_what_it_refuses() {
        let kit = Kit::new("test");
        let counters = Counters::new(&kit.metrics);
        let observer = Observer::new(Mode::Enforce, counters, Arc::new(ManualClock::new(0, 0)));
        assert!(!observer.passes(Code::StaleToken, "a=b", "PUT a"));
        assert_eq!(observer.lines(), []);
        let line = "fencepost_fence_refused_total{code=\"stale-token\",rule=\"a=b\"} 1\n";
        assert!(kit.metrics.encode().contains(line));
    }

    #[test]
    fn observing_counts_a_rule_and_code() {
        let observer = observer(Mode::Observe);
        for (code, rule) in
            [(Code::StaleToken, "b"), (Code::StaleToken, "a"), (Code::StaleToken, "b")]
        {
            assert!(observer.passes(code, rule, "PUT a"));
        }
        let line = |rule: &str, total| WouldRefuse {
            rule: rule.to_owned(),
            code: "stale-token".to_owned(),
            total,
        };
        assert_eq!(observer.lines(), [line("a", 1), line("b", 2)]);
    }

    #[test]
    fn memory_is_bounded() {
        let observer = observer(Mode::Observe);
        for rule in 0..MAX_LINES + 10 {
            assert!(observer.passes(Code::TokenRequired, &rule.to_string(), "PUT a"));
        }
        let lines = observer.lines();
        assert_eq!(lines.len(), MAX_LINES + 1);
        let other = lines.iter().find(|line| line.rule == "other").unwrap();
        assert_eq!(other.total, 10);
    }
}
