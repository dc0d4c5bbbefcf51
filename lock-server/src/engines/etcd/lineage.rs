//! The counter in force: which offset tokens have, and that it is still the right one.
//!
//! Every commit compares the counter's key, so a server with an old offset commits nothing. It also
//! compares this server's last commit, so that nothing is committed on a restored backup that lacks
//! it. What neither can see is a backup that has this server's last commit and lacks those of
//! others: so every answer's header is compared with what was seen before, and the offset is
//! lifted. See [`super::offset`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fence_protocol::Token;
use lease::tokens;
use prometheus_client::metrics::counter::Counter as Metric;
use service_kit::Kit;
use service_kit::clock::Clock;

use super::client::EtcdClient;
use super::keys::Keys;
use super::offset::{self, Doubt, Found, Meta, Seen};
use super::wire::{Compare, Header, KeyValue, Status, Txn};
use super::{store_error, txn};
use crate::guards::Guards;
use crate::store::StoreError;

/// The format of everything under a namespace.
const FORMAT: u32 = 2;
/// The format of 0.1, whose records say other things under other keys.
const FORMAT_OF_0_1: u32 = 1;
/// Attempts to change the counter while other servers change it too.
const TRIES: usize = 16;
/// Probes of a log that looks shorter before that is believed.
const LOOKS: usize = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Meta {
    pub(super) fn bytes(&self) -> Vec<u8> {
        // Maps with keys that are no texts, and writers that fail, are the only causes.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Offset that a commit of so many tokens writes in its place, where they need it.
    pub(super) fn after(&self, tokens: u64) -> Option<Self> {
        let growth = offset::growth(tokens);
        (tokens > 0 && (self.fresh || growth > 0)).then(|| Self {
            offset: self.offset.saturating_add(growth),
            fresh: false,
            nonce: nonce(),
            ..self.clone()
        })
    }
}

/// A counter that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownMeta {
    pub(super) meta: Meta,
    /// As it is written.
    value: Vec<u8>,
}

impl KnownMeta {
    fn new(meta: Meta) -> Self {
        let value = meta.bytes();
        Self { meta, value }
    }

    /// That it is in force still.
    pub(super) fn compare(&self, keys: &Keys) -> Compare {
        txn::says(&keys.meta(), &self.value)
    }

    pub(super) fn is(&self, kv: Option<&KeyValue>) -> bool {
        kv.is_some_and(|kv| kv.value == self.value)
    }
}

/// When the counter is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The server starts.
    Start,
    /// Something was not as it should be, or another server changed it.
    Later,
    /// This server's last commit is not there.
    Forgotten,
}

/// The lineage of a namespace's tokens.
#[derive(Debug)]
pub(super) struct Lineage {
    keys: Keys,
    guards: Guards,
    clock: Arc<dyn Clock>,
    state: Mutex<LineageState>,
    /// One verification at a time.
    verifying: tokio::sync::Mutex<()>,
    lifts: Metric,
}

#[derive(Debug, Default)]
struct LineageState {
    known: Option<KnownMeta>,
    seen: Seen,
    /// Why the offset was lifted last, other than at a start.
    doubt: Option<Doubt>,
}

impl Lineage {
    pub(super) fn new(keys: &Keys, guards: Guards, kit: &Kit) -> Self {
        let lifts = kit
            .metrics
            .counter("lock_etcd_lifts", "How often this server lifted the offset of the tokens");
        Self {
            keys: keys.clone(),
            guards,
            clock: kit.clock.clone(),
            state: Mutex::default(),
            verifying: tokio::sync::Mutex::default(),
            lifts,
        }
    }

    fn state(&self) -> MutexGuard<'_, LineageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what was seen so far: to be taken before a request is sent, and compared after.
    pub(super) fn seen(&self) -> Seen {
        self.state().seen
    }

