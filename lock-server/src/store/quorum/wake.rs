//! Hearing from every node that a lock became free there, whichever lock server freed it.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{LeaseId, LockName};
use futures_util::StreamExt;

use super::nodes::Node;
use super::{QuorumStore, random_below};

const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(200);
/// Those who wait in several servers ask a little apart, and after most nodes have heard of the end.
const SPREAD_MS: u64 = 5;

/// Listens to one node until the process ends.
pub(super) async fn listen(store: QuorumStore, node: Arc<Node>) {
    loop {
        if let Err(reason) = listen_once(&store, &node).await {
            tracing::debug!(node = %node.link.target(), reason, "cannot subscribe");
        }
        tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
    }
}

async fn listen_once(store: &QuorumStore, node: &Node) -> Result<(), String> {
    let timeout = store.inner.options.link.connect_timeout;
    let mut subscription = node.link.target().subscribe(timeout).await?;
    let channel = store.inner.scripts.keys().wake();
    subscription.subscribe(channel).await.map_err(|error| error.to_string())?;
    // What was said before this moment was missed.
    store.queues().wake_all();
    let mut messages = subscription.into_on_message();
    while let Some(message) = messages.next().await {
        let text: String = message.get_payload().unwrap_or_default();
        hear(store, &text);
    }
    Ok(())
}

/// The lock, and the lease that ended.
fn hear(store: &QuorumStore, text: &str) {
    let mut fields = text.split('\t');
    let Some(Ok(lock)) = fields.next().map(LockName::new) else { return };
    let Some(Ok(lease)) = fields.next().map(str::parse::<LeaseId>) else { return };
    if !store.queues().concerns(&lock, lease) {
        return;
    }
    let own = store.clone();
    store.inner.tasks.spawn(async move {
        tokio::time::sleep(Duration::from_millis(1 + random_below(SPREAD_MS))).await;
        own.queues().wake_after(&lock, lease);
    });
}
