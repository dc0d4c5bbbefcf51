//! Batches as arguments of the scripts, and replies as records. The forms are described in
//! `head.lua`, `commit.lua` and `plain.lua`.

use std::collections::{HashMap, HashSet};

use ::redis::{Cmd, Value};
use redis_link::Script;

use super::keys::Keys;
use crate::engines::contract::{
    Batch, Change, Committed, Group, ItemName, Key, Snapshot, Version, Write,
};
use crate::engines::shared::store_clock::Beat;
use crate::store::StoreError;

/// Version, base and whether there are items.
const HEADER: usize = 24;
/// Position of the base.
const BASE: std::ops::Range<usize> = 8..23;
/// Separator between the name of an item and its value.
const NUL: char = '\0';
/// The latest time to live that Redis is given, ms; some thousand years.
const PX_MAX: u64 = 100_000_000_000_000;

/// The highest counter that a record has room for.
const TOKEN_MAX: u64 = 999_999_999_999_999;

/// Knowledge of the sender of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerKnowledge {
    /// The highest counter.
    pub(super) seen: u64,
    /// For how long a lease may live that Redis does not know of yet; 0 for none.
    pub(super) sent_bound_ms: u64,
    /// The latest time that Redis can show.
    pub(super) latest_ms: u64,
    /// The earliest time that Redis can show.
    pub(super) earliest_ms: u64,
}

/// The scripts that commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitScripts<'s> {
    /// For every batch.
    pub(super) general: &'s Script,
    /// For a [plain](is_plain) one.
    pub(super) plain: &'s Script,
}

/// A [`Batch`] whose form was checked, to be sent in any lineage.
pub(super) struct Commit<'b> {
    batch: &'b Batch,
    form: Form<'b>,
}

enum Form<'b> {
    /// One record a group.
    Plain,
    General(Places<'b>),
}

/// The records of a batch, each once.
struct Places<'b> {
    keys: Vec<&'b Key>,
    /// Number of keys that are locks; they come first.
    locks: usize,
    /// Counted from 1.
    by_key: HashMap<&'b Key, usize>,
}

impl<'b> Places<'b> {
    fn from_batch(batch: &'b Batch) -> Self {
        let reads = || batch.groups.iter().flat_map(|group| &group.reads).map(|(key, _)| key);
        let is_lock = |key: &&Key| matches!(key, Key::Lock(_));
        let mut keys = Vec::new();
        let mut by_key = HashMap::new();
        let mut place = |key| {
            by_key.entry(key).or_insert_with(|| {
                keys.push(key);
                keys.len()
            });
        };
        reads().filter(is_lock).for_each(&mut place);
        reads().filter(|key| !is_lock(key)).for_each(place);
        let locks = keys.iter().filter(|key| is_lock(key)).count();
        Self { keys, locks, by_key }
    }
}

impl<'b> Commit<'b> {
    /// # Errors
    /// [`StoreError::Unavailable`] where the batch breaks the contract.
    pub(super) fn new(batch: &'b Batch) -> Result<Self, StoreError> {
        batch.groups.iter().try_for_each(check)?;
        let form = match is_plain(batch) {
            true => Form::Plain,
            false => Form::General(Places::from_batch(batch)),
        };
        Ok(Self { batch, form })
    }

    /// The command in a lineage.
    pub(super) fn command(
        &self,
        scripts: CommitScripts<'_>,
        keys: &Keys,
        lineage: &str,
        known: ServerKnowledge,
    ) -> Cmd {
        let batch = self.batch;
        let (script, records): (&Script, Vec<String>) = match &self.form {
            Form::Plain => {
                let locks = batch.groups.iter().flat_map(|group| &group.reads);
                (scripts.plain, locks.map(|(key, _)| keys.record(key)).collect())
            }
            Form::General(places) => {
                (scripts.general, places.keys.iter().map(|key| keys.record(key)).collect())
            }
        };
        let Keys { lineage: own, token, paused_for, lives_until, absent, clock_ahead, .. } = keys;
        let fixed = [own, token, paused_for, lives_until, absent, clock_ahead];
        let all: Vec<&[u8]> = fixed.into_iter().chain(&records).map(|key| key.as_bytes()).collect();
        let mut command = script.call_bytes(all.into_iter());
        command.arg(lineage).arg(known.seen).arg(batch.tokens).arg(batch.counter);
        command.arg(known.sent_bound_ms).arg(known.latest_ms).arg(known.earliest_ms);
        command.arg(u8::from(batch.in_pause));
        match &self.form {
            Form::Plain => plain(&mut command, batch),
            Form::General(places) => {
                command.arg(places.locks);
                batch.groups.iter().for_each(|group| places.group(&mut command, group, keys));
            }
        }
        command
    }

    /// Decodes the reply of the script.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if it is no reply to this batch.
    pub(super) fn read(&self, reply: Value) -> Result<Committed, StoreError> {
        self.committed(reply).ok_or_else(|| {
            StoreError::Unknown(
                "Redis answered a commit with something else than was asked; what was committed is \
                 not known"
                    .to_owned(),
            )
        })
    }

