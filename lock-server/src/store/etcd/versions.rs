//! Which versions of etcd are used, and which of them have a fault that is to be known of.

use super::gateway::Gateway;

/// The oldest etcd that is used: its gateway is at /v3/.
const OLDEST: (u64, u64) = (3, 4);
/// In earlier ones of these a leader that stood still, and does not know yet that it leads no more,
/// has leases ended that were renewed meanwhile (etcd's issues 12528 and 15247).
const MENDED: [(u64, u64, u64); 2] = [(3, 4, 31), (3, 5, 13)];
/// How long what was found of the members is believed, in milliseconds: they are updated one by one.
const BELIEVED_MS: u64 = 60_000;

/// # Errors
/// A sentence where etcd does not answer, or is too old.
pub(super) async fn check(gateway: &Gateway) -> Result<(), String> {
    let status = gateway.status().await.map_err(|error| error.to_string())?;
    judge(&status.version).map_err(|reason| format!("{}: {reason}", gateway.current_url()))
}

fn judge(version: &str) -> Result<(), String> {
    let (major, minor, _) = numbers(version);
    match (major, minor) {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => Ok(()),
        _ => Err(format!(
            "this etcd has version {version:?}; Fencepost needs {}.{} or later",
            OLDEST.0, OLDEST.1
        )),
    }
}

/// What is known of the faults of the members' versions.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// When, by the monotonic clock.
    looked_ms: Option<u64>,
    found: Option<String>,
}

impl Faults {
    /// A sentence where a version has a fault, which is asked for now and then.
    pub(super) async fn of(&mut self, gateway: &Gateway, now_ms: u64) -> Option<&str> {
        if self.looked_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= BELIEVED_MS) {
            let versions = gateway.versions().await;
            let at_fault = versions.into_iter().find(|version| ends_renewed_leases(version));
            // A single member has no other one to lead in its place.
            let alone = at_fault.is_some() && gateway.member_count().await == Some(1);
            self.found = at_fault.filter(|_| !alone).map(|version| fault(&version));
            self.looked_ms = Some(now_ms);
        }
        self.found.as_deref()
    }
}

fn fault(version: &str) -> String {
    format!(
        "etcd {version} has a fault: a leader that stood still ends leases that were renewed \
         meanwhile; use 3.4.31, 3.5.13 or 3.6 at least"
    )
}

fn ends_renewed_leases(version: &str) -> bool {
    let (Some(major), Some(minor), patch) = numbers(version) else { return false };
    let patch = patch.unwrap_or(0);
    MENDED.iter().any(|first| (major, minor) == (first.0, first.1) && patch < first.2)
}

/// Its three numbers, as far as it has them: a release candidate is one of its release.
fn numbers(version: &str) -> (Option<u64>, Option<u64>, Option<u64>) {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u64>().ok());
    let mut next = || parts.next().flatten();
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for version in ["3.4.23", "3.5.0", "3.10.1", "4.0.0-rc.1"] {
            assert_eq!(judge(version), Ok(()), "{version}");
        }
        for version in ["3.3.27", "2.9.0", "", "etcd"] {
            assert!(judge(version).unwrap_err().contains(version));
        }
    }

    #[test]
    fn the_fault_is_of_the_releases_before_it_was_mended() {
        for version in ["3.4.0", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.5.0-rc.1"] {
            assert!(ends_renewed_leases(version), "{version}");
        }
        for version in ["3.4.31", "3.4.45", "3.5.13", "3.6.0", "3.6.0-rc.1", "3.10.1", "4.0.0"] {
            assert!(!ends_renewed_leases(version), "{version}");
        }
    }
}
