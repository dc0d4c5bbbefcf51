//! What goes on beside the requests: hearing of grants that other servers made for our waiters,
//! letting leases expire in time, and watching Redis.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{LeaseId, LockName};
use futures_util::StreamExt;
use service_kit::clock::Clock;
use service_kit::health::{Health, Status};
use service_kit::redis_link::{LinkState, RedisLink};
use tokio_util::sync::CancellationToken;

use super::reply::Answer;
use super::{RedisStore, judge, millis, timekeeper};

/// How often held locks are looked at when nobody waits: expired leases of dead holders are cleared
/// away, which nobody is in a hurry for.
const IDLE_SWEEP: Duration = Duration::from_secs(5);
/// How soon more of them are looked at, and nobody waits, where one look was not enough.
const BACKLOG_SWEEP: Duration = Duration::from_millis(20);
/// How often they are looked at while somebody waits, in case the server that should have handed
/// a lock over died.
const WAITING_SWEEP: Duration = Duration::from_secs(1);
/// How often the settings and the clock of Redis are judged.
const JUDGE_INTERVAL: Duration = Duration::from_secs(5);
const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(100);
const PING: &str = "ping";

pub(super) fn start(store: &RedisStore, health: Health) {
    let tasks = &store.inner.tasks;
    let stop = tasks.shutdown_token();
    for task in [Task::Listen, Task::Sweep, Task::Follow, Task::KeepTime] {
        let (store, stop) = (store.clone(), stop.clone());
        tasks.spawn(async move {
            let work = async {
                match task {
                    Task::Listen => listen(&store).await,
                    Task::Sweep => sweep(&store).await,
                    Task::Follow => follow(&store).await,
                    Task::KeepTime => timekeeper::keep(&store).await,
                }
            };
            stop.run_until_cancelled(work).await;
        });
    }
    tasks.spawn(watch(store.inner.link.clone(), store.inner.clock.clone(), health, stop));
}

enum Task {
    Listen,
    Sweep,
    Follow,
    KeepTime,
}

/// Listens to this server's channel; subscribes anew when the connection is lost or deaf.
async fn listen(store: &RedisStore) {
    let channel = format!("{}c:{}", store.inner.prefix, store.inner.server_id);
    loop {
        if let Err(reason) = listen_once(store, &channel).await {
            tracing::debug!(reason, "cannot subscribe");
        }
        tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
    }
}

async fn listen_once(store: &RedisStore, channel: &str) -> Result<(), String> {
    let target = store.inner.link.target();
    let mut subscription = target.subscribe(store.inner.options.link.connect_timeout).await?;
    let timeout = store.inner.options.link.reply_timeout;
    match tokio::time::timeout(timeout, subscription.subscribe(channel)).await {
        Ok(done) => done.map_err(|error| error.to_string())?,
        Err(_) => return Err(format!("no reply within {} ms", timeout.as_millis())),
    }
    // What was said before this moment was missed.
    store.inner.waiting.wake_all();
    hear(store, channel, subscription.into_on_message()).await;
    tracing::warn!("the subscription to Redis was lost; subscribing again");
    Ok(())
}

/// Passes messages on until the stream ends, or until our own pings are not heard any more.
///
/// While somebody waits here, a ping goes through the channel three times a liveness period, and
/// hearing it is what keeps this server counted as alive: alive means able to hear of a grant.
async fn hear(
    store: &RedisStore,
    channel: &str,
    mut messages: impl futures_util::Stream<Item = ::redis::Msg> + Unpin,
) {
    let mut ticker = tokio::time::interval(store.inner.options.liveness / 3);
    let mut unheard = 0;
    loop {
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return };
                let text: String = message.get_payload().unwrap_or_default();
                if text == PING {
                    unheard = 0;
                    show_alive(store).await;
                } else {
                    hear_of(store, &text);
                }
            }
            _ = ticker.tick() => {
                if unheard >= 3 {
                    return;
                }
                if !store.inner.waiting.is_empty() {
                    let mut publish = ::redis::cmd("PUBLISH");
                    publish.arg(channel).arg(PING);
                    // A Redis that is away is noticed by what is not heard.
                    let _ = store.inner.link.call(&publish).await;
                    unheard += 1;
                }
            }
        }
    }
}

async fn show_alive(store: &RedisStore) {
    let mut set = ::redis::cmd("SET");
    set.arg(format!("{}s:{}", store.inner.prefix, store.inner.server_id)).arg("1");
    set.arg("PX").arg(millis(store.inner.options.liveness));
    // Missing one is what the period's length is for.
    let _ = store.inner.link.call(&set).await;
}

/// Has a waiter of this server ask again: perhaps it was granted what it waits for. Any client of Redis can
/// send such a message, so it changes nothing by itself. What was granted to a waiter that has left ends
/// when it was not claimed in time.
fn hear_of(store: &RedisStore, text: &str) {
    let mut fields = text.split('\t');
    let (Some(lock), Some(lease)) = (fields.next(), fields.next()) else { return };
    let (Ok(lock), Ok(lease_id)) = (LockName::new(lock), lease.parse::<LeaseId>()) else { return };
    store.inner.waiting.ask_again(&lock, lease_id);
}

/// Lets leases expire: at the moment the earliest is due where somebody waits.
async fn sweep(store: &RedisStore) {
    let inner = &*store.inner;
    let mut due_ms = None;
    loop {
        due_ms = [due_ms, inner.waiting.take_look_at_ms()].into_iter().flatten().min();
        tokio::select! {
            () = tokio::time::sleep(pause(store, due_ms)) => {}
            // A lock that is due earlier has come up.
            () = inner.waiting.sooner.notified() => continue,
        }
        let swept = store.run(&inner.scripts.sweep, |_| {}).await;
        if swept.is_ok() {
            inner.waiting.answered();
        }
        due_ms = match swept {
            Ok(Answer::Next(in_ms)) => in_ms.map(|in_ms| inner.clock.monotonic_ms() + in_ms),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(%error, "the sweep did not get through");
                None
            }
        };
    }
}

fn pause(store: &RedisStore, due_ms: Option<u64>) -> Duration {
    let now_ms = store.inner.clock.monotonic_ms();
    let in_ms = due_ms.map(|due_ms| due_ms.saturating_sub(now_ms));
    match in_ms {
        Some(0) if store.inner.waiting.is_empty() => BACKLOG_SWEEP,
        _ if store.inner.waiting.is_empty() => IDLE_SWEEP,
        // The clock here may be in another part of its millisecond than Redis' is.
        Some(in_ms) => Duration::from_millis(in_ms + 1).min(WAITING_SWEEP),
        None => WAITING_SWEEP,
    }
}

/// Waiters ask again whenever Redis came back: it may have forgotten them.
async fn follow(store: &RedisStore) {
    let mut states = store.inner.link.watch();
    while states.changed().await.is_ok() {
        let up = matches!(*states.borrow_and_update(), LinkState::Up(_));
        if up {
            store.inner.waiting.wake_all();
        }
    }
}

/// Judges Redis now and then; says in `/readyz` what was found, which logs what is new.
pub(in crate::store) async fn watch(
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
            LinkState::Up(_) => match judge::look(&link, &*clock, &mut clocks).await {
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