    fn committed(&self, reply: Value) -> Option<Committed> {
        let mut fields = array(reply)?.into_iter();
        let base = number(fields.next()?)?;
        let now_ms = number(fields.next()?)?;
        let mut groups: Vec<Result<(), Vec<Snapshot>>> = vec![Ok(()); self.batch.groups.len()];
        for refused in fields {
            let mut parts = array(refused)?.into_iter();
            let at = usize::try_from(number(parts.next()?)?).ok()?.checked_sub(1)?;
            let reads = &self.batch.groups.get(at)?.reads;
            let read = reads.iter().map(|(key, _)| {
                let read = snapshot(key, parts.next()?, parts.next()?);
                Some(read.unwrap_or_else(|| Snapshot::unreadable(key.clone())))
            });
            let snapshots = read.collect::<Option<Vec<_>>>()?;
            if parts.next().is_some()
                || std::mem::replace(groups.get_mut(at)?, Err(snapshots)).is_err()
            {
                return None;
            }
        }
        Some(Committed { base, now_ms: Some(now_ms), lineage: None, groups })
    }
}

/// Returns whether every group reads one lock, no other reads the same, and at most replaces it.
fn is_plain(batch: &Batch) -> bool {
    let is_plain = |group: &Group| {
        let is_put =
            |write: &Write| matches!(write.change, Change::Put { .. }) && write.items.is_empty();
        matches!(group.reads[..], [(Key::Lock(_), _)])
            && group.writes.len() <= 1
            && group.writes.iter().all(is_put)
            && group.notify.is_empty()
    };
    let mut known = HashSet::with_capacity(batch.groups.len());
    batch.counter <= TOKEN_MAX
        && batch.groups.iter().all(is_plain)
        && batch.groups.iter().flat_map(|group| &group.reads).all(|(key, _)| known.insert(key))
}

/// Adds the arguments of `plain.lua` from the ninth on.
fn plain(command: &mut Cmd, batch: &Batch) {
    command.arg(batch.groups.iter().map(|group| group.not_before_ms).max().unwrap_or(0));
    let header = format!("{:015}0", batch.counter);
    let mut record = Vec::new();
    for group in &batch.groups {
        for (_, version) in &group.reads {
            before(command, *version);
        }
        match group.before_ms {
            u64::MAX => command.arg(""),
            before_ms => command.arg(before_ms),
        };
        let change = group.writes.first().map(|write| &write.change);
        if let Some(Change::Put { version, value, lives_ms }) = change {
            record.clear();
            record.extend_from_slice(&version.0.to_be_bytes());
            record.extend_from_slice(header.as_bytes());
            record.extend_from_slice(value);
            command.arg(&record[..]);
            lives(command, *lives_ms);
        } else {
            command.arg("").arg("");
        }
    }
}

impl Places<'_> {
    fn group(&self, command: &mut Cmd, group: &Group, keys: &Keys) {
        let has_bounds = group.not_before_ms > 0 || group.before_ms < u64::MAX;
        if let ([(key, version)], [write]) = (&group.reads[..], &group.writes[..])
            && let Change::Put { version: next, value, lives_ms } = &write.change
            && !has_bounds
            && write.items.is_empty()
            && group.notify.is_empty()
        {
            command.arg("A").arg(self.by_key[key]);
            before(command, *version);
            put(command, *next, value, *lives_ms);
            return;
        }
        let length: usize = group.writes.iter().map(length).sum();
        command.arg("?").arg(group.reads.len()).arg(length + 3 * group.notify.len());
        command.arg(group.not_before_ms).arg(group.before_ms);
        for (key, version) in &group.reads {
            command.arg(self.by_key[key]);
            before(command, *version);
        }
        for write in &group.writes {
            self.write(command, write);
        }
        for (server, key) in &group.notify {
            command.arg("N").arg(keys.channel(*server)).arg(key.text());
        }
    }

    fn write(&self, command: &mut Cmd, write: &Write) {
        let place = self.by_key[&write.key];
        match &write.change {
            Change::Keep => {}
            Change::Put { version, value, lives_ms } => {
                command.arg("P").arg(place);
                put(command, *version, value, *lives_ms);
            }
            Change::Remove => {
                command.arg("D").arg(place);
                return;
            }
        }
        for (name, value) in &write.items {
            match value {
                Some(value) => command.arg("+").arg(place).arg(name).arg(&value[..]),
                None => command.arg("-").arg(place).arg(name),
            };
        }
    }
}

/// Refuses what the script could not carry out.
fn check(group: &Group) -> Result<(), StoreError> {
    let has = |key: &Key| group.reads.iter().any(|(read, _)| read == key);
    let is_writable = |write: &Write| {
        let is_named = write.items.iter().all(|(name, _)| !name.contains(NUL));
        let is_new = !matches!(write.change, Change::Put { version: Version::ABSENT, .. });
        has(&write.key) && is_named && is_new
    };
    if group.writes.iter().all(is_writable) {
        return Ok(());
    }
    Err(StoreError::Unavailable("a group of writes is malformed; nothing was done".to_owned()))
}

