//! Start-up probe at the database: `atomic` is claimed only after it was just shown (invariant G7).

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::Namespace;
use postgres_link::PostgresTarget;
use service_kit::{Kit, ids};
use tokio_postgres::types::Type;

use super::PostgresStore;
use crate::stores::contract::FenceStore;
use crate::stores::probe as stores;

/// Guards of the probe, with a session each, so that their transactions really race.
const GUARDS: usize = 3;
/// Longest time for the probe's connections to close.
const CLOSE: Duration = Duration::from_secs(5);

/// Probes the database in a namespace of its own, which is removed afterwards.
///
/// # Errors
/// A sentence on the deviation.
pub(super) async fn probe(target: &PostgresTarget) -> Result<String, String> {
    // Its connections are none of the guard's, and end here.
    let kit = Kit::new("fenced-store");
    let probed = run(target, &kit).await;
    kit.tasks.begin_shutdown();
    kit.tasks.drained(CLOSE).await;
    probed.map_err(|reason| format!("PostgreSQL at {target}: {reason}"))
}

async fn run(target: &PostgresTarget, kit: &Kit) -> Result<String, String> {
    let namespace = Namespace::new(format!("fencepost-probe-{}", ids::random_hex(8)))
        .map_err(|error| error.to_string())?;
    let mut stores: Vec<Arc<dyn FenceStore>> = Vec::new();
    let first = Arc::new(PostgresStore::connect(target.clone(), &namespace, kit).await?);
    stores.push(first.clone());
    for _ in 1..GUARDS {
        stores.push(Arc::new(PostgresStore::connect(target.clone(), &namespace, kit).await?));
    }
    let probed = stores::probe(&stores, kit).await;
    let forgotten =
        first.rows("SELECT fence.forget_probe($1)", &[(&namespace.as_str(), Type::TEXT)]).await;
    if let Err(error) = forgotten {
        tracing::warn!(%error, %namespace, "the start-up probe left its rows behind");
    }
    let words = probed?;
    Ok(format!("{words}, in transactions of {GUARDS} sessions"))
}