    /// Why the offset was lifted last, other than at a start.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.state().doubt
    }

    /// Notes a linearizable answer.
    pub(super) fn saw(&self, header: &Header) {
        let seen = &mut self.state().seen;
        if header.cluster_id == seen.cluster_id {
            seen.revision = seen.revision.max(header.revision);
        }
    }

    /// Notes how far the tokens are.
    pub(super) fn saw_counter(&self, counter: u64) {
        let seen = &mut self.state().seen;
        seen.token = seen.token.max(counter);
    }

    /// Records the state of a member; returns whether it makes the counter suspect. A member that
    /// lags behind the others looks like an older state, and then a verification finds none.
    pub(super) fn saw_status(&self, status: &Status) -> bool {
        let seen = &mut self.state().seen;
        let fell = status.raft_index < seen.raft_index;
        if seen.doubt(&status.header).is_some() || fell {
            return true;
        }
        seen.raft_index = status.raft_index;
        false
    }

    /// The counter to commit by, with what was seen until now, for so many tokens.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] where they are not left; [`StoreError`] of the verification.
    pub(super) async fn ready(
        &self,
        client: &EtcdClient,
        tokens: u64,
    ) -> Result<(KnownMeta, Seen), StoreError> {
        for _ in 0..TRIES {
            let (known, seen) = {
                let state = self.state();
                (state.known.clone(), state.seen)
            };
            let Some(known) = known else {
                self.verify(client, Occasion::Later).await?;
                continue;
            };
            let is_left = tokens == 0 || offset::has_room(known.meta.offset, seen.revision, tokens);
            return if is_left { Ok((known, seen)) } else { Err(StoreError::Exhausted) };
        }
        Err(contended())
    }

    /// The counter as far as it is known.
    pub(super) fn counter(&self, header: &Header) -> u64 {
        let state = self.state();
        let known = state.known.as_ref();
        known.map_or(0, |known| offset::counter(known.meta.offset, header.revision))
    }

    /// The counter as of what was seen last.
    pub(super) fn counter_now(&self) -> u64 {
        let state = self.state();
        let known = state.known.as_ref();
        known.map_or(state.seen.token, |known| {
            offset::counter(known.meta.offset, state.seen.revision)
        })
    }

    /// A commit wrote this counter.
    pub(super) fn wrote(&self, meta: Meta) {
        self.state().known = Some(KnownMeta::new(meta));
    }

    /// The counter must be read again before the next grant.
    pub(super) fn forget(&self) {
        self.state().known = None;
    }

    /// Lifts the counter above a mark that it is below.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] where no token would be left; [`StoreError`] of the verification.
    pub(super) async fn lift(&self, client: &EtcdClient, mark: Token) -> Result<(), StoreError> {
        let (known, seen) = self.ready(client, 0).await?;
        if offset::lifted(known.meta.offset, seen.revision, mark.get()).is_none() {
            return Err(StoreError::Exhausted);
        }
        self.guards.saw(mark);
        self.verify(client, Occasion::Later).await
    }

    /// Verifies the counter and etcd, and lifts the offset if tokens are suspect.
    ///
    /// # Errors
    /// [`StoreError`]; the counter is not to be used then.
    pub(super) async fn verify(
        &self,
        client: &EtcdClient,
        occasion: Occasion,
    ) -> Result<(), StoreError> {
        let _alone = self.verifying.lock().await;
        if occasion == Occasion::Start {
            self.guards.marks().await;
        }
        for round in 0..TRIES {
            // Before the reading: what others learn while it is under way may be later than it.
            let seen = self.seen();
            let (found, header) = self.read_counter(client).await?;
            // After the reading, which is linearizable: no member that answers is behind that.
            let status = client.status().await.map_err(store_error)?;
            let verdict = offset::doubt(
                &seen,
                &Found {
                    meta: found.as_ref().map(|known| &known.meta),
                    header: &header,
                    raft_index: status.raft_index,
                    mark: self.guards.highest(),
                    is_start: occasion == Occasion::Start,
                    is_forgotten: occasion == Occasion::Forgotten,
                },
            );
            let Some(doubt) = verdict else {
                self.adopt(found, &header, status.raft_index);
                return Ok(());
            };
            if matches!(doubt, Doubt::IndexFell { .. }) && round < LOOKS {
                // The two may have been asked of different members, and one may be behind.
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            if self.lift_for(client, doubt, found, &header, status.raft_index).await? {
                return Ok(());
            }
        }
        Err(contended())
    }

    async fn read_counter(
        &self,
        client: &EtcdClient,
    ) -> Result<(Option<KnownMeta>, Header), StoreError> {
        let txn = Txn { success: vec![txn::get(&self.keys.meta())], ..Txn::default() };
        let reply = client.run(&txn).await.map_err(store_error)?;
        let header = reply.header.clone();
        let kv = reply.ranges().next().and_then(|range| range.kvs.into_iter().next());
        let Some(kv) = kv else { return Ok((None, header)) };
        let meta: Meta = serde_json::from_slice(&kv.value).map_err(|error| {
            StoreError::Unavailable(format!(
                "the token counter in etcd, {}, cannot be read ({error}); nothing is granted until \
                 it is restored, or deleted: tokens then continue above everything that was issued",
                kv.name()
            ))
        })?;
        match meta.format {
            FORMAT => Ok((Some(KnownMeta { meta, value: kv.value }), header)),
            FORMAT_OF_0_1 => Err(StoreError::Unavailable(format!(
                "the namespace in etcd holds records of lock-server 0.1, which this version does not \
                 read; nothing was changed. Stop every server of 0.1, wait for the longest time to \
                 live of a lease, then delete them: etcdctl del --prefix {}",
                self.keys.all().begin
            ))),
            format => Err(StoreError::Unavailable(format!(
                "the namespace in etcd has format {format}, and this server knows {FORMAT}; use the \
                 version of lock-server that wrote it; nothing was changed"
            ))),
        }
    }

    /// Lifts the offset; returns `false` if another server was faster.
    async fn lift_for(
        &self,
        client: &EtcdClient,
        doubt: Doubt,
        found: Option<KnownMeta>,
        header: &Header,
        raft_index: u64,
    ) -> Result<bool, StoreError> {
        if doubt != Doubt::Start {
            self.guards.marks().await;
        }
        let known = self.seen().token.max(self.guards.highest());
        let above = tokens::after_loss(known, self.clock.wall_ms());
        let was = found.as_ref().map_or(0, |known| known.meta.offset);
        let lifted = offset::lifted(was, header.revision, above).ok_or(StoreError::Exhausted)?;
        let meta = Meta {
            format: FORMAT,
            offset: lifted,
            cluster_id: header.cluster_id,
            raft_index,
            fresh: false,
            nonce: String::new(),
        };
        // No grant begins by a suspect counter. It stays suspect until it is known to be lifted: a
        // lift that fails, or that another server has overtaken, is retried.
        self.forget();
        let (written, after) = self.write(client, found.as_ref(), meta).await?;
        if written {
            self.restart_seeing(&after, raft_index);
            self.lifts.inc();
            let next = offset::counter(lifted, header.revision) + 1;
            if matches!(doubt, Doubt::Start | Doubt::Missing) {
                tracing::info!(%doubt, next, "tokens continue above everything that can have been issued");
            } else {
                self.state().doubt = Some(doubt);
                tracing::warn!(
                    %doubt, next,
                    "etcd may have lost what it knew; tokens continue above everything that can have \
                     been issued"
                );
            }
        }
        Ok(written)
    }

    /// Forgets observations that were made before the counter was lifted, except for the tokens:
    /// they are of another life of this etcd.
    fn restart_seeing(&self, header: &Header, raft_index: u64) {
        let mut state = self.state();
        state.seen = Seen {
            cluster_id: header.cluster_id,
            revision: header.revision,
            raft_index,
            token: state.seen.token,
        };
    }

    fn adopt(&self, found: Option<KnownMeta>, header: &Header, raft_index: u64) {
        let mut state = self.state();
        state.known = found;
        state.seen.cluster_id = header.cluster_id;
        state.seen.revision = state.seen.revision.max(header.revision);
        state.seen.raft_index = state.seen.raft_index.max(raft_index);
    }

    /// Writes the counter over that one, or where there is none.
    async fn write(
        &self,
        client: &EtcdClient,
        before: Option<&KnownMeta>,
        meta: Meta,
    ) -> Result<(bool, Header), StoreError> {
        let key = self.keys.meta();
        let known = KnownMeta::new(Meta { nonce: nonce(), ..meta });
        let compare = before.map_or_else(|| txn::absent(&key), |before| before.compare(&self.keys));
        let txn = Txn {
            compare: vec![compare],
            success: vec![txn::put(&key, &known.value)],
            failure: Vec::new(),
        };
        let reply = client.commit(&txn).await.map_err(store_error)?;
        if reply.succeeded {
            let mut state = self.state();
            state.known = Some(known);
            state.seen.revision = state.seen.revision.max(reply.header.revision);
        }
        Ok((reply.succeeded, reply.header))
    }
}

