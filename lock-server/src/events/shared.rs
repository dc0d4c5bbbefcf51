//! The events of several lock servers: one bounded stream in their Redis.
//!
//! Each server appends its events in batches, and with each batch reads those of the other servers
//! before it, so that all have the same events with the same ids, and a reader may resume at any of
//! them. It has a connection of its own: neither a slow reader nor a full stream can hold up an
//! operation on a lock.

mod entries;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Value, cmd};
use async_trait::async_trait;
use fence_protocol::Namespace;
use fence_protocol::wire::event::{Event, EventKind};
use redis_link::{LinkError, LinkOptions, RedisLink, RedisTarget, Script, Verifier, text_fields};
use service_kit::Kit;

use self::entries::{Batch, Exchanged};
use super::Events;
use super::ring::{EventId, Ring};
use crate::engines::contract::ServerId;
use crate::engines::redis::key_prefix::KeyPrefix;
use crate::engines::redis::refusals::elsewhere;

/// Largest number of events that one script call appends: it blocks Redis for as long.
const BATCH: usize = 1_024;
/// Pause between two appends: the first event is sent at once, and those of a busy server together.
/// No person reads faster.
const GATHER: Duration = Duration::from_millis(25);
/// Largest number of batches that one call reads.
const PAGE: usize = 64;
/// Pause between two reads of other servers' events, while this one appends nothing.
const POLL: Duration = Duration::from_millis(200);
/// Pause between two tries when Redis is unreachable.
const PAUSE: Duration = Duration::from_millis(200);
/// Number of servers whose last batch is remembered, so that no batch is read twice.
const ORIGINS: usize = 1_024;

/// Accepts every Redis process: a gap reports events that a restart lost.
struct Unverified;

#[async_trait]
impl Verifier for Unverified {
    async fn verify(&self, _: &mut MultiplexedConnection) -> Result<(), String> {
        Ok(())
    }
}

/// Reads the stream, follows it, and appends the events of this server.
///
/// # Errors
/// A sentence where Redis cannot be reached.
pub(super) async fn start(
    events: &Events,
    target: RedisTarget,
    (key_prefix, namespace): (&KeyPrefix, &Namespace),
    origin: ServerId,
    kit: &Kit,
) -> Result<(), String> {
    let prefix = key_prefix.for_namespace(namespace);
    let target = target.in_slot_of(prefix.as_bytes());
    let keys = ["events", "events:last", "lineage"].map(|name| format!("{prefix}{name}"));
    let options = LinkOptions::default();
    let unverified = Arc::new(Unverified);
    let mut stream = Stream {
        events: events.clone(),
        link: RedisLink::start(target, options, unverified, &kit.tasks).await?,
        script: Script::new("shared.lua", include_str!("shared.lua")),
        keys,
        origin,
        last: EventId::default(),
        batches: HashMap::new(),
        lineage: None,
        reported: None,
    };
    stream.load().await.map_err(|error| format!("the events in Redis cannot be read: {error}"))?;
    let stop = kit.tasks.shutdown_token();
    kit.tasks.spawn(async move {
        stop.run_until_cancelled(stream.follow()).await;
    });
    Ok(())
}

struct Stream {
    events: Events,
    link: RedisLink,
    script: Script,
    /// The stream, the id of its last entry, and the lineage of the records.
    keys: [String; 3],
    origin: ServerId,
    /// Last entry read.
    last: EventId,
    /// The last batch of each server: one whose reply was lost may have been appended twice.
    batches: HashMap<u32, u64>,
    lineage: Option<String>,
    /// The last lineage among the events.
    reported: Option<Option<String>>,
}

impl Stream {
    /// Reads the entries from before this server started.
    async fn load(&mut self) -> Result<(), LinkError> {
        let capacity = self.events.inner.options.event_history;
        let mut known = Vec::new();
        let mut count = 0;
        let mut end = "+".to_owned();
        while count < capacity {
            let mut read = cmd("XREVRANGE");
            read.arg(&self.keys[0]).arg(&end).arg("-").arg("COUNT").arg(PAGE);
            let batches = entries::of_range(self.link.call(&read).await?);
            let Some(oldest) = batches.last() else { break };
            end = format!("({}", oldest.id);
            count += batches.iter().map(|batch| batch.events.len()).sum::<usize>();
            known.extend(batches);
        }
        let before = known.last().map_or_else(EventId::default, Batch::before);
        let now_ms = self.redis_now_ms().await?;
        self.events.state().ring = Ring::new(capacity, before);
        self.last = before;
        for batch in known.into_iter().rev() {
            let age_ms = now_ms.saturating_sub(batch.at_ms);
            self.remember(batch, age_ms);
        }
        Ok(())
    }

    async fn redis_now_ms(&self) -> Result<u64, LinkError> {
        let fields = text_fields(self.link.call(&cmd("TIME")).await?).unwrap_or_default();
        let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
        Ok(number(0).unwrap_or(0) * 1_000 + number(1).unwrap_or(0) / 1_000)
    }

