//! The events of several lock servers: one bounded stream in their Redis.
//!
//! Each server appends what it tells and reads what all tell, its own events too, so that all have
//! the same events with the same ids, and a reader may resume at any of them. It has connections of
//! its own: neither a slow reader nor a full stream can hold up an operation on a lock.

mod entries;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Value, cmd};
use async_trait::async_trait;
use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::{LockName, Namespace, Token};
use service_kit::Kit;
use service_kit::redis_link::{
    LinkError, LinkOptions, RedisLink, RedisTarget, Script, Verifier, text_fields,
};
use tokio::sync::mpsc;

use self::entries::Told;
use super::Events;
use super::ring::{EventId, Ring, key_of};
use crate::store::redis::KeyPrefix;
use crate::store::redis::refusals::elsewhere;

/// How many events are appended in one step, which is as long as Redis stands still for them.
const BATCH: usize = 256;
/// Between two appends, and between two reads, while there is news: the first event goes at once, and
/// those of a busy server together. Each step costs Redis as much as an operation on a lock does, and
/// nobody watches at this pace.
const GATHER: Duration = Duration::from_millis(25);
/// How many are read in one step.
const PAGE: usize = 512;
/// How long a read waits for news; the link wants an answer within two seconds.
const BLOCK_MS: u64 = 500;
/// Between two tries when Redis is away.
const PAUSE: Duration = Duration::from_millis(200);

/// Events are no reason to judge a process: what they could lose, a gap tells.
struct Anybody;

#[async_trait]
impl Verifier for Anybody {
    async fn verify(&self, _: &mut MultiplexedConnection) -> Result<(), String> {
        Ok(())
    }
}

/// The keys of a namespace's events.
#[derive(Clone, Debug)]
struct Keys {
    stream: String,
    once: String,
    number: String,
    lineage: String,
}

/// Reads what is remembered, then follows it, and writes what this server tells.
///
/// # Errors
/// A sentence where Redis cannot be reached.
pub(super) async fn start(
    events: &Events,
    target: RedisTarget,
    (key_prefix, namespace): (&KeyPrefix, &Namespace),
    outbox: mpsc::Receiver<Event>,
    kit: &Kit,
) -> Result<(), String> {
    let prefix = key_prefix.of(namespace);
    let target = target.in_slot_of(prefix.as_bytes());
    let key = |name: &str| format!("{prefix}{name}");
    let keys = Keys {
        stream: key("events"),
        once: key("events:once"),
        number: key("events:number"),
        lineage: key("lineage"),
    };
    let link = async || {
        let (options, anybody) = (LinkOptions::default(), Arc::new(Anybody));
        RedisLink::start(target.clone(), options, anybody, &kit.tasks).await
    };
    let (reading, writing) = (link().await?, link().await?);
    let origin = service_kit::ids::random_hex(8);
    let mut reader = StreamReader {
        events: events.clone(),
        link: reading,
        keys: keys.clone(),
        origin: origin.clone(),
        last: EventId::default(),
        number: None,
        lineage: None,
    };
    reader.load().await.map_err(|error| format!("the events in Redis cannot be read: {error}"))?;
    let writer = StreamWriter { events: events.clone(), link: writing, keys, origin };
    let stop = kit.tasks.shutdown_token();
    let stop_writing = stop.clone();
    kit.tasks.spawn(async move {
        stop.run_until_cancelled(reader.follow()).await;
    });
    kit.tasks.spawn(async move {
        stop_writing.run_until_cancelled(writer.write(outbox)).await;
    });
    Ok(())
}

struct StreamReader {
    events: Events,
    link: RedisLink,
    keys: Keys,
    origin: String,
    /// Read up to here.
    last: EventId,
    /// The number of the event there.
    number: Option<u64>,
    lineage: Option<String>,
}

