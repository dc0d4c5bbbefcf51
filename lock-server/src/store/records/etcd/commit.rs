//! A batch as transactions. The groups of a transaction are transactions in it, each with its own
//! conditions, so that they share one entry of etcd's log.
//!
//! Around them, the transaction compares two keys: the counter, and this server's last commit, which it
//! replaces. So a commit is done once, however often it is sent, and a lost answer is found again by the
//! last commit.

use std::collections::{BTreeMap, HashSet};

use super::client::CallError;
use super::lineage::{Known, Meta, Occasion};
use super::offset::{self, Doubt};
use super::txn::{self, branched};
use super::value::Header;
use super::wire::{Compare, Step, Txn, TxnReply};
use super::{Inner, store_error};
use crate::store::StoreError;
use crate::store::records::{Batch, Change, Committed, Group, Key, Snapshot, Version, Write};

/// How often a part is sent that others keep from being committed, by changing the counter.
const TRIES: usize = 16;
/// How many steps a level of a transaction has where it branches. Three levels of groups and their
/// steps stay below the 128 steps that etcd takes by default (`--max-txn-ops`), which it counts along
/// each path.
pub(super) const WIDTH: usize = 30;
/// How many groups one transaction has.
const GROUPS_MAX: usize = WIDTH * WIDTH;
/// How many conditions or steps a group has that is sent with others.
const SMALL: usize = 60;
/// How many conditions a group has that is sent alone.
const LARGE: usize = 90;
/// How many records the driver decides together: two conditions each.
pub(super) const READS_MAX: usize = 40;
/// About how many bytes a transaction has. etcd takes 1.5 MiB by default (`--max-request-bytes`).
const BYTES_MAX: usize = 1_000_000;
/// About how many bytes a step has beside keys and values.
const STEP_BYTES: usize = 32;
/// How many commits with an unknown outcome are remembered.
const LOST_MAX: usize = 16;

type Outcome = Result<(), Vec<Snapshot>>;

/// The key that says what this server committed last.
#[derive(Debug, Default)]
pub(super) struct Pen {
    /// As it is written; none where it has to be written anew.
    value: Option<String>,
    /// The etcd lease that the key hangs on; 0 for none.
    pub(super) lease: u64,
    count: u64,
    /// Commits that may be done yet.
    lost: Vec<String>,
}

/// A part of a batch that was committed.
struct Done {
    base: u64,
    outcomes: Vec<Option<Outcome>>,
    doubt: Option<Doubt>,
}

/// A transaction that is to be sent, and what it writes around the groups.
struct Draft<'a> {
    known: &'a Known,
    meta: Option<Meta>,
    next: String,
    groups: &'a [&'a Group],
    /// Which groups are in it; the others are out of their time.
    sent: Vec<usize>,
}

/// How large a group is.
struct Size {
    width: usize,
    bytes: usize,
}

fn size_of(group: &Group) -> Size {
    let compares: usize = group
        .reads
        .iter()
        .map(|(_, version)| if *version == Version::ABSENT { 1 } else { 2 })
        .sum();
    let items = group.writes.iter().map(|write| write.items.len()).sum::<usize>();
    let steps = group.writes.len() * 2 + items + group.notify.len();
    let values: usize = group.writes.iter().map(bytes_of).sum();
    let keys: usize = group.reads.iter().map(|(key, _)| 4 * length_of(key)).sum();
    let width = compares.max(steps).max(group.reads.len());
    Size { width, bytes: (compares + steps) * STEP_BYTES + values + keys }
}

fn bytes_of(write: &Write) -> usize {
    let value = match &write.change {
        Change::Put { value, .. } => value.len(),
        Change::Keep | Change::Remove => 0,
    };
    let key = length_of(&write.key);
    let items = write.items.iter();
    let items = items.map(|(name, value)| key + name.len() + value.as_ref().map_or(0, Vec::len));
    value + items.sum::<usize>()
}

