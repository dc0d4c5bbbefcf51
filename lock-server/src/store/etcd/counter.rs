//! The counter in force: which offset tokens have, and that it is still the right one.
//!
//! Every granting transaction compares the revision of the counter's key, so a server with an old
//! offset grants nothing. What that cannot see is an etcd restored from a snapshot in which the key
//! is the same: so every answer's header is compared with what was seen before, a grant that is in
//! doubt is taken back before anybody is told, and the offset is lifted. See [`super::offset`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fence_protocol::Token;
use prometheus_client::metrics::counter::Counter as Metric;
use service_kit::Kit;
use service_kit::clock::Clock;

use super::gateway::Gateway;
use super::keeper::Keeper;
use super::keys::Keys;
use super::offset::{self, Doubt, Found, Seen};
use super::txn::{Compare, On, Op, Txn};
use super::values::{self, FORMAT, Meta};
use super::wire::{Header, Status};
use super::{store_error, values::written};
use crate::guards::Guards;
use crate::store::StoreError;
use lease::tokens;

mod known;

pub(super) use self::known::Known;

/// How often a change of the counter is tried that other servers are changing too.
const TRIES: usize = 16;

/// How often a log that looks shorter is looked at before that is believed.
const LOOKS: usize = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// When the counter is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The server starts.
    Start,
    /// Something was not as it should be, or somebody else changed it.
    Later,
}

/// The counter of a namespace.
#[derive(Debug)]
pub(super) struct Counter {
    keys: Keys,
    guards: Guards,
    keeper: Arc<Keeper>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// One verification at a time.
    verifying: tokio::sync::Mutex<()>,
    lifts: Metric,
}

#[derive(Debug, Default)]
struct State {
    known: Option<Known>,
    seen: Seen,
    /// Why the offset was lifted last, other than at a start.
    doubt: Option<Doubt>,
}

impl Counter {
    pub(super) fn new(keys: &Keys, guards: Guards, keeper: Arc<Keeper>, kit: &Kit) -> Self {
        let lifts = Metric::default();
        kit.metrics.registry(|registry| {
            registry.register(
                "lock_etcd_lifts",
                "How often this server lifted the offset of the tokens",
                lifts.clone(),
            );
        });
        Self {
            keys: keys.clone(),
            guards,
            keeper,
            clock: kit.clock.clone(),
            state: Mutex::default(),
            verifying: tokio::sync::Mutex::default(),
            lifts,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was seen so far: to be taken before a request is sent, and compared after.
    pub(super) fn seen(&self) -> Seen {
        self.state().seen
    }

    /// Why the offset was lifted last, other than at a start.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.state().doubt
    }

    /// The counter in force; none where it must be read again.
    pub(super) fn known(&self) -> Option<Known> {
        self.state().known.clone()
    }

    /// Notes a linearizable answer.
    pub(super) fn saw(&self, header: &Header) {
        let seen = &mut self.state().seen;
        if header.cluster_id == seen.cluster_id {
            seen.revision = seen.revision.max(header.revision);
        }
    }

    /// Notes a token.
    pub(super) fn saw_token(&self, token: Token) {
        let seen = &mut self.state().seen;
        seen.token = seen.token.max(token.get());
    }

    /// Notes the state of a member; whether it gives rise to doubt. A member that lags behind the
    /// others looks like an older state, and then a verification finds none.
    pub(super) fn saw_status(&self, status: &Status) -> bool {
        let seen = &mut self.state().seen;
        let fell = status.raft_index < seen.raft_index;
        if seen.doubt(&status.header).is_some() || fell {
            return true;
        }
        seen.raft_index = status.raft_index;
        false
    }

    /// The counter to grant by, with every token above `above`.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] where no such token is left; [`StoreError::Unavailable`].
    pub(super) async fn ready(
        &self,
        gateway: &Gateway,
        above: Option<Token>,
    ) -> Result<Known, StoreError> {
        let above = above.map_or(0, Token::get);
        for _ in 0..TRIES {
            let (known, seen) = {
                let state = self.state();
                (state.known.clone(), state.seen)
            };
            let Some(known) = known else {
                self.verify(gateway, Occasion::Later).await?;
                continue;
            };
            let lifted = offset::lifted(known.meta.offset, seen.revision, above);
            let lifted = lifted.ok_or(StoreError::Exhausted)?;
            if lifted == known.meta.offset && !known.meta.fresh {
                return Ok(known);
            }
            // From here on the namespace has issued tokens.
            let meta = Meta { offset: lifted, fresh: false, ..known.meta.clone() };
            let (written, _) = self.write(gateway, Some(&known), meta).await?;
            if !written {
                self.forget();
            }
        }
        Err(contended())
    }

    /// The counter must be read again before the next grant.
    pub(super) fn forget(&self) {
        self.state().known = None;
    }

    /// Lifts the counter above a mark that it is below.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(super) async fn lift(&self, gateway: &Gateway, mark: Token) -> Result<(), StoreError> {
        self.guards.saw(mark);
        self.verify(gateway, Occasion::Later).await
    }

