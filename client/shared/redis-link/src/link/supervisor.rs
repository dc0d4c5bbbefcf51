//! Replaces a connection that broke, and tries an idle one now and then.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{LinkError, LinkState, RedisLink};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Runs until `stop`.
pub(super) async fn run(link: RedisLink, stop: CancellationToken) {
    let mut generation = link.generation();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = link.inner.closed.cancelled() => return,
            () = link.inner.broken.notified() => {}
            () = tokio::time::sleep(link.inner.options.ping_interval) => {
                ping(&link).await;
                follow(&link).await;
            }
        }
        generation = generation.max(link.generation());
        if matches!(link.state(), LinkState::Down(_)) {
            tokio::select! {
                () = stop.cancelled() => return,
                () = link.inner.closed.cancelled() => return,
                new = reconnect(&link, generation) => generation = new,
            }
        }
    }
}

async fn ping(link: &RedisLink) {
    // A failed probe, and MOVED, take the link down by themselves; another refusal (LOADING,
    // NOAUTH) shows in the next real command.
    if let Err(LinkError::Unknown(reason)) = link.call(&link.inner.target.probe()).await {
        tracing::debug!(reason, "ping without an answer");
    }
}

/// Closes a connection to a Redis that is not the master any more, or is it by another choice. A
/// demoted master that is cut off from the sentinels would continue to reply as if nothing had
/// happened.
async fn follow(link: &RedisLink) {
    let Ok(live) = link.live() else { return };
    if let Some(master) = link.inner.target.moved_to(&live.at).await {
        let from = live.at.address();
        link.give_up(&live, &format!("the sentinels moved the master from {from} to {master}"));
    }
}

async fn reconnect(link: &RedisLink, before: u64) -> u64 {
    if let LinkState::Down(reason) = link.state() {
        tracing::warn!(redis = %link.inner.target, reason, "Redis is not usable; trying again");
    }
    let mut pause = FIRST_PAUSE;
    loop {
        // The numbers of a connection's own verifications grow too, so a new connection leaves
        // room: two connections never share a number.
        let generation = before + 1_000_000;
        match link.connect_once(generation).await {
            Ok(()) => {
                tracing::info!(redis = %link.inner.target, "Redis is usable again");
                return generation;
            }
            Err(reason) => {
                tracing::debug!(reason, "still not usable");
                link.inner.state.send_replace(LinkState::Down(reason));
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
