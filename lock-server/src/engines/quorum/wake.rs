//! Notifications from every node that a lock became free there, whichever lock server freed it.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{LeaseId, LockName};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::nodes::Node;
use super::{QuorumStore, random_below};

const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(200);
/// Waiters in several servers ask at slightly different times, and after most nodes have been
/// notified of the end.
const SPREAD_MS: u64 = 5;
/// Most waiters that are woken at once where all are.
const AT_ONCE: usize = 16;
/// Longest silence before a ping tests the subscription.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// After so many pings that do not come back the subscription counts as lost.
const MISSED_PINGS_MAX: u32 = 2;
/// After so many intervals in which no queue waited the subscription ends.
const IDLE_TICKS_MAX: u32 = 5;
/// No lock and no lease: no waiter matches it.
const PING: &str = "ping";

/// Listens to one node while a queue of this server waits, until the process ends. A node sends
/// each end to every server that listens, and one where nothing waits has no use for it.
pub(super) async fn listen(store: QuorumStore, node: Arc<Node>) {
    let mut awaiting = store.queues().awaiting_ends();
    while awaiting.wait_for(|count| *count > 0).await.is_ok() {
        if let Err(reason) = listen_once(&store, &node, &awaiting).await {
            tracing::debug!(node = %node.link.target(), reason, "cannot subscribe");
        }
        tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
    }
}

async fn listen_once(
    store: &QuorumStore,
    node: &Node,
    awaiting: &watch::Receiver<usize>,
) -> Result<(), String> {
    let timeout = store.inner.options.link.connect_timeout;
    let mut subscription = node.link.target().subscribe(timeout).await?;
    let channel = store.inner.scripts.keys().wake();
    match tokio::time::timeout(timeout, subscription.subscribe(channel)).await {
        Ok(done) => done.map_err(|error| error.to_string())?,
        Err(_) => return Err(format!("no answer in {} ms", timeout.as_millis())),
    }
    // What was said before this moment was missed.
    wake_all(store);
    store.queues().subscription_began();
    let messages = subscription.into_on_message();
    let ended = receive_all(store, node, awaiting, messages).await;
    store.queues().subscription_ended();
    ended
}

/// Passes messages on until no queue has waited for a while.
///
/// Every server on the node receives pings, so one is sent only where no message came for a while.
///
/// # Errors
/// The stream has ended, or the own pings do not arrive any more.
async fn receive_all(
    store: &QuorumStore,
    node: &Node,
    awaiting: &watch::Receiver<usize>,
    mut messages: impl futures_util::Stream<Item = ::redis::Msg> + Unpin,
) -> Result<(), String> {
    let lost = || Err("the subscription was lost".to_owned());
    let mut ticker = tokio::time::interval(PING_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_quiet = false;
    let mut missed_pings = 0;
    let mut idle_ticks = 0;
    loop {
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return lost() };
                (is_quiet, missed_pings) = (false, 0);
                let text: String = message.get_payload().unwrap_or_default();
                receive(store, &text);
            }
            _ = ticker.tick() => {
                idle_ticks = if *awaiting.borrow() > 0 { 0 } else { idle_ticks + 1 };
                if idle_ticks >= IDLE_TICKS_MAX {
                    return Ok(());
                }
                if missed_pings >= MISSED_PINGS_MAX {
                    return lost();
                }
                // An unreachable node has not taken it: that it does not come back means nothing
                // then.
                let channel = store.inner.scripts.keys().wake();
                if is_quiet && node.link.call(&ping(channel)).await.is_ok() {
                    missed_pings += 1;
                }
                is_quiet = true;
            }
        }
    }
}

fn ping(channel: &str) -> ::redis::Cmd {
    let mut publish = ::redis::cmd("PUBLISH");
    publish.arg(channel).arg(PING);
    publish
}

/// The first of every queue retries, because messages may have been missed or a node is back: a few
/// at a time, so that nodes are not asked for all locks at the same moment.
pub(super) fn wake_all(store: &QuorumStore) {
    let wakes = store.queues().wakes();
    let stop = store.inner.tasks.shutdown_token();
    store.inner.tasks.spawn(async move {
        let work = async {
            for few in wakes.chunks(AT_ONCE) {
                few.iter().for_each(|wake| wake.notify_one());
                tokio::time::sleep(Duration::from_millis(1 + random_below(SPREAD_MS))).await;
            }
        };
        stop.run_until_cancelled(work).await;
    });
}

/// The lock, and the lease that ended.
fn receive(store: &QuorumStore, text: &str) {
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