fn length_of(key: &Key) -> usize {
    match key {
        Key::Lock(lock) => lock.as_str().len() + STEP_BYTES,
        Key::Session(_) => 2 * STEP_BYTES,
    }
}

/// Which groups go into which transaction. No transaction has two groups with a record in common, and a
/// large group is alone.
fn parts(groups: &[Group]) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
    let (mut keys, mut bytes, mut is_closed) = (HashSet::<&Key>::new(), 0, false);
    for (at, group) in groups.iter().enumerate() {
        let size = size_of(group);
        let is_large = size.width > SMALL;
        let meets = group.reads.iter().any(|(key, _)| keys.contains(key));
        let count = parts.last().map_or(0, Vec::len);
        let is_full = count >= GROUPS_MAX || bytes + size.bytes > BYTES_MAX;
        if count > 0 && (is_closed || is_large || meets || is_full) {
            parts.push(Vec::new());
            (keys, bytes) = (HashSet::new(), 0);
        }
        is_closed = is_large;
        bytes += size.bytes;
        keys.extend(group.reads.iter().map(|(key, _)| key));
        if let Some(part) = parts.last_mut() {
            part.push(at);
        }
    }
    parts
}

impl Inner {
    /// See [`RecordStore::commit`](crate::store::records::RecordStore::commit). Tokens of one batch follow
    /// each other, and every transaction has a revision of its own: of a batch that takes tokens, what
    /// does not go into the first transaction is refused, and decided again.
    pub(super) async fn commit_batch(&self, batch: &Batch) -> Result<Committed, StoreError> {
        let mut pen = self.pen.lock().await;
        self.lineage.saw_counter(batch.counter);
        let mut outcomes: Vec<Option<Outcome>> = batch.groups.iter().map(|_| None).collect();
        let mut base = None;
        for part in parts(&batch.groups) {
            if base.is_some() && batch.tokens > 0 {
                break;
            }
            let groups: Vec<&Group> = part.iter().map(|at| &batch.groups[*at]).collect();
            let tokens = if base.is_none() { batch.tokens } else { 0 };
            let done = self.commit_part(&mut pen, &groups, tokens).await;
            let done =
                done.map_err(|error| if base.is_none() { error } else { half_done(&error) })?;
            base.get_or_insert(done.base);
            for (at, outcome) in part.into_iter().zip(done.outcomes) {
                outcomes[at] = outcome;
            }
        }
        drop(pen);
        self.note_due(batch, &outcomes);
        let groups = self.read_refused(&batch.groups, outcomes).await?;
        let base = base.unwrap_or(batch.counter);
        self.lineage.saw_counter(base.saturating_add(batch.tokens));
        Ok(Committed { base, now_ms: None, groups, lineage: None })
    }

    /// Adds what stands in etcd to the groups that were refused without being sent.
    async fn read_refused(
        &self,
        groups: &[Group],
        outcomes: Vec<Option<Outcome>>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let refused = groups.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
        let keys: Vec<Key> =
            refused.flat_map(|(group, _)| &group.reads).map(|(key, _)| key.clone()).collect();
        let found = if keys.is_empty() { Ok(Vec::new()) } else { self.read_all(&keys).await };
        let mut found = match found {
            Ok(found) => found.into_iter(),
            // Nothing was done where everything was refused so.
            Err(error) if outcomes.iter().all(Option::is_none) => return Err(error),
            Err(error) => return Err(half_done(&error)),
        };
        let outcomes = groups.iter().zip(outcomes).map(|(group, outcome)| match outcome {
            Some(outcome) => outcome,
            None => Err(found.by_ref().take(group.reads.len()).collect()),
        });
        Ok(outcomes.collect())
    }

