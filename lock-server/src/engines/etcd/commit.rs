//! A batch as transactions. The groups of a transaction are transactions in it, each with its own
//! conditions, so that they share one entry of etcd's log.
//!
//! Around them, the transaction compares two keys: the counter, and this server's last commit
//! (`marker.rs`), which it replaces. So a commit is done once, however often it is sent, and a lost
//! reply is found again by the last commit. `parts.rs` says which groups share a transaction,
//! `steps.rs` what it consists of.

mod marker;
mod parts;
mod steps;

use super::client::CallError;
use super::lineage::{KnownMeta, Occasion};
use super::offset::{Doubt, Meta, Seen};
use super::{EtcdInner, store_error};
use crate::engines::contract::{Batch, Change, Committed, Group, Key, Version, Write};
use crate::engines::shared::refused::{GroupOutcome, half_done, read_refused};
use crate::store::StoreError;

pub(super) use self::marker::CommitMarker;
use self::parts::parts;
pub(super) use self::parts::{READS_MAX, WIDTH};

/// Attempts to send a part while other servers change the counter.
const TRIES: usize = 16;
/// Commits with an unknown outcome that are remembered.
const LOST_MAX: usize = 16;

/// A part of a batch that was committed.
pub(super) struct Done {
    base: u64,
    /// Of each group in order; none where it was not sent, or has to be read.
    pub(super) outcomes: Vec<Option<GroupOutcome>>,
    doubt: Option<Doubt>,
}

/// A transaction that is to be sent, and what it writes around the groups.
struct Draft<'a> {
    known: &'a KnownMeta,
    /// State of etcd that was seen before it is sent.
    seen: Seen,
    tokens: u64,
    meta: Option<Meta>,
    next: String,
    groups: &'a [&'a Group],
    /// Groups that are in it; the others are out of their time.
    sent: Vec<usize>,
}

impl EtcdInner {
    /// See [`commit`](crate::engines::contract::RecordStore::commit). Tokens of one batch follow
    /// each other, and every transaction has a revision of its own: of a batch that takes tokens,
    /// what does not go into the first transaction is refused, and decided again.
    pub(super) async fn commit_batch(&self, batch: &Batch) -> Result<Committed, StoreError> {
        let mut marker = self.marker.lock().await;
        self.lineage.saw_counter(batch.counter);
        self.expect(batch);
        let done = self.commit_parts(&mut marker, batch).await;
        drop(marker);
        self.record(batch, done.as_ref());
        let done = done?;
        let read = async |keys: &[Key]| self.read_all(keys).await;
        let groups = read_refused(&batch.groups, done.outcomes, read).await?;
        self.lineage.saw_counter(done.base.saturating_add(batch.tokens));
        Ok(Committed { base: done.base, now_ms: None, groups, lineage: None })
    }

    async fn commit_parts(
        &self,
        marker: &mut CommitMarker,
        batch: &Batch,
    ) -> Result<Done, StoreError> {
        let mut outcomes: Vec<Option<GroupOutcome>> = batch.groups.iter().map(|_| None).collect();
        let mut base = None;
        for part in parts(&batch.groups) {
            if base.is_some() && batch.tokens > 0 {
                break;
            }
            let groups: Vec<&Group> = part.iter().map(|at| &batch.groups[*at]).collect();
            let tokens = if base.is_none() { batch.tokens } else { 0 };
            let done = self.commit_part(marker, &groups, tokens).await;
            let done =
                done.map_err(|error| if base.is_none() { error } else { half_done(&error) })?;
            base.get_or_insert(done.base);
            for (at, outcome) in part.into_iter().zip(done.outcomes) {
                outcomes[at] = outcome;
            }
        }
        Ok(Done { base: base.unwrap_or(batch.counter), outcomes, doubt: None })
    }

