//! The events of several lock servers: one bounded stream in their Redis.
//!
//! Each server appends its events in batches and reads those of all servers, its own too, so that all
//! have the same events with the same ids, and a reader may resume at any of them. It has connections of
//! its own: neither a slow reader nor a full stream can hold up an operation on a lock.

mod entries;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Value, cmd};
use async_trait::async_trait;
use fence_protocol::Namespace;
use fence_protocol::wire::event::{Event, EventKind};
use service_kit::Kit;
use service_kit::redis_link::{
    LinkError, LinkOptions, RedisLink, RedisTarget, Script, Verifier, text_fields,
};

use self::entries::Batch;
use super::Events;
use super::ring::{EventId, Ring};
use crate::store::records::ServerId;
use crate::store::redis::KeyPrefix;
use crate::store::redis::refusals::elsewhere;

/// How many events are appended in one step, which is as long as Redis stands still for them.
const BATCH: usize = 1_024;
/// Between two appends, and between two reads, while there is news: the first event goes at once, and
/// those of a busy server together. No person reads faster.
const GATHER: Duration = Duration::from_millis(25);
/// How many batches are read in one step.
const PAGE: usize = 64;
/// How long a read waits for news; the link wants an answer within two seconds.
const BLOCK_MS: u64 = 500;
/// Between two tries when Redis is away.
const PAUSE: Duration = Duration::from_millis(200);
/// Of how many servers the last batch is known, so that none is read twice.
const ORIGINS: usize = 1_024;

/// Events are no reason to judge a process: a gap reports what they could lose.
struct Unverified;

#[async_trait]
impl Verifier for Unverified {
    async fn verify(&self, _: &mut MultiplexedConnection) -> Result<(), String> {
        Ok(())
    }
}

/// The keys of a namespace's events.
#[derive(Clone, Debug)]
struct Keys {
    stream: String,
    last: String,
    lineage: String,
}

/// Reads what is remembered, then follows it, and writes the events of this server.
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
    let prefix = key_prefix.of(namespace);
    let target = target.in_slot_of(prefix.as_bytes());
    let key = |name: &str| format!("{prefix}{name}");
    let keys = Keys { stream: key("events"), last: key("events:last"), lineage: key("lineage") };
    let link = async || {
        let (options, unverified) = (LinkOptions::default(), Arc::new(Unverified));
        RedisLink::start(target.clone(), options, unverified, &kit.tasks).await
    };
    let (reading, writing) = (link().await?, link().await?);
    let mut reader = StreamReader {
        events: events.clone(),
        link: reading,
        keys: keys.clone(),
        last: EventId::default(),
        batches: HashMap::new(),
        lineage: None,
        reported: None,
    };
    reader.load().await.map_err(|error| format!("the events in Redis cannot be read: {error}"))?;
    let writer = StreamWriter { events: events.clone(), link: writing, keys, origin };
    let stop = kit.tasks.shutdown_token();
    let stop_writing = stop.clone();
    kit.tasks.spawn(async move {
        stop.run_until_cancelled(reader.follow()).await;
    });
    kit.tasks.spawn(async move {
        stop_writing.run_until_cancelled(writer.write()).await;
    });
    Ok(())
}

struct StreamReader {
    events: Events,
    link: RedisLink,
    keys: Keys,
    /// Read up to here.
    last: EventId,
    /// The last batch of each server: one whose reply was lost may have been appended twice.
    batches: HashMap<u32, u64>,
    lineage: Option<String>,
    /// The last lineage among the events.
    reported: Option<Option<String>>,
}

impl StreamReader {
    /// Reads what was there before this server started.
    async fn load(&mut self) -> Result<(), LinkError> {
        let capacity = self.events.inner.options.history;
        let (mut known, mut count, mut end) = (Vec::new(), 0, "+".to_owned());
        while count < capacity {
            let mut read = cmd("XREVRANGE");
            read.arg(&self.keys.stream).arg(&end).arg("-").arg("COUNT").arg(PAGE);
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

    async fn follow(mut self) {
        loop {
            if let Err(error) = self.turn().await {
                tracing::debug!(%error, "the events in Redis cannot be read now");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn turn(&mut self) -> Result<(), LinkError> {
        let mut look = cmd("MGET");
        look.arg(&self.keys.last).arg(&self.keys.lineage);
        let fields = text_fields(self.link.call(&look).await?).unwrap_or_default();
        self.see_lineage(fields.get(1).map(String::as_str).unwrap_or_default());
        let last: EventId = fields.first().and_then(|text| text.parse().ok()).unwrap_or_default();
        if last < self.last {
            // Emptied, or restored from before. Ids there may be lower than those read here.
            self.events.gap(None, "Redis lost the stream of events");
            self.last = EventId::default();
            self.batches.clear();
        }
        let mut read = cmd("XREAD");
        read.arg("COUNT").arg(PAGE).arg("BLOCK").arg(BLOCK_MS);
        read.arg("STREAMS").arg(&self.keys.stream).arg(self.last.to_string());
        let batches = entries::of_read(self.link.call(&read).await?);
        let is_all = batches.len() < PAGE;
        let is_news = !batches.is_empty();
        for batch in batches {
            self.remember(batch, 0);
        }
        if is_news && is_all {
            tokio::time::sleep(GATHER).await;
        }
        Ok(())
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
            self.events.tell(Event::new(EventKind::Lineage).text(id));
        }
    }
}

struct StreamWriter {
    events: Events,
    link: RedisLink,
    keys: Keys,
    origin: ServerId,
}

impl StreamWriter {
    async fn write(self) {
        let script = Script::new("shared.lua", include_str!("shared.lua"));
        let Some(outbox) = &self.events.inner.outbox else { return };
        // Of more than the stream keeps, the first would be gone before anyone can read them.
        let most = BATCH.min((self.events.inner.options.history / 4).max(1));
        let mut pace = tokio::time::sleep(Duration::ZERO);
        for number in 1.. {
            let mut batch = outbox.next(most).await;
            if batch.len() < most {
                pace.await;
                batch.extend(outbox.take(most - batch.len()));
            }
            pace = tokio::time::sleep(GATHER);
            let lost = self.events.inner.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let mut gap = Event::new(EventKind::Gap).text("a lock server dropped events");
                gap.missed = Some(lost);
                batch.insert(0, gap);
            }
            self.append(&script, number, &batch).await;
        }
    }

    /// Repeats until Redis has them. Readers know a batch that was appended twice by its number.
    async fn append(&self, script: &Script, number: u64, batch: &[Event]) {
        let mut command = script.call_once(&[&*self.keys.stream, &*self.keys.last]);
        let (history, text) = (self.events.inner.options.history, serde_json::to_string(batch));
        command.arg(history).arg(self.origin.0).arg(number).arg(batch.len());
        command.arg(text.unwrap_or_default());
        loop {
            match self.link.call(&command).await {
                Ok(Value::BulkString(_)) => return,
                Err(LinkError::Server { code, .. }) if elsewhere(&code).is_some() => {
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(_) | Err(LinkError::Server { .. }) => {
                    tracing::warn!(count = batch.len(), "Redis did not take the events");
                    self.events.lose(batch.len() as u64);
                    tokio::time::sleep(PAUSE).await;
                    return;
                }
                Err(LinkError::Down(_) | LinkError::Unknown(_)) => {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}
