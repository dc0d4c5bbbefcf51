//! Readiness of the service: a list of named checks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use crate::notify;

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// All is well.
    Ok,
    /// All is well; the text is for the operator.
    Info(String),
    /// The service works, but an operator should act: what is wrong, and what to do.
    Warn(String),
    /// The service waits for its turn to work, as it should: not ready, and no fault.
    Standby(String),
    /// The service cannot do its work: why, and what to do.
    Failing(String),
}

impl Status {
    fn is_unready(&self) -> bool {
        matches!(self, Self::Standby(_) | Self::Failing(_))
    }
}

/// The checks of a service. Cheap to clone; all clones are the same.
///
/// A service without checks is ready. A check is made by the part that knows, which sets its
/// status whenever that changes: asking for readiness does no work.
#[derive(Clone, Debug, Default)]
pub struct Health {
    checks: Arc<RwLock<BTreeMap<String, Status>>>,
}

impl Health {
    /// No checks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a check, and logs when it changed.
    pub fn set(&self, name: impl Into<String>, status: Status) {
        let name = name.into();
        let mut checks = self.checks.write().unwrap_or_else(PoisonError::into_inner);
        if checks.get(&name) == Some(&status) {
            return;
        }
        log(&name, &status);
        checks.insert(name, status);
        drop(checks);
        notify::status(&self.report(false).summary());
    }

    /// Removes a check.
    pub fn remove(&self, name: &str) {
        self.checks.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// True if no check fails.
    pub fn is_ready(&self) -> bool {
        self.report(false).ready
    }

    /// All checks as they are now; shutting down counts as a check that fails.
    pub fn report(&self, shutting_down: bool) -> Report {
        let mut checks: Vec<(String, Status)> = {
            let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
            checks.iter().map(|(name, status)| (name.clone(), status.clone())).collect()
        };
        if shutting_down {
            checks.push(("shutdown".to_owned(), Status::Failing("has begun".to_owned())));
        }
        let ready = !checks.iter().any(|(_, status)| status.is_unready());
        Report { ready, checks }
    }
}

fn log(name: &str, status: &Status) {
    match status {
        Status::Ok => tracing::debug!(check = name, "check is ok"),
        Status::Info(text) => tracing::info!(check = name, "{text}"),
        Status::Standby(text) => tracing::info!(check = name, "standby: {text}"),
        Status::Warn(text) => tracing::warn!(check = name, "{text}"),
        Status::Failing(text) => tracing::error!(check = name, "{text}"),
    }
}

/// Body of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// True if no check fails.
    pub ready: bool,
    /// Every check by name.
    pub checks: Vec<(String, Status)>,
}

impl Report {
    /// A line a check, and a last line with the verdict.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.checks.iter().for_each(|(name, status)| line(&mut text, name, status));
        text.push_str(if self.ready { "ready\n" } else { "not ready\n" });
        text
    }

    /// The verdict, with warnings and failures, in one line.
    pub fn summary(&self) -> String {
        let verdict = if self.ready { "ready" } else { "not ready" };
        let is_problem = |status: &Status| status.is_unready() || matches!(status, Status::Warn(_));
        let mut text = verdict.to_owned();
        for (name, status) in self.checks.iter().filter(|(_, status)| is_problem(status)) {
            text.push_str("; ");
            line(&mut text, name, status);
            text.truncate(text.trim_end().len());
        }
        text.replace('\n', " ")
    }

    /// A line a check that is not ready.
    pub fn failing_text(&self) -> String {
        let mut text = String::new();
        for (name, status) in &self.checks {
            if status.is_unready() {
                line(&mut text, name, status);
            }
        }
        text
    }
}

fn line(out: &mut String, name: &str, status: &Status) {
    // Writing to a String does not fail.
    let _ = match status {
        Status::Ok => writeln!(out, "[+]{name} ok"),
        Status::Info(text) => writeln!(out, "[+]{name} {text}"),
        Status::Warn(text) => writeln!(out, "[!]{name} warning: {text}"),
        Status::Standby(text) => writeln!(out, "[-]{name} standby: {text}"),
        Status::Failing(text) => writeln!(out, "[-]{name} failed: {text}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_ready_and_a_failure_is_not() {
        let health = Health::new();
        assert!(health.is_ready());
        health.set("store", Status::Ok);
        health.set("guarantee", Status::Info("strict".to_owned()));
        health.set("persistence", Status::Warn("appendfsync is everysec".to_owned()));
        assert!(health.is_ready());
        health.set("store", Status::Failing("unreachable".to_owned()));
        let report = health.report(false);
        assert!(!report.ready);
        assert_eq!(
            report.text(),
            "[+]guarantee strict\n[!]persistence warning: appendfsync is everysec\n[-]store failed: unreachable\nnot ready\n"
        );
        assert_eq!(report.failing_text(), "[-]store failed: unreachable\n");
        assert_eq!(
            report.summary(),
            "not ready; [!]persistence warning: appendfsync is everysec; [-]store failed: unreachable"
        );
        health.set("store", Status::Standby("a leads".to_owned()));
        assert!(!health.is_ready());
        assert_eq!(health.report(false).failing_text(), "[-]store standby: a leads\n");
        health.remove("guarantee");
        health.remove("store");
        assert!(health.is_ready());
        assert!(!health.report(true).ready, "shutting down is not ready");
    }
}
