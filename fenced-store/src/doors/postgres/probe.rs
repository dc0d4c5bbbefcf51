//! Start-up probe: termination of a session is shown at this server before the port serves.

use std::time::Duration;

use fence_protocol::{LeaseId, LockName, Token};
use service_kit::ids;

use super::PortSettings;
use super::registry::{NotAdmitted, Registry};
use super::server::ServerError;
use crate::verdict::{Fence, Mark};

/// Lock of the probes; its mark rises by two a probe.
const LOCK: &str = "fencepost/probe";
/// Attempts: other guards may probe at the same time.
const TRIES: usize = 8;
const WITHIN: Duration = Duration::from_secs(30);

/// Shows that sessions of this server are what they seem, and end when they are ended.
///
/// # Errors
/// A sentence on the deviation.
pub(super) async fn probe(registry: &Registry, settings: &PortSettings) -> Result<String, String> {
    let run = async {
        for _ in 0..TRIES {
            if let Some(shown) = show(registry, settings).await? {
                return Ok(shown);
            }
        }
        Err("other guards probe it all the time".to_owned())
    };
    let result = tokio::time::timeout(WITHIN, run).await;
    let result = result.unwrap_or_else(|_| Err(format!("no end of the probe in {WITHIN:?}")));
    result.map_err(|reason| format!("PostgreSQL at {}: {reason}", registry.upstream))
}

/// Preempts a session with an open transaction; `None` if another guard probed in between.
async fn show(registry: &Registry, settings: &PortSettings) -> Result<Option<String>, String> {
    let text = |error: ServerError| error.to_string();
    let lock = LockName::new(LOCK).map_err(|error| error.to_string())?;
    let mark = registry.bound(&lock).await.map_err(text)?;
    let next = mark.map_or(1, |mark| mark.token.get() + 1);
    let low = fence(&lock, next)?;
    let high = fence(&lock, next + 1)?;
    let upstream = &settings.upstream;
    let Some(writer) = settings.writers.first() else { return Err("no writer".to_owned()) };
    let parameters = [("database", upstream.database())];
    let mut session = upstream.open(writer, &parameters).await.map_err(text)?;
    let server_start = session.server_start().await.map_err(text)?;
    match registry.admit(&low, session.pid, &server_start).await {
        Ok(()) => {}
        Err(NotAdmitted::Failed(error)) => return Err(error.to_string()),
        Err(_) => return Ok(None),
    }
    session.query("BEGIN").await.map_err(text)?;
    let rows = session.query("SELECT txid_current()").await.map_err(text)?;
    let xid = rows.first().and_then(|row| row.first()?.clone()).unwrap_or_default();
    match registry.seal(&high).await {
        Ok(()) => {}
        Err(NotAdmitted::Failed(error)) => return Err(error.to_string()),
        Err(_) => return Ok(None),
    }
    if session.query("COMMIT").await.is_ok() {
        return Err("a session that was ended still replied".to_owned());
    }
    let xid: u64 = xid.parse().map_err(|_| "it gave no transaction id".to_owned())?;
    let rows = registry.query(&format!("SELECT txid_status({xid})")).await.map_err(text)?;
    match rows.first().and_then(|row| row.first()?.as_deref()) {
        Some("aborted") => {
            Ok(Some("a session was ended, and its open transaction rolled back".to_owned()))
        }
        other => Err(format!("the transaction of an ended session is {other:?}")),
    }
}

fn fence(lock: &LockName, token: u64) -> Result<Fence, String> {
    let token = Token::new(token).map_err(|error| error.to_string())?;
    let lease: LeaseId = ids::lease_id();
    Ok(Fence { lock: lock.clone(), presented: Mark { token, lease } })
}