    /// Commits a part, and again with other tokens where those that it took are in doubt.
    async fn commit_part(
        &self,
        pen: &mut Pen,
        groups: &[&Group],
        tokens: u64,
    ) -> Result<Done, StoreError> {
        let mut done = self.send_part(pen, groups, tokens).await?;
        for _ in 0..TRIES {
            let Some(doubt) = done.doubt.take() else { return Ok(done) };
            tracing::warn!(%doubt, "tokens were taken of an etcd that is an older state; taking others");
            self.lineage.forget();
            let verified = self.lineage.verify(&self.client, Occasion::Forgotten).await;
            verified.map_err(|error| half_done(&error))?;
            let again: Vec<(usize, Group)> = groups
                .iter()
                .enumerate()
                .filter(|(at, _)| matches!(done.outcomes[*at], Some(Ok(()))))
                .filter_map(|(at, group)| Some((at, rewritten(group)?)))
                .collect();
            let rewrites: Vec<&Group> = again.iter().map(|(_, group)| group).collect();
            let later = self.send_part(pen, &rewrites, tokens).await;
            let later = later.map_err(|error| half_done(&error))?;
            (done.base, done.doubt) = (later.base, later.doubt);
            for ((at, _), outcome) in again.iter().zip(later.outcomes) {
                // A record that changed meanwhile is read as it stands.
                done.outcomes[*at] = outcome.filter(Result::is_ok);
            }
        }
        Err(half_done(&StoreError::Unavailable("etcd goes back again and again".to_owned())))
    }

    async fn send_part(
        &self,
        pen: &mut Pen,
        groups: &[&Group],
        tokens: u64,
    ) -> Result<Done, StoreError> {
        for _ in 0..TRIES {
            let (known, seen) = self.lineage.ready(&self.client, tokens).await?;
            let value = self.take_pen(pen).await?;
            let now_ms = self.now_ms();
            let is_in_time =
                |group: &Group| group.not_before_ms <= now_ms && now_ms < group.before_ms;
            let sent = (0..groups.len()).filter(|at| is_in_time(groups[*at])).collect();
            pen.count += 1;
            let next = format!("{:08x}.{}", self.writer, pen.count);
            let meta = known.meta.after(tokens);
            let draft = Draft { known: &known, meta, next, groups, sent };
            let Some(txn) = self.txn_of(&draft, &value, pen.lease, now_ms).await? else {
                // One that was read first has changed.
                let outcomes = groups.iter().map(|_| None).collect();
                return Ok(Done { base: self.lineage.counter_now(), outcomes, doubt: None });
            };
            let reply = match self.client.commit(&txn).await {
                Ok(reply) => reply,
                Err(error) if error.is_no_lease() => {
                    *pen = Pen { count: pen.count, ..Pen::default() };
                    continue;
                }
                Err(error @ (CallError::Unknown(_) | CallError::Full(_))) => {
                    return self.find(pen, draft, error).await;
                }
                Err(error) => return Err(store_error(error)),
            };
            if reply.succeeded {
                let base = offset::base(known.meta.offset, reply.header.revision);
                let doubt = match tokens {
                    0 => seen.doubt_of_writing(&reply.header),
                    _ => seen.doubt_of_tokens(&reply.header, base),
                };
                self.lineage.saw(&reply.header);
                self.wrote(pen, &draft);
                if doubt.is_some() && tokens == 0 {
                    self.lineage.forget();
                }
                let outcomes = self.outcomes_of(&draft, reply);
                return Ok(Done { base, outcomes, doubt: doubt.filter(|_| tokens > 0) });
            }
            if let Some(done) = self.refused(pen, &draft, reply).await? {
                return Ok(done);
            }
        }
        Err(StoreError::Unavailable(
            "other lock servers change the token counter all the time; try again".to_owned(),
        ))
    }

    /// The last commit of this server as it is written; written anew where it is not known.
    async fn take_pen(&self, pen: &mut Pen) -> Result<String, StoreError> {
        if let Some(value) = &pen.value {
            return Ok(value.clone());
        }
        if pen.lease == 0 || !self.is_kept(pen.lease).await? {
            pen.lease = self.new_lease(super::PEN_LIVES_S).await?;
        }
        pen.count += 1;
        let value = format!("{:08x}.{}", self.writer, pen.count);
        let put = txn::put_on(&self.keys.pen(self.writer), value.as_bytes(), pen.lease);
        let txn = Txn { success: vec![put], ..Txn::default() };
        self.client.run(&txn).await.map_err(store_error)?;
        // What was sent before compares what is overwritten now, and is never done any more.
        pen.lost.clear();
        pen.value = Some(value.clone());
        Ok(value)
    }