impl StreamReader {
    /// What was told before this server started.
    async fn load(&mut self) -> Result<(), LinkError> {
        let capacity = self.events.inner.options.history;
        let mut read = cmd("XREVRANGE");
        read.arg(&self.keys.stream).arg("+").arg("-").arg("COUNT").arg(capacity);
        let mut told = entries::of_range(self.link.call(&read).await?);
        told.reverse();
        let now_ms = self.redis_now_ms().await?;
        // A stream that is shorter was never cut; of one that is not, the first entry only says
        // where the rest begins.
        let before = if told.len() < capacity { EventId::default() } else { told.remove(0).id };
        self.events.state().ring = Ring::new(capacity, before);
        self.last = before;
        for entry in told {
            let age_ms = now_ms.saturating_sub(entry.id.ms);
            self.hear(entry, age_ms);
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
        look.arg(&self.keys.number).arg(&self.keys.lineage);
        let fields = text_fields(self.link.call(&look).await?).unwrap_or_default();
        self.see_lineage(fields.get(1).map(String::as_str).unwrap_or_default());
        let number = fields.first().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        if self.number.is_some_and(|known| number < known) {
            // Emptied, or restored from before. Ids there may be lower than those read here.
            self.events.gap(None, "Redis lost the stream of events");
            (self.last, self.number) = (EventId::default(), None);
        }
        let mut read = cmd("XREAD");
        read.arg("COUNT").arg(PAGE).arg("BLOCK").arg(BLOCK_MS);
        read.arg("STREAMS").arg(&self.keys.stream).arg(self.last.to_string());
        let entries = entries::of_read(self.link.call(&read).await?);
        let is_all = entries.len() < PAGE.min(self.events.inner.options.history / 4);
        let is_news = !entries.is_empty();
        for entry in entries {
            self.hear(entry, 0);
        }
        if is_news && is_all {
            tokio::time::sleep(GATHER).await;
        }
        Ok(())
    }

    fn hear(&mut self, told: Told, age_ms: u64) {
        let Told { id, number, origin, event } = told;
        if let (Some(known), Some(number)) = (self.number, number)
            && number != known + 1
        {
            let missed = number.checked_sub(known + 1);
            self.events.gap(missed, "this server was too slow to read the events in Redis");
        }
        self.last = id;
        self.number = number.or(self.number);
        let Some(mut event) = event else { return };
        event.ms_ago = age_ms;
        let at_ms = self.events.now_ms() - i64::try_from(age_ms).unwrap_or(i64::MAX);
        self.events.hear(id, event, at_ms, origin == self.origin);
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
    origin: String,
}

impl StreamWriter {
    async fn write(self, mut outbox: mpsc::Receiver<Event>) {
        let script = Script::new("shared.lua", include_str!("shared.lua"));
        let mut batch = Vec::with_capacity(BATCH);
        // Of more than the stream keeps, the first would be gone before anybody can read them.
        let most = BATCH.min((self.events.inner.options.history / 4).max(1));
        let mut pace = tokio::time::sleep(Duration::ZERO);
        while outbox.recv_many(&mut batch, most).await > 0 {
            if batch.len() < most {
                pace.await;
                let more = std::iter::from_fn(|| outbox.try_recv().ok());
                batch.extend(more.take(most - batch.len()));
            }
            pace = tokio::time::sleep(GATHER);
            let lost = self.events.inner.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let mut gap = Event::new(EventKind::Gap).text("a lock server dropped events");
                gap.missed = Some(lost);
                batch.insert(0, gap);
            }
            self.append(&script, &batch).await;
            batch.clear();
        }
    }

    /// Repeats until Redis has them. What may have been appended before is not told twice where that
    /// would matter: grants and ends are known there.
    async fn append(&self, script: &Script, batch: &[Event]) {
        let keys = [&*self.keys.stream, &*self.keys.once, &*self.keys.number];
        let history = self.events.inner.options.history;
        let mut command = script.call_once(&keys);
        command.arg(history).arg(history.saturating_mul(2)).arg(&self.origin);
        for event in batch {
            command.arg(once(event)).arg(serde_json::to_string(event).unwrap_or_default());
        }
        loop {
            match self.link.call(&command).await {
                Ok(Value::Int(_)) => return,
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

/// What an event tells once; empty where it may come again.
fn once(event: &Event) -> String {
    if event.kind == EventKind::Lineage {
        return format!("l:{}", event.text.as_deref().unwrap_or_default());
    }
    key_of(event).map_or_else(String::new, |(lease_id, lock, token, is_end)| {
        let lock = lock.as_ref().map(LockName::as_str).unwrap_or_default();
        let token = token.map_or(0, Token::get);
        format!("{}:{lease_id}:{lock}:{token}", if is_end { "e" } else { "g" })
    })
}