    /// Looks at the counter and at etcd, and lifts the offset where tokens are in doubt.
    ///
    /// # Errors
    /// [`StoreError`]; the counter is not to be used then.
    pub(super) async fn verify(
        &self,
        gateway: &Gateway,
        occasion: Occasion,
    ) -> Result<(), StoreError> {
        let _alone = self.verifying.lock().await;
        if occasion == Occasion::Start {
            self.guards.ask().await;
        }
        for round in 0..TRIES {
            // Before the reading: what others learn while it is under way may be later than it.
            let seen = self.seen();
            let (found, header) = self.look(gateway).await?;
            // After the reading, which is linearizable: no member that answers is behind that.
            let status = gateway.status().await.map_err(store_error)?;
            let verdict = offset::doubt(
                &seen,
                &Found {
                    meta: found.as_ref().map(|known| &known.meta),
                    header: &header,
                    raft_index: status.raft_index,
                    mark: self.guards.highest(),
                    is_start: occasion == Occasion::Start,
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
            if self.lift_for(gateway, doubt, found, &header, status.raft_index).await? {
                return Ok(());
            }
        }
        Err(contended())
    }

    async fn look(&self, gateway: &Gateway) -> Result<(Option<Known>, Header), StoreError> {
        let txn = Txn::reading(vec![Op::get(&self.keys.meta())]);
        let reply = gateway.read(&txn).await.map_err(store_error)?;
        let header = reply.header.clone();
        let kv = reply.ranges().next().and_then(|range| range.kvs.into_iter().next());
        let Some(kv) = kv else { return Ok((None, header)) };
        let meta: Meta = values::read(&kv)?;
        if meta.format != FORMAT {
            return Err(StoreError::Unavailable(format!(
                "the namespace in etcd has format {}, and this server knows {FORMAT}; use the \
                 version of lock-server that wrote it; nothing was changed",
                meta.format
            )));
        }
        Ok((Some(Known { meta, mod_revision: kv.mod_revision, value: kv.value }), header))
    }

    /// Whether it is lifted; somebody else may have been faster.
    async fn lift_for(
        &self,
        gateway: &Gateway,
        doubt: Doubt,
        found: Option<Known>,
        header: &Header,
        raft_index: u64,
    ) -> Result<bool, StoreError> {
        if doubt != Doubt::Start {
            self.guards.ask().await;
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
        // No grant begins by the counter that is in doubt. The doubt itself stays until it is known
        // to be answered: a lift that fails, or that somebody else was faster than, is tried again.
        self.forget();
        let (written, after) = self.write(gateway, found.as_ref(), meta).await?;
        if written {
            self.restart_seeing(&after, raft_index, doubt == Doubt::Start);
            self.lifts.inc();
            let next = offset::next(lifted, header.revision);
            if matches!(doubt, Doubt::Start | Doubt::Missing) {
                tracing::info!(%doubt, next, "tokens go on above everything that can have been issued");
            } else {
                self.state().doubt = Some(doubt);
                tracing::warn!(
                    %doubt, next,
                    "etcd may have lost what it knew; tokens go on above everything that can have \
                     been issued"
                );
            }
        }
        Ok(written)
    }

    /// What was seen before the counter was lifted is of another life of this etcd, except for the
    /// tokens. A grant by the old counter changes nothing any more: etcd refuses it.
    fn restart_seeing(&self, header: &Header, raft_index: u64, is_start: bool) {
        // So are the leases that are kept: etcd's own time ends those that it brought back.
        if !is_start {
            self.keeper.forget_all();
        }
        let mut state = self.state();
        state.seen = Seen {
            cluster_id: header.cluster_id,
            revision: header.revision,
            raft_index,
            token: state.seen.token,
        };
    }

    fn adopt(&self, found: Option<Known>, header: &Header, raft_index: u64) {
        let mut state = self.state();
        state.known = found;
        state.seen.cluster_id = header.cluster_id;
        state.seen.revision = state.seen.revision.max(header.revision);
        state.seen.raft_index = state.seen.raft_index.max(raft_index);
    }

    /// Writes the counter over that one, or where there is none.
    async fn write(
        &self,
        gateway: &Gateway,
        before: Option<&Known>,
        meta: Meta,
    ) -> Result<(bool, Header), StoreError> {
        let key = self.keys.meta();
        let meta = Meta { nonce: nonce(), ..meta };
        let value = written(&meta);
        let txn = Txn {
            compare: match before {
                Some(before) => before.compare(&self.keys).into(),
                None => vec![Compare::absent(&key)],
            },
            success: vec![Op::put(&key, &value, On::Nothing)],
            failure: Vec::new(),
        };
        let reply = gateway.write(&txn).await.map_err(store_error)?;
        if reply.succeeded {
            let mod_revision = reply.header.revision;
            let mut state = self.state();
            state.known = Some(Known { meta, mod_revision, value });
            state.seen.revision = state.seen.revision.max(mod_revision);
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
    gateway: &Gateway,
    keys: &Keys,
    guards: &Guards,
) -> Result<u64, String> {
    guards.ask().await.vouch_for_a_new_namespace()?;
    let status = gateway.status().await.map_err(|error| error.to_string())?;
    let meta = Meta {
        format: FORMAT,
        offset: 0,
        cluster_id: status.header.cluster_id,
        raft_index: status.raft_index,
        fresh: true,
        nonce: nonce(),
    };
    let txn = Txn {
        compare: vec![Compare::nothing_in(&keys.all())],
        success: vec![Op::put(&keys.meta(), &written(&meta), On::Nothing)],
        failure: Vec::new(),
    };
    let reply = gateway.write(&txn).await.map_err(|error| error.to_string())?;
    if reply.succeeded {
        Ok(reply.header.revision + 1)
    } else {
        Err("the namespace is not new: etcd holds keys of it; nothing was done".to_owned())
    }
}