    /// The transaction; `None` where a record that had to be read first has changed.
    async fn txn_of(
        &self,
        draft: &Draft<'_>,
        pen: &str,
        lease: u64,
        now_ms: u64,
    ) -> Result<Option<Txn>, StoreError> {
        let (keys, offset) = (&self.keys, draft.known.meta.offset);
        let mut steps = Vec::with_capacity(draft.sent.len());
        for at in &draft.sent {
            let group = draft.groups[*at];
            let mut step = self.txn_of_group(group, offset, now_ms);
            if step.compare.len() > LARGE {
                let Some(compare) = self.compare_revisions(group).await? else { return Ok(None) };
                step.compare = compare;
            }
            if step.width() > LARGE {
                return Err(StoreError::Limit {
                    what: "records in one step on etcd",
                    limit: LARGE as u64,
                });
            }
            steps.push(step.step());
        }
        let pen_key = keys.pen(self.writer);
        let mut success = vec![txn::put_on(&pen_key, draft.next.as_bytes(), lease)];
        success.extend(draft.meta.as_ref().map(|meta| txn::put(&keys.meta(), &meta.bytes())));
        success.extend(branched(steps, WIDTH));
        Ok(Some(Txn {
            compare: vec![draft.known.compare(keys), txn::says(&pen_key, pen.as_bytes())],
            success,
            failure: vec![txn::get(&keys.meta()), txn::get(&pen_key)],
        }))
    }

    fn txn_of_group(&self, group: &Group, offset: u64, now_ms: u64) -> Txn {
        let keys = &self.keys;
        let compare = group.reads.iter();
        let compare =
            compare.flat_map(|(key, version)| txn::has_version(&keys.record(key), *version));
        let mut success = Vec::new();
        for write in &group.writes {
            let read = group.reads.iter().find(|(key, _)| *key == write.key);
            let is_absent = read.is_none_or(|(_, version)| *version == Version::ABSENT);
            self.steps_of(write, is_absent, (offset, now_ms), &mut success);
        }
        let notify: HashSet<String> =
            group.notify.iter().map(|(server, key)| keys.message(*server, key)).collect();
        success.extend(notify.iter().map(|message| txn::put(message, b"")));
        let failure = group.reads.iter().map(|(key, _)| self.get(key));
        let success = if success.len() > SMALL { branched(success, WIDTH) } else { success };
        Txn { compare: compare.collect(), success, failure: failure.collect() }
    }

    /// Reads a lock with its items, or a session without.
    pub(super) fn get(&self, key: &Key) -> Step {
        match key {
            Key::Lock(_) => txn::get_all(&self.keys.whole(key)),
            Key::Session(_) => txn::get(&self.keys.record(key)),
        }
    }

    fn steps_of(
        &self,
        write: &Write,
        is_absent: bool,
        (offset, at_ms): (u64, u64),
        steps: &mut Vec<Step>,
    ) {
        let (keys, key) = (&self.keys, &write.key);
        match &write.change {
            // Items belong to a record.
            Change::Keep | Change::Remove if is_absent => return,
            Change::Keep => {}
            Change::Remove => return steps.extend(self.removal(key)),
            Change::Put { version, value, lives_ms } => {
                let (version, writer, lives_ms) = (*version, self.writer, *lives_ms);
                let header = Header { version, offset, writer, at_ms, lives_ms };
                steps.push(txn::put(&keys.record(key), &header.with(value)));
            }
        }
        // The last word on an item counts; etcd takes one.
        let items: BTreeMap<&str, Option<&[u8]>> =
            write.items.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
        steps.extend(items.into_iter().map(|(name, value)| match value {
            Some(value) => txn::put(&keys.item(key, name), value),
            None => txn::delete(&keys.item(key, name)),
        }));
    }

