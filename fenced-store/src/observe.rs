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
/// Maximum size in bytes, as JSON, of the lines that are listed. Lock servers read 64 KiB of a
/// guard's reply, which has a few more.
const LISTED_BYTES_MAX: usize = 48 * 1024;
/// Bytes of a line beside the rule, as JSON: names, the longest code, and a count.
const LINE_BYTES: usize = 96;
/// The rule of lines that count several.
const OTHER: &str = "other";
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
            key.0 = OTHER.to_owned();
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

    /// Returns rules and codes with their counts of what observe mode let pass, in the order of the
    /// rules' texts: the highest counts, as far as `LISTED_BYTES_MAX` reach. The rest is in one
    /// line a code, with the rule `other`.
    pub fn lines(&self) -> Vec<WouldRefuse> {
        if self.mode == Mode::Enforce {
            return Vec::new();
        }
        let mut all: Vec<WouldRefuse> = {
            let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            let line = |((rule, code), line): (&(String, &'static str), &Line)| WouldRefuse {
                rule: rule.clone(),
                code: (*code).to_owned(),
                total: line.total,
            };
            lines.iter().map(line).collect()
        };
        all.sort_by_key(|line| std::cmp::Reverse(line.total));
        let mut bytes_left = LISTED_BYTES_MAX;
        let mut listed = BTreeMap::new();
        for WouldRefuse { mut rule, code, total } in all {
            match bytes_left.checked_sub(json_bytes(&rule) + LINE_BYTES) {
                Some(rest) => bytes_left = rest,
                None => {
                    bytes_left = 0;
                    OTHER.clone_into(&mut rule);
                }
            }
            *listed.entry((rule, code)).or_default() += total;
        }
        let line = |((rule, code), total)| WouldRefuse { rule, code, total };
        listed.into_iter().map(line).collect()
    }
}

/// Length of a text in JSON, without its quotes, or more.
fn json_bytes(text: &str) -> usize {
    let escaped = |byte: u8| if byte < b' ' { 6 } else { 1 + usize::from(b"\"\\".contains(&byte)) };
    text.bytes().map(escaped).sum()
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
        assert_eq!(observer.lines.lock().unwrap().len(), MAX_LINES + 1);
    }

    #[test]
    fn the_list_has_the_highest_counts_and_the_sum_of_the_rest() {
        let observer = observer(Mode::Observe);
        let rule = |number: usize| format!("\"{}\"\n{number}", "x".repeat(300));
        for number in 0..256 {
            for code in [Code::TokenRequired, Code::StaleToken] {
                (0..=number % 7).for_each(|_| assert!(observer.passes(code, &rule(number), "PUT")));
            }
        }
        let lines = observer.lines();
        let bytes = serde_json::to_vec(&lines).unwrap().len();
        assert!((LISTED_BYTES_MAX / 2..=LISTED_BYTES_MAX + 1024).contains(&bytes), "{bytes}");
        let (others, listed): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.rule == OTHER);
        assert_eq!(others.len(), 2, "{others:?}");
        assert!(listed.iter().all(|line| line.total >= 6), "{listed:?}");
        let sum: u64 = lines.iter().map(|line| line.total).sum();
        assert_eq!(sum, (0..256).map(|number| 2 * (number % 7 + 1)).sum::<u64>());
    }
}