    /// Commits a part, and again with other tokens if those that it took are suspect.
    async fn commit_part(
        &self,
        marker: &mut CommitMarker,
        groups: &[&Group],
        tokens: u64,
    ) -> Result<Done, StoreError> {
        let mut done = self.send_part(marker, groups, tokens).await?;
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
                .filter_map(|(at, group)| Some((at, rewritten(group, || self.next_version())?)))
                .collect();
            let rewrites: Vec<&Group> = again.iter().map(|(_, group)| group).collect();
            let later = self.send_part(marker, &rewrites, tokens).await;
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
        marker: &mut CommitMarker,
        groups: &[&Group],
        tokens: u64,
    ) -> Result<Done, StoreError> {
        for _ in 0..TRIES {
            let (known, seen) = self.lineage.ready(&self.client, tokens).await?;
            let value = self.take_marker(marker).await?;
            let now_ms = self.now_ms();
            let is_in_time =
                |group: &Group| group.not_before_ms <= now_ms && now_ms < group.before_ms;
            let sent = (0..groups.len()).filter(|at| is_in_time(groups[*at])).collect();
            marker.count += 1;
            let next = format!("{:08x}.{}", self.writer, marker.count);
            let meta = known.meta.after(tokens);
            let draft = Draft { known: &known, seen, tokens, meta, next, groups, sent };
            let Some(txn) = self.txn_of(&draft, &value, marker.lease, now_ms).await? else {
                // One that was read first has changed. No token was taken: the counter is where it
                // was.
                let base = self.lineage.counter_now().saturating_sub(tokens);
                let outcomes = groups.iter().map(|_| None).collect();
                return Ok(Done { base, outcomes, doubt: None });
            };
            let reply = match self.client.commit(&txn).await {
                Ok(reply) => reply,
                Err(error) if error.is_no_lease() => {
                    marker.forget_lease();
                    continue;
                }
                Err(error @ (CallError::Unknown(_) | CallError::Full(_))) => {
                    return self.find(marker, draft, error).await;
                }
                Err(error) => return Err(store_error(error)),
            };
            if reply.succeeded {
                let (base, doubt) = self.wrote(marker, &draft, &reply.header);
                let outcomes = self.outcomes_of(&draft, reply);
                return Ok(Done { base, outcomes, doubt });
            }
            if let Some(done) = self.refused(marker, &draft, reply).await? {
                return Ok(done);
            }
        }
        Err(StoreError::Unavailable(
            "other lock servers change the token counter all the time; try again".to_owned(),
        ))
    }
}

/// The values of a group once more, over themselves: with the tokens of the commit that writes
/// them. They have other versions, because another server may have read the tokens that they had.
fn rewritten(group: &Group, mut next: impl FnMut() -> Version) -> Option<Group> {
    let mut again = Group::everything();
    for write in &group.writes {
        if let Change::Put { version: was, value, lives_ms } = &write.change {
            let key = write.key.clone();
            let value = value.clone();
            let lives_ms = *lives_ms;
            again.reads.push((key.clone(), *was));
            let change = Change::Put { version: next(), value, lives_ms };
            again.writes.push(Write { key, change, items: Vec::new() });
        }
    }
    (!again.writes.is_empty()).then_some(again)
}

/// When a record's time is over that lives so long from now on.
pub(super) fn outlives(now_ms: u64, lives_ms: u64) -> u64 {
    // Far enough for what lives for ever, and still a moment.
    now_ms.saturating_add(lives_ms).min(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use fence_protocol::LockName;

    use super::*;

    /// A server that has read a record with suspect tokens must notice that they have changed.
    #[test]
    fn what_is_written_again_has_another_version() {
        let key = |name| Key::Lock(LockName::new(name).unwrap());
        let put = |name, version| {
            let change = Change::Put { version, value: b"v".to_vec(), lives_ms: Some(7) };
            Write { key: key(name), change, items: vec![("1".to_owned(), None)] }
        };
        let gone = Write { key: key("gone"), change: Change::Remove, items: Vec::new() };
        let reads = vec![(key("a"), Version(1)), (key("gone"), Version(2))];
        let writes = vec![put("a", Version(3)), gone.clone()];
        let group = Group { reads, writes, ..Group::everything() };
        let again = rewritten(&group, || Version(9)).unwrap();
        assert_eq!(again.reads, [(key("a"), Version(3))]);
        let expected = Write { items: Vec::new(), ..put("a", Version(9)) };
        assert_eq!(again.writes, [expected]);
        let removal = Group { writes: vec![gone], ..Group::everything() };
        assert_eq!(rewritten(&removal, || Version(9)), None);
    }
}