    /// Removes a record with its items.
    pub(super) fn removal(&self, key: &Key) -> Vec<Step> {
        let keys = &self.keys;
        match key {
            Key::Lock(_) => vec![txn::delete_all(&keys.whole(key))],
            Key::Session(_) => {
                vec![txn::delete(&keys.record(key)), txn::delete_all(&keys.items(key))]
            }
        }
    }

    /// One condition a record in place of two, for a group with many: its records are read first.
    async fn compare_revisions(&self, group: &Group) -> Result<Option<Vec<Compare>>, StoreError> {
        let keys: Vec<Key> = group.reads.iter().map(|(key, _)| key.clone()).collect();
        let (found, _) = self.read_raw(&keys).await?;
        let mut compare = Vec::with_capacity(keys.len());
        for ((key, version), kvs) in group.reads.iter().zip(&found) {
            let name = self.keys.record(key);
            let kv = kvs.iter().find(|kv| kv.name() == name);
            let header = kv.and_then(|kv| Header::read(&kv.value));
            if header.map_or(Version::ABSENT, |(header, _)| header.version) != *version {
                return Ok(None);
            }
            compare.push(txn::written_by(&name, kv.map_or(0, |kv| kv.mod_revision)));
        }
        Ok(Some(compare))
    }

    fn wrote(&self, pen: &mut Pen, draft: &Draft<'_>) {
        pen.value = Some(draft.next.clone());
        pen.lost.clear();
        if let Some(meta) = &draft.meta {
            self.lineage.wrote(meta.clone());
        }
    }

    fn outcomes_of(&self, draft: &Draft<'_>, reply: TxnReply) -> Vec<Option<Outcome>> {
        let now_ms = self.now_ms();
        let mut outcomes: Vec<Option<Outcome>> = draft.groups.iter().map(|_| None).collect();
        let is_branched = draft.sent.len() > WIDTH;
        let mut replies: Vec<TxnReply> = reply.txns().collect();
        if is_branched {
            replies = replies.into_iter().flat_map(TxnReply::txns).collect();
        }
        for (at, reply) in draft.sent.iter().zip(replies) {
            outcomes[*at] = Some(if reply.succeeded {
                Ok(())
            } else {
                let reads = draft.groups[*at].reads.iter().zip(reply.ranges());
                Err(reads.map(|((key, _), range)| self.snapshot(key, range.kvs, now_ms)).collect())
            });
        }
        outcomes
    }

    /// Why nothing was committed: the counter was changed, or this server's last commit is another one.
    /// That is this very commit where an earlier member has done it and its answer was lost.
    async fn refused(
        &self,
        pen: &mut Pen,
        draft: &Draft<'_>,
        reply: TxnReply,
    ) -> Result<Option<Done>, StoreError> {
        self.lineage.saw(&reply.header);
        let mut found = reply.ranges().map(|range| range.kvs.into_iter().next());
        let (meta, last) = (found.next().flatten(), found.next().flatten());
        if let Some(last) = &last
            && last.value == draft.next.as_bytes()
        {
            return self.done_before(pen, draft, last.mod_revision).await.map(Some);
        }
        if !draft.known.is(meta.as_ref()) {
            self.lineage.forget();
        }
        let last = last.and_then(|kv| String::from_utf8(kv.value).ok());
        if last == pen.value {
            return Ok(None);
        }
        pen.value = last.filter(|last| pen.lost.contains(last));
        if pen.value.is_none() {
            self.lineage.forget();
            self.lineage.verify(&self.client, Occasion::Forgotten).await?;
        }
        Ok(None)
    }

