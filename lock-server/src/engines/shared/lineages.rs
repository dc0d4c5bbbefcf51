//! Reports of lineages, of every engine that has some.

use prometheus_client::metrics::counter::Counter;
use service_kit::Kit;
use service_kit::health::Status;

/// Registers the metric of lineages that this server began.
pub(crate) fn begun(kit: &Kit) -> Counter {
    let begun = Counter::default();
    kit.metrics.registry(|registry| {
        registry.register(
            "lock_lineages_begun",
            "New lineages that this server began: each lifted the token counter",
            begun.clone(),
        );
    });
    begun
}

/// The readiness check `lineage`, after so many lineages that began since this server started.
pub(crate) fn status(store: &str, changes: u64) -> Status {
    match changes {
        0 => Status::Ok,
        changes => Status::Warn(format!(
            "{store} may have lost tokens {changes} times since this server started; they were \
             lifted above everything issued before"
        )),
    }
}
