//! Fuzz targets: functions that take any bytes and panic if a parser breaks a promise.
//!
//! Built for tests and fuzz builds only; `tests/fuzz` runs them.

use service_kit::tls::ServerUrl;

use crate::doors::postgres::fuzz as postgres_port;
use crate::doors::redis::fuzz as redis_port;
use crate::fail_points::FailAt;
use crate::stores::open::StoreUrl;

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("resp-requests", redis_port::requests),
    ("resp-replies", redis_port::replies),
    ("commands", redis_port::commands),
    ("cluster-replies", redis_port::cluster_replies),
    ("postgres-frames", postgres_port::frames),
    ("rules", crate::rules::fuzz::rules),
    ("guard-records", crate::stores::fuzz::records),
    ("guard-settings", settings),
];

/// Password for the tests; no log may show it.
const PASSWORD: &str = "hunter2";

/// Parses settings, one a line. Displayed settings parse back, and show no password.
fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for line in text.lines() {
        let store = line.parse::<StoreUrl>();
        let server = line.parse::<ServerUrl>();
        let is_url = ["redis", "http"].iter().any(|scheme| line.starts_with(scheme));
        let before = line.rsplit_once('@').map_or("", |(before, _)| before);
        if is_url && before.contains(&format!(":{PASSWORD}")) && line.matches(PASSWORD).count() == 1
        {
            let store_text = store.as_ref().map_or_else(ToString::to_string, ToString::to_string);
            let server = server.as_ref().err();
            let shown = format!("{store_text} {store:?} {server:?}");
            assert!(!shown.contains(PASSWORD), "{line}: {shown}");
        }
        if let Ok(server) = server {
            assert_eq!(server.to_string().parse().as_ref(), Ok(&server), "{line}");
        }
        let _ = line.parse::<FailAt>();
    }
}

#[cfg(test)]
mod tests {
    use super::TARGETS;

    /// Inputs a target in the short run.
    const ROUNDS: u32 = 10_000;

    #[test]
    fn every_target_holds_in_a_short_run() {
        for (name, target) in TARGETS {
            fence_fuzz::short_run(name, *target, ROUNDS);
        }
    }
}