    /// Whether a commit was done is not known: this server's last commit says it, unless it is done yet.
    async fn find(
        &self,
        pen: &mut Pen,
        draft: Draft<'_>,
        error: CallError,
    ) -> Result<Done, StoreError> {
        let get = txn::get(&self.keys.pen(self.writer));
        let txn = Txn { success: vec![get], ..Txn::default() };
        if let Ok(reply) = self.client.run(&txn).await {
            let last = reply.ranges().next().and_then(|range| range.kvs.into_iter().next());
            let last = last.map(|kv| (kv.value, kv.mod_revision));
            match (last, error) {
                (Some((value, revision)), _) if value == draft.next.as_bytes() => {
                    return self.done_before(pen, &draft, revision).await;
                }
                (Some((value, _)), CallError::Full(reason))
                    if pen.value.as_ref().is_some_and(|known| value == known.as_bytes()) =>
                {
                    return Err(StoreError::Unavailable(reason));
                }
                (_, error) => return Err(Self::lose(pen, draft, error)),
            }
        }
        Err(Self::lose(pen, draft, error))
    }

    /// Remembers a commit that may be done yet.
    fn lose(pen: &mut Pen, draft: Draft<'_>, error: CallError) -> StoreError {
        if pen.lost.len() >= LOST_MAX {
            *pen = Pen { count: pen.count, lease: pen.lease, ..Pen::default() };
        } else {
            pen.lost.push(draft.next);
        }
        store_error(error)
    }

    /// What a commit came to whose answer was lost, by the records as they stand.
    async fn done_before(
        &self,
        pen: &mut Pen,
        draft: &Draft<'_>,
        revision: u64,
    ) -> Result<Done, StoreError> {
        self.wrote(pen, draft);
        let base = offset::base(draft.known.meta.offset, revision);
        let sent = draft.sent.iter().map(|at| draft.groups[*at]);
        let keys: Vec<Key> =
            sent.flat_map(|group| &group.reads).map(|(key, _)| key.clone()).collect();
        let found = self.read_all(&keys).await.map_err(|error| half_done(&error))?;
        let mut found = found.into_iter();
        let mut outcomes: Vec<Option<Outcome>> = draft.groups.iter().map(|_| None).collect();
        for at in &draft.sent {
            let group = draft.groups[*at];
            let snapshots: Vec<Snapshot> = found.by_ref().take(group.reads.len()).collect();
            let was_done =
                group.reads.iter().zip(&snapshots).all(|((key, read), found)| {
                    found.version == written(group, key).unwrap_or(*read)
                });
            outcomes[*at] = Some(if was_done { Ok(()) } else { Err(snapshots) });
        }
        Ok(Done { base, outcomes, doubt: None })
    }
}

/// The version that a group gives a record; `None` where it keeps its version.
fn written(group: &Group, key: &Key) -> Option<Version> {
    let write = group.writes.iter().find(|write| write.key == *key)?;
    match write.change {
        Change::Put { version, .. } => Some(version),
        Change::Remove => Some(Version::ABSENT),
        Change::Keep => None,
    }
}

/// The values of a group once more, over themselves: with the tokens of the commit that writes them.
fn rewritten(group: &Group) -> Option<Group> {
    let puts: Vec<Write> = group
        .writes
        .iter()
        .filter(|write| matches!(write.change, Change::Put { .. }))
        .map(|write| Write { items: Vec::new(), ..write.clone() })
        .collect();
    let reads = puts.iter().filter_map(|put| Some((put.key.clone(), written(group, &put.key)?)));
    let reads = reads.collect();
    (!puts.is_empty()).then(|| Group { reads, writes: puts, ..Group::everything() })
}

/// When a record's time is over that lives so long from now on.
pub(super) fn outlives(now_ms: u64, lives_ms: u64) -> u64 {
    // Far enough for what lives for ever, and still a moment.
    now_ms.saturating_add(lives_ms).min(u64::MAX / 2)
}

/// A part of a batch was done, and the rest was not, or is not known.
fn half_done(error: &StoreError) -> StoreError {
    StoreError::Unknown(format!(
        "a part of it may be done ({error}); repeat it with the same lease_id"
    ))
}
