//! Batches as parameters of `commit`, and replies as records. The form is described in
//! `functions.sql`.

use std::collections::{HashMap, HashSet};

use fence_protocol::Namespace;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{column, wakeups};
use crate::engines::contract::{Batch, Change, Group, ItemName, Key, Snapshot, Version, Write};
use crate::engines::shared::refused::GroupOutcome;
use crate::engines::shared::store_clock::Beat;
use crate::store::StoreError;

/// The longest life of a record that PostgreSQL is given, ms; some thousand years.
const LIVES_MAX_MS: u64 = 100_000_000_000_000;

/// A parameter of a statement.
type Parameter<'a> = &'a (dyn ToSql + Sync);

/// A number as PostgreSQL keeps it; none of ours is beyond.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number that PostgreSQL keeps; none of ours is negative.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A version has every bit.
fn version_bits(version: Version) -> i64 {
    version.0.cast_signed()
}

/// A number of a group, from 1 on.
fn number(at: usize) -> i32 {
    i32::try_from(at + 1).unwrap_or(i32::MAX)
}

/// Parameters that are no arrays; most depend on the moment of sending.
#[derive(Debug)]
pub(super) struct Scalars<'a> {
    pub(super) namespace: i32,
    pub(super) lineage: &'a str,
    pub(super) seen: i64,
    pub(super) bound_ms: i64,
    pub(super) latest_ms: i64,
    pub(super) earliest_ms: i64,
}

/// A [`Batch`] as arrays; those of one prefix belong together.
#[derive(Debug)]
pub(super) struct Arrays<'b> {
    batch: &'b Batch,
    taken: i64,
    above: i64,
    begins: bool,
    waves: i32,
    has_times: bool,
    wave: Vec<i32>,
    from: Vec<i64>,
    before: Vec<i64>,
    read_group: Vec<i32>,
    read_key: Vec<String>,
    read_version: Vec<i64>,
    put_group: Vec<i32>,
    put_key: Vec<String>,
    put_version: Vec<i64>,
    put_value: Vec<&'b [u8]>,
    put_lives: Vec<Option<i64>>,
    removed_group: Vec<i32>,
    removed_key: Vec<String>,
    item_group: Vec<i32>,
    item_key: Vec<String>,
    item_name: Vec<&'b str>,
    item_value: Vec<Option<&'b [u8]>>,
    notice_group: Vec<i32>,
    notice_channel: Vec<String>,
    notice_message: Vec<String>,
}

impl<'b> Arrays<'b> {
    /// # Errors
    /// [`StoreError::Unavailable`] where the batch breaks the contract.
    pub(super) fn new(batch: &'b Batch, namespace: &Namespace) -> Result<Self, StoreError> {
        batch.groups.iter().try_for_each(check)?;
        let wave = waves(&batch.groups);
        let mut arrays = Self {
            batch,
            taken: signed(batch.tokens),
            above: signed(batch.counter),
            begins: !batch.in_pause && !batch.groups.is_empty(),
            waves: wave.iter().copied().max().unwrap_or(0),
            has_times: false,
            wave,
            from: Vec::new(),
            before: Vec::new(),
            read_group: Vec::new(),
            read_key: Vec::new(),
            read_version: Vec::new(),
            put_group: Vec::new(),
            put_key: Vec::new(),
            put_version: Vec::new(),
            put_value: Vec::new(),
            put_lives: Vec::new(),
            removed_group: Vec::new(),
            removed_key: Vec::new(),
            item_group: Vec::new(),
            item_key: Vec::new(),
            item_name: Vec::new(),
            item_value: Vec::new(),
            notice_group: Vec::new(),
            notice_channel: Vec::new(),
            notice_message: Vec::new(),
        };
        for (at, group) in batch.groups.iter().enumerate() {
            arrays.add(number(at), group, namespace);
        }
        Ok(arrays)
    }