    /// Appends this server's events, and reads those of other servers.
    async fn follow(mut self) {
        let inner = self.events.inner.clone();
        let Some(outbox) = &inner.outbox else { return };
        // Of more than the stream keeps, the first would be removed before a client can read them.
        let most = BATCH.min((inner.options.event_history / 4).max(1));
        let mut pace = tokio::time::sleep(Duration::ZERO);
        for number in 1.. {
            let next = tokio::time::timeout(POLL, outbox.next(most)).await;
            let mut batch = next.unwrap_or_default();
            if !batch.is_empty() && batch.len() < most {
                pace.await;
                batch.extend(outbox.take(most - batch.len()));
            }
            pace = tokio::time::sleep(GATHER);
            // Not for a gap alone: a Redis that refuses appends would refuse it too.
            let lost = if batch.is_empty() { 0 } else { inner.lost.swap(0, Ordering::Relaxed) };
            let count = batch.len() as u64;
            if lost > 0 {
                let mut gap = Event::new(EventKind::Gap).text("a lock server dropped events");
                gap.missed = Some(lost);
                batch.insert(0, gap);
            }
            if !self.exchange(number, batch).await {
                inner.lost.fetch_add(lost, Ordering::Relaxed);
                self.events.lose(count);
            }
        }
    }

    /// Appends a batch, which may be empty, and remembers the entries before it and then the batch.
    /// Retries until Redis has it: readers recognise a batch that was appended twice by its number.
    /// Returns `true` if Redis appended it.
    async fn exchange(&mut self, number: u64, events: Vec<Event>) -> bool {
        let count = events.len() as u64;
        let text = serde_json::to_string(&events).unwrap_or_default();
        loop {
            let command = self.command((number, count), &text);
            let error = match self.link.call(&command).await {
                Ok(reply) => match self.read(reply).await {
                    Ok(Some(id)) => {
                        let origin = (self.origin.0, number);
                        self.remember(Batch { id, count, at_ms: 0, origin, events }, 0);
                        return true;
                    }
                    Ok(None) => return true,
                    Err(error) => error,
                },
                Err(LinkError::Server { code, message }) if elsewhere(&code).is_none() => {
                    if count > 0 {
                        tracing::warn!(code, message, count, "Redis did not take the events");
                    }
                    tokio::time::sleep(PAUSE).await;
                    return false;
                }
                Err(error) => error,
            };
            tracing::debug!(%error, "the events in Redis cannot be reached now");
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn command(&self, (number, count): (u64, u64), text: &str) -> Cmd {
        let mut command = self.script.call_once(&self.keys.each_ref().map(String::as_str));
        command.arg(self.last.to_string()).arg(PAGE).arg(self.events.inner.options.event_history);
        command.arg(self.origin.0).arg(number).arg(count).arg(text);
        command
    }

    /// Remembers the entries of other servers. Returns the id of the caller's batch.
    async fn read(&mut self, reply: Value) -> Result<Option<EventId>, LinkError> {
        let Some(Exchanged { lineage, before, id, batches }) = entries::of_exchange(reply) else {
            return Err(LinkError::Server {
                code: "EVENTS".to_owned(),
                message: "the reply to a batch of events is malformed".to_owned(),
            });
        };
        self.see_lineage(&lineage);
        if before < self.last {
            // Emptied, or restored from before. Ids there may be lower than those read here.
            self.events.gap(None, "Redis lost the stream of events");
            self.last = EventId::default();
            self.batches.clear();
        }
        let mut page = batches;
        while self.last < before {
            if page.is_empty() {
                let mut read = cmd("XRANGE");
                read.arg(&self.keys[0]).arg(format!("({}", self.last)).arg(before.to_string());
                page = entries::of_range(self.link.call(read.arg("COUNT").arg(PAGE)).await?);
            }
            if page.is_empty() {
                // Cut from the stream already: the next batch shows the gap.
                break;
            }
            for batch in page.drain(..) {
                self.remember(batch, 0);
            }
        }
        Ok(id)
    }

    fn remember(&mut self, batch: Batch, age_ms: u64) {
        let before = batch.before();
        if self.last != EventId::default() && before != self.last {
            let is_same_life = before.ms == self.last.ms;
            let missed = before.seq.checked_sub(self.last.seq).filter(|_| is_same_life);
            self.events.gap(missed, "this server was too slow to read the events in Redis");
        }
        self.last = batch.id;
        let (origin, number) = batch.origin;
        if self.batches.insert(origin, number).is_some_and(|known| known >= number) {
            return;
        }
        if self.batches.len() > ORIGINS {
            self.batches.clear();
        }
        let at_ms = self.events.now_ms() - i64::try_from(age_ms).unwrap_or(i64::MAX);
        let ids = (1..).map(|nth| EventId { seq: before.seq + nth, ..before });
        // Every server reports a new lineage.
        let news = ids.zip(batch.events).filter(|(_, event)| {
            event.kind != EventKind::Lineage
                || self.reported.replace(event.text.clone()) != Some(event.text.clone())
        });
        self.events.remember_all(news, at_ms, ServerId(origin));
    }

    fn see_lineage(&mut self, id: &str) {
        if id.is_empty() || self.lineage.as_deref() == Some(id) {
            return;
        }
        if self.lineage.replace(id.to_owned()).is_some() {
            self.events.publish(Event::new(EventKind::Lineage).text(id));
        }
    }
}
