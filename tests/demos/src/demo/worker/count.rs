//! Many workers in one process, each of which counts one number down once.

use std::time::Duration;

use fence_client::{Client, clock, tasks};
use serde_json::json;

use super::answers::Objects;
use super::report_line;
use crate::demo::orders::{Report, Turn};

/// Time to live of a lease, and longest wait of a worker.
const TTL: Duration = Duration::from_secs(15);
const WAIT: Duration = Duration::from_secs(60);

/// Starts `count` workers at once, reports each turn, and comes back when all are done.
pub(super) async fn down(
    client: &Client,
    objects: &Objects,
    count: usize,
    key: &str,
    lock: Option<&str>,
) -> Result<(), String> {
    let workers: Vec<_> = (0..count)
        .map(|_| {
            let client = client.clone();
            let objects = objects.clone();
            let key = key.to_owned();
            let lock = lock.map(ToOwned::to_owned);
            tasks::spawn(async move { one(&client, &objects, &key, lock.as_deref()).await })
        })
        .collect();
    for worker in workers {
        worker.await.map_err(|error| format!("a worker broke off: {error}"))??;
    }
    Ok(())
}

async fn one(
    client: &Client,
    objects: &Objects,
    key: &str,
    lock: Option<&str>,
) -> Result<(), String> {
    let grant = match lock {
        Some(lock) => {
            let grant = client.lock(lock).ttl(TTL).wait(WAIT).acquire_detached().await;
            Some(grant.map_err(|error| error.to_string())?)
        }
        None => None,
    };
    let from_ms = clock::now().ms();
    let token = grant.as_ref().map(|grant| grant.fencing_token.as_str());
    let answer = objects.get(key, token).await?;
    let number = answer.document.and_then(|document| document["left"].as_i64());
    let read = number.ok_or_else(|| format!("the number cannot be read: {:?}", answer.status))?;
    let body = json!({ "left": read - 1 }).to_string();
    let status = objects.put(key, token, body).await?.status.unwrap_or_default();
    let turn = Turn {
        token: grant.as_ref().map(|grant| grant.token.get()),
        lease_id: grant.as_ref().map(|grant| grant.lease_id.to_string()),
        read,
        status,
    };
    report_line(from_ms, Report::Turn(turn)).map_err(|failure| failure.to_string())?;
    if let Some(grant) = grant {
        let released = client.locks().release(&grant.lock, grant.lease_id).await;
        released.map_err(|error| error.to_string())?;
    }
    Ok(())
}
