//! Readiness of a Redis: its settings and its clock, judged now and then.

use std::sync::Arc;
use std::time::Duration;

use redis_link::{LinkState, RedisLink};
use service_kit::clock::Clock;
use service_kit::health::{Health, Status};
use tokio_util::sync::CancellationToken;

use super::judge;

/// Time between two checks of the settings and the clock of Redis.
const JUDGE_INTERVAL: Duration = Duration::from_secs(5);

/// Time for the reply of a sentinel.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Shows in `/readyz` which sentinels and replicas are missing, while the others suffice.
pub(crate) async fn watch_sentinels(link: RedisLink, health: Health) {
    loop {
        let troubles = link.target().troubles(SENTINEL_TIMEOUT).await;
        let status = match troubles.as_slice() {
            [] => Status::Ok,
            some => Status::Warn(some.join("; ")),
        };
        health.set("sentinels", status);
        tokio::time::sleep(JUDGE_INTERVAL).await;
    }
}

/// Shows in `/readyz` what is found, which logs what is new.
pub(crate) async fn watch(
    link: RedisLink,
    clock: Arc<dyn Clock>,
    health: Health,
    stop: CancellationToken,
) {
    let mut clocks = judge::ClockWatch::default();
    let mut states = link.watch();
    loop {
        let state = states.borrow_and_update().clone();
        let status = match state {
            LinkState::Down(reason) => Status::Failing(reason),
            LinkState::Up(_) => match judge::probe(&link, &*clock, &mut clocks).await {
                Ok(findings) => judge::status(&findings),
                Err(reason) => Status::Failing(reason),
            },
        };
        health.set("redis", status);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(JUDGE_INTERVAL) => {}
            _ = states.changed() => {}
        }
    }
}