    fn add(&mut self, at: i32, group: &'b Group, namespace: &Namespace) {
        self.has_times |= group.not_before_ms > 0 || group.before_ms < u64::MAX;
        self.from.push(signed(group.not_before_ms));
        self.before.push(signed(group.before_ms));
        for (key, version) in &group.reads {
            self.read_group.push(at);
            self.read_key.push(key.text());
            self.read_version.push(version_bits(*version));
        }
        for write in &group.writes {
            self.write(at, write);
        }
        for (server, key) in &group.notify {
            self.notice_group.push(at);
            self.notice_channel.push(wakeups::channel(*server));
            self.notice_message.push(wakeups::message(namespace, key));
        }
    }

    fn write(&mut self, at: i32, write: &'b Write) {
        match &write.change {
            Change::Keep => {}
            Change::Put { version, value, lives_ms } => {
                self.put_group.push(at);
                self.put_key.push(write.key.text());
                self.put_version.push(version_bits(*version));
                self.put_value.push(value);
                self.put_lives.push(lives_ms.map(|lives| signed(lives.clamp(1, LIVES_MAX_MS))));
            }
            Change::Remove => {
                self.removed_group.push(at);
                self.removed_key.push(write.key.text());
                return;
            }
        }
        for (place, (name, value)) in write.items.iter().enumerate() {
            // The last change of an item counts.
            if write.items[place + 1..].iter().any(|(later, _)| later == name) {
                continue;
            }
            self.item_group.push(at);
            self.item_key.push(write.key.text());
            self.item_name.push(name);
            self.item_value.push(value.as_deref());
        }
    }

    /// The parameters in their order.
    pub(super) fn parameters<'a>(&'a self, scalars: &'a Scalars<'a>) -> Vec<Parameter<'a>> {
        let first: [Parameter<'a>; 9] = [
            &scalars.namespace,
            &scalars.lineage,
            &scalars.seen,
            &self.taken,
            &self.above,
            &scalars.bound_ms,
            &scalars.latest_ms,
            &scalars.earliest_ms,
            &self.begins,
        ];
        let arrays: [Parameter<'a>; 22] = [
            &self.waves,
            &self.has_times,
            &self.wave,
            &self.from,
            &self.before,
            &self.read_group,
            &self.read_key,
            &self.read_version,
            &self.put_group,
            &self.put_key,
            &self.put_version,
            &self.put_value,
            &self.put_lives,
            &self.removed_group,
            &self.removed_key,
            &self.item_group,
            &self.item_key,
            &self.item_name,
            &self.item_value,
            &self.notice_group,
            &self.notice_channel,
            &self.notice_message,
        ];
        first.into_iter().chain(arrays).collect()
    }

    /// Decodes the reply of `commit`: the counter before it, the time, and of each group its
    /// outcome if it was committed.
    ///
    /// # Errors
    /// A sentence where it is no such reply.
    pub(super) fn committed(
        &self,
        row: &Row,
    ) -> Result<(u64, u64, Vec<Option<GroupOutcome>>), String> {
        let refused: Vec<i32> = column(row, 2)?;
        let refused: HashSet<i32> = refused.into_iter().collect();
        let groups = 0..self.batch.groups.len();
        let groups = groups.map(|at| (!refused.contains(&number(at))).then_some(Ok(())));
        Ok((unsigned(column(row, 0)?), unsigned(column(row, 1)?), groups.collect()))
    }
}

/// Of each group a number, so that groups of one number have no record in common, and those that
/// have one come in their order.
fn waves(groups: &[Group]) -> Vec<i32> {
    let mut last: HashMap<&Key, i32> = HashMap::new();
    let wave = |group: &'_ Group, last: &HashMap<&Key, i32>| {
        let before = group.reads.iter().filter_map(|(key, _)| last.get(key));
        before.max().map_or(1, |before| before + 1)
    };
    let mut waves = Vec::with_capacity(groups.len());
    for group in groups {
        let wave = wave(group, &last);
        last.extend(group.reads.iter().map(|(key, _)| (key, wave)));
        waves.push(wave);
    }
    waves
}