fn nonce() -> String {
    service_kit::ids::random_hex(8)
}

fn contended() -> StoreError {
    StoreError::Unavailable(
        "other lock servers change the token counter all the time; try again".to_owned(),
    )
}

/// Prepares a namespace that has never issued a token.
///
/// # Errors
/// A sentence where it has, or where a guard knows of tokens, or etcd cannot be used.
pub(super) async fn init_fresh(
    client: &EtcdClient,
    keys: &Keys,
    guards: &Guards,
) -> Result<u64, String> {
    guards.marks().await.vouch_for_a_new_namespace()?;
    let status = client.status().await.map_err(|error| error.to_string())?;
    let meta = Meta {
        format: FORMAT,
        offset: 0,
        cluster_id: status.header.cluster_id,
        raft_index: status.raft_index,
        fresh: true,
        nonce: nonce(),
    };
    let txn = Txn {
        compare: vec![txn::nothing_in(&keys.all())],
        success: vec![txn::put(&keys.meta(), &meta.bytes())],
        failure: Vec::new(),
    };
    let reply = client.commit(&txn).await.map_err(|error| error.to_string())?;
    if reply.succeeded {
        Ok(offset::counter(0, reply.header.revision) + 1)
    } else {
        Err("the namespace is not new: etcd holds keys of it; nothing was done".to_owned())
    }
}