/// Returns the number of arguments of a write.
fn length(write: &Write) -> usize {
    let change = match write.change {
        Change::Keep => 0,
        Change::Put { .. } => 5,
        Change::Remove => return 2,
    };
    let items = write.items.iter().map(|(_, value)| if value.is_some() { 4 } else { 3 });
    change + items.sum::<usize>()
}

fn before(command: &mut Cmd, version: Version) {
    if version == Version::ABSENT {
        command.arg("");
    } else {
        command.arg(&version.0.to_be_bytes()[..]);
    }
}

fn put(command: &mut Cmd, version: Version, value: &[u8], lives_ms: Option<u64>) {
    command.arg(&version.0.to_be_bytes()[..]).arg(value);
    lives(command, lives_ms);
}

fn lives(command: &mut Cmd, lives_ms: Option<u64>) {
    match lives_ms {
        Some(lives_ms) => command.arg(lives_ms.clamp(1, PX_MAX)),
        None => command.arg(""),
    };
}

/// The reply to `read.lua`: snapshots, the counter, and the time.
pub(super) fn records(keys: &[Key], reply: Value) -> Result<(Vec<Snapshot>, u64, u64), StoreError> {
    let read = || {
        let mut fields = array(reply)?.into_iter();
        let counter = number(fields.next()?)?;
        let now_ms = number(fields.next()?)?;
        let records = keys.iter().map(|key| snapshot(key, fields.next()?, fields.next()?));
        let records = records.collect::<Option<Vec<_>>>()?;
        fields.next().is_none().then_some((records, counter, now_ms))
    };
    read().ok_or_else(|| unreadable("a record"))
}

/// The reply to `beat.lua`.
pub(super) fn beat(reply: Value) -> Result<Beat, StoreError> {
    let read = || {
        let mut fields = array(reply)?.into_iter();
        let now_ms = number(fields.next()?)?;
        let counter = number(fields.next()?)?;
        let Value::Int(ahead_ms) = fields.next()? else { return None };
        let paused_ms = number(fields.next()?)?;
        let Value::Int(lives_ms) = fields.next()? else { return None };
        let lives_ms = u64::try_from(lives_ms).ok();
        let servers = fields.map(|server| text(server)?.parse().ok());
        let servers = servers.collect::<Option<Vec<_>>>()?;
        Some(Beat { now_ms, counter, ahead_ms, paused_ms, lives_ms, servers })
    };
    read().ok_or_else(|| unreadable("the list of live servers"))
}

/// Items as they stand in a sorted set.
pub(super) fn items(reply: Value) -> Result<Vec<(ItemName, Vec<u8>)>, StoreError> {
    array(reply).and_then(items_of).ok_or_else(|| unreadable("the items of a record"))
}

/// The reply to ZCARD.
pub(super) fn count(reply: Value) -> Result<usize, StoreError> {
    let count = number(reply).and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| unreadable("the number of the items of a record"))
}

/// The reply to SCAN: the next cursor, and the keys that it found.
pub(super) fn scan(reply: Value) -> Result<(String, Vec<String>), StoreError> {
    let read = || {
        let [cursor, found] = <[Value; 2]>::try_from(array(reply)?).ok()?;
        // A key that is no text is none of ours.
        Some((text(cursor)?, array(found)?.into_iter().filter_map(text).collect()))
    };
    read().ok_or_else(|| unreadable("the names of the records"))
}

fn unreadable(what: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "{what} in Redis cannot be read: no lock server has written it so"
    ))
}

/// A record with its items, where they were asked for; `None` if no lock server has written it.
fn snapshot(key: &Key, value: Value, items: Value) -> Option<Snapshot> {
    let mut value = match value {
        Value::Nil => return Some(Snapshot::absent(key.clone())),
        value => bytes(value)?,
    };
    let version = u64::from_be_bytes(value.get(..BASE.start)?.try_into().ok()?);
    let base = std::str::from_utf8(value.get(BASE)?).ok()?.parse().ok()?;
    let items = match items {
        Value::Nil => Vec::new(),
        items => items_of(array(items)?)?,
    };
    if version == Version::ABSENT.0 || value.len() < HEADER {
        return None;
    }
    value.drain(..HEADER);
    let key = key.clone();
    let version = Version(version);
    Some(Snapshot { key, version, base, value, items, shift_ms: 0 })
}

fn items_of(members: Vec<Value>) -> Option<Vec<(ItemName, Vec<u8>)>> {
    let item = |member| {
        let mut name = bytes(member)?;
        let end = name.iter().position(|byte| *byte == NUL as u8)?;
        let value = name.split_off(end + 1);
        name.pop();
        Some((String::from_utf8(name).ok()?, value))
    };
    members.into_iter().map(item).collect()
}

fn array(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(fields) => Some(fields),
        _ => None,
    }
}

fn number(value: Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    String::from_utf8(bytes(value)?).ok()
}

#[cfg(test)]
mod tests;