/// Refuses what `commit` could not carry out.
fn check(group: &Group) -> Result<(), StoreError> {
    let has = |key: &Key| group.reads.iter().any(|(read, _)| read == key);
    let is_writable = |write: &Write| {
        let is_named = write.items.iter().all(|(name, _)| !name.contains('\0'));
        let is_new = !matches!(write.change, Change::Put { version: Version::ABSENT, .. });
        // A group of thousands is checked by its versions alone.
        is_named && is_new && (group.reads.len() > 100 || has(&write.key))
    };
    if group.writes.iter().all(is_writable) {
        return Ok(());
    }
    Err(StoreError::Unavailable("a group of writes is malformed; nothing was done".to_owned()))
}

/// A record without its key.
struct Stored {
    version: Version,
    base: u64,
    value: Vec<u8>,
    items: Vec<(ItemName, Vec<u8>)>,
}

/// Records by their places.
struct Found(HashMap<i32, Stored>);

impl Found {
    /// The record at a place, counted from 0, whose key is this one.
    fn take(&mut self, place: usize, key: &Key) -> Snapshot {
        let key = key.clone();
        match self.0.remove(&number(place)) {
            Some(Stored { version, base, value, items }) => {
                Snapshot { key, version, base, value, items, shift_ms: 0 }
            }
            None => Snapshot::absent(key),
        }
    }
}

/// Records from seven columns on. Their keys are those of their places, which the caller knows.
fn found(row: &Row, at: usize) -> Result<Found, String> {
    let places: Option<Vec<i32>> = column(row, at)?;
    let versions: Option<Vec<i64>> = column(row, at + 1)?;
    let bases: Option<Vec<i64>> = column(row, at + 2)?;
    let values: Option<Vec<Vec<u8>>> = column(row, at + 3)?;
    let mut found = HashMap::new();
    let versions = versions.into_iter().flatten().zip(bases.into_iter().flatten());
    let records = versions.zip(values.into_iter().flatten());
    for (place, ((version, base), value)) in places.into_iter().flatten().zip(records) {
        let version = Version(version.cast_unsigned());
        let base = unsigned(base);
        let items = Vec::new();
        found.insert(place, Stored { version, base, value, items });
    }
    let places: Option<Vec<i32>> = column(row, at + 4)?;
    let names: Option<Vec<String>> = column(row, at + 5)?;
    let values: Option<Vec<Vec<u8>>> = column(row, at + 6)?;
    let items = names.into_iter().flatten().zip(values.into_iter().flatten());
    for (place, item) in places.into_iter().flatten().zip(items) {
        if let Some(stored) = found.get_mut(&place) {
            stored.items.push(item);
        }
    }
    Ok(Found(found))
}

/// Decodes the reply of `read`: snapshots, the counter, and the time.
pub(super) fn read(keys: &[Key], row: &Row) -> Result<(Vec<Snapshot>, u64, u64), String> {
    let counter = column(row, 0)?;
    let now_ms = column(row, 1)?;
    let mut found = found(row, 2)?;
    let snapshots = keys.iter().enumerate().map(|(place, key)| found.take(place, key));
    Ok((snapshots.collect(), unsigned(counter), unsigned(now_ms)))
}

/// Decodes the reply of `beat`: with it the end of the log.
pub(super) fn beat(row: &Row) -> Result<(Beat, i64), String> {
    let servers: Vec<i64> = column(row, 5)?;
    let beat = Beat {
        now_ms: unsigned(column(row, 0)?),
        counter: unsigned(column(row, 1)?),
        ahead_ms: column(row, 2)?,
        paused_ms: unsigned(column(row, 3)?),
        lives_ms: column::<Option<i64>>(row, 4)?.map(unsigned),
        servers: servers.into_iter().filter_map(|server| u32::try_from(server).ok()).collect(),
    };
    Ok((beat, column(row, 6)?))
}
