//! The connections to Redis of one thread of the port: which are shared, and how they are made.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use fence_protocol::wire::fence::Mode;
use redis_link::LinkState;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::spawn_local;

use super::Port;
use super::budget::Budget;
use super::confine::{AclUser, AclUsers, UserRules};
use super::outbox::{InFlight, Outbox};
use super::profile::ConnectionProfile;
use super::refusal::Refusal;
use super::retire::Ended;
use super::script_denial::ScriptDenials;
use super::session::PortContext;
use super::spares::{Prepared, Spares};
use super::token_group::TokenGroups;
use super::tokens::HeldTokens;
use super::upstream::Upstream;
use super::upstream::connect::connect;
use crate::rules::KeyPatterns;

/// An own connection with what belongs to it.
#[derive(Debug)]
pub(super) struct OwnConnection {
    pub(super) upstream: Rc<Upstream>,
    pub(super) user: Option<AclUser>,
    /// The process that it was made to; known where it is registered.
    pub(super) run_id: Option<String>,
}

/// Connections, budget and limits that the clients of one thread share.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(super) port: Arc<Port>,
    pub(super) budget: Arc<Budget>,
    pub(super) in_flight: InFlight,
    /// Clients by the tokens that they hold.
    pub(super) groups: TokenGroups,
    users: AclUsers,
    spares: Spares,
    shared: RefCell<HashMap<ConnectionProfile, Rc<Slot>>>,
    /// Requests for shared connections so far.
    uses: Cell<u64>,
}

/// Most shared connections of a thread; for one more the least recently used one is closed.
const SHARED_MAX: usize = 1024;

/// One shared connection. Clients that need it while it is being made wait for it, and share a
/// failure: separate attempts for each of many clients would take for ever with a Redis that does
/// not reply.
#[derive(Debug, Default)]
struct Slot {
    made: Mutex<Option<Rc<Upstream>>>,
    failures: Cell<u64>,
    failure: RefCell<Option<Refusal>>,
    /// Time of the last use, counted in requests of the thread.
    last_use: Cell<u64>,
}

impl Slot {
    fn record_failure(&self, refusal: &Refusal) {
        self.failures.set(self.failures.get() + 1);
        *self.failure.borrow_mut() = Some(refusal.clone());
    }
}

impl Hub {
    pub(super) fn new(port: Arc<Port>) -> Rc<Self> {
        let PortContext { guard, settings, .. } = &*port.context;
        let budget = Budget::new(
            settings.max_buffer_bytes / settings.front.threads,
            settings.max_command_bytes,
        );
        let mode = guard.observer.mode();
        let users = AclUsers::new(guard.fencing.namespace.as_str(), mode);
        Rc::new(Self {
            port,
            budget,
            in_flight: InFlight::default(),
            groups: TokenGroups::default(),
            users,
            spares: Spares::default(),
            shared: RefCell::default(),
            uses: Cell::new(0),
        })
    }

    /// Returns the connection that all clients of this profile share.
    ///
    /// # Errors
    /// A stale or colliding token, or why Redis cannot be used.
    pub(super) async fn shared(
        self: &Rc<Self>,
        profile: &ConnectionProfile,
    ) -> Result<Rc<Upstream>, Refusal> {
        let slot = {
            let mut shared = self.shared.borrow_mut();
            if shared.len() >= SHARED_MAX && !shared.contains_key(profile) {
                make_room(&mut shared);
            }
            Rc::clone(shared.entry(profile.clone()).or_default())
        };
        slot.last_use.set(self.uses.replace(self.uses.get() + 1));
        let failures = slot.failures.get();
        let mut held = slot.made.lock().await;
        if let Some(upstream) = held.as_ref().filter(|upstream| !upstream.is_broken()) {
            return Ok(Rc::clone(upstream));
        }
        *held = None;
        if slot.failures.get() != failures
            && let Some(refusal) = &*slot.failure.borrow()
        {
            return Err(refusal.clone());
        }
        let made = self.prepare(profile, None).await;
        let made = made.map(|made| self.start(made.stream, None, made.ended));
        match &made {
            Ok(upstream) => {
                *held = Some(Rc::clone(upstream));
                self.prepare_spare(profile);
            }
            Err(refusal) => {
                self.make_way(refusal);
                slot.record_failure(refusal);
            }
        }
        made
    }

    /// Returns a connection for one client alone, and prepares another for the next client. One
    /// that is made now is confined at once if it is `for_script`.
    ///
    /// # Errors
    /// The errors of [`Hub::shared`].
    pub(super) async fn own(
        self: &Rc<Self>,
        profile: &ConnectionProfile,
        owner: &Rc<Outbox>,
        for_script: bool,
    ) -> Result<OwnConnection, Refusal> {
        let prepared = match self.take_spare(profile) {
            Some(spare) => spare,
            None => {
                let prepared = self.prepare_own(profile, for_script).await;
                prepared.inspect_err(|refusal| self.make_way(refusal))?
            }
        };
        self.prepare_spare(profile);
        let Prepared { stream, user, run_id, ended } = prepared;
        let upstream = self.start(stream, Some((Rc::clone(owner), profile)), ended);
        Ok(OwnConnection { upstream, user, run_id })
    }

    async fn prepare_own(
        &self,
        profile: &ConnectionProfile,
        is_confined: bool,
    ) -> Result<Prepared, Refusal> {
        let rules = self.port.table.borrow().script_rules();
        let patterns = self.key_patterns(&profile.tokens);
        // Without a reply Redis may have made the user all the same.
        let unsure = |name| self.port.retire(Ended { registration: None, user: Some(name) });
        let facts = self.port.facts();
        let rules = UserRules { commands: rules, databases: facts.databases.as_deref() };
        let user = self.users.user(&self.port.redis, rules, patterns, is_confined, unsure).await?;
        self.prepare(profile, user).await
    }

    /// A spare for a client that is about to use it. None is used while the guard's own connection
    /// is down: Redis may be gone.
    fn take_spare(&self, profile: &ConnectionProfile) -> Option<Prepared> {
        let redis = &self.port.redis;
        let is_up = matches!(&*redis.link.watch().borrow(), LinkState::Up(_));
        if !is_up || !self.may_have_spare(profile) {
            return None;
        }
        self.spares.take(profile, &redis.state.run_id(), |ended| self.port.retire(ended))
    }

    /// Prepares a connection for the next client, if clients use own ones and none is ready.
    fn prepare_spare(self: &Rc<Self>, profile: &ConnectionProfile) {
        if !self.may_have_spare(profile) {
            return;
        }
        let Some(making) = self.spares.begin(profile) else { return };
        let hub = Rc::clone(self);
        let profile = profile.clone();
        spawn_local(async move {
            match hub.prepare_own(&profile, false).await {
                Ok(made) => {
                    let unwanted = hub.spares.keep(&profile, making, made);
                    unwanted.into_iter().for_each(|ended| hub.port.retire(ended));
                }
                // The next client receives the reason.
                Err(_) => hub.spares.forget(&profile, making),
            }
        });
    }

    /// A client without a token gets no prepared connection if it is limited.
    fn may_have_spare(&self, profile: &ConnectionProfile) -> bool {
        !(self.port.context.limits_strangers && profile.tokens.is_empty())
    }

    /// Closes unused connections after a failure, because Redis may have reached its limit of
    /// clients.
    fn make_way(&self, refusal: &Refusal) {
        if matches!(refusal, Refusal::Unavailable(_)) {
            self.retire_all(self.spares.take_all());
        }
    }

    /// Closes the prepared connections, and prepares no more.
    pub(super) fn close_spares(&self) {
        self.retire_all(self.spares.close());
    }

    fn retire_all(&self, ended: Vec<Ended>) {
        ended.into_iter().for_each(|ended| self.port.retire(ended));
    }

    /// Keys that a script may touch on a connection that is registered under these tokens. In
    /// observe mode, in which none is, all but Fencepost's own keys.
    fn key_patterns(&self, tokens: &HeldTokens) -> KeyPatterns {
        let guard = &self.port.context.guard;
        if guard.observer.mode() == Mode::Observe {
            return KeyPatterns::everything();
        }
        let locks: Vec<&str> = tokens.fences().iter().map(|fence| fence.lock.as_str()).collect();
        guard.fencing.rules.key_patterns(&locks, guard.fencing.allow_unfenced_reads)
    }

    /// Connects, with one retry if the connection broke while it was registered: a higher token may
    /// have ended it, and then the retry returns that refusal.
    async fn prepare(
        &self,
        profile: &ConnectionProfile,
        user: Option<AclUser>,
    ) -> Result<Prepared, Refusal> {
        let redis = &self.port.redis;
        let name = user.as_ref().map(|user| user.name().to_owned());
        let mut ended = Ended { registration: None, user: name };
        let made = match connect(redis, profile, user.as_ref(), &mut ended.registration).await {
            Err(Refusal::Unavailable(_)) if ended.registration.is_some() => {
                self.port.retire(Ended { registration: ended.registration.take(), user: None });
                connect(redis, profile, user.as_ref(), &mut ended.registration).await
            }
            made => made,
        };
        match made {
            Ok((stream, run_id)) => Ok(Prepared { stream, user, run_id, ended }),
            Err(refusal) => {
                self.port.retire(ended);
                Err(refusal)
            }
        }
    }

    /// Starts a prepared connection, for one client or for all of a profile.
    fn start(
        &self,
        stream: TcpStream,
        owner: Option<(Rc<Outbox>, &ConnectionProfile)>,
        ended: Ended,
    ) -> Rc<Upstream> {
        let port = Arc::clone(&self.port);
        let on_end = move || port.retire(ended);
        let (owner, denials) = owner
            .map(|(owner, ConnectionProfile { tokens, .. })| {
                (owner, ScriptDenials::new(Arc::clone(&self.port), tokens.clone()))
            })
            .unzip();
        Upstream::start(stream, (owner, denials), &self.budget, on_end)
    }

    /// Probes every shared connection for a reply of Redis, and closes the prepared ones.
    pub(super) fn probe(&self) {
        self.retire_all(self.spares.take_all());
        for slot in self.shared.borrow().values() {
            // A connection that is being made has time limits of its own.
            if let Ok(held) = slot.made.try_lock()
                && let Some(upstream) = &*held
            {
                upstream.probe();
            }
        }
    }

    /// Closes unused shared connections; to be called periodically.
    pub(super) fn close_idle(&self) {
        self.groups.sweep();
        self.retire_all(self.spares.take_unused());
        self.shared.borrow_mut().retain(|_, slot| {
            // A connection that is being made is in use.
            let Ok(mut held) = slot.made.try_lock() else { return true };
            let Some(upstream) = held.as_ref() else { return Rc::strong_count(slot) > 1 };
            if upstream.is_broken() {
                *held = None;
                return Rc::strong_count(slot) > 1;
            }
            if upstream.is_idle() {
                upstream.close();
                *held = None;
                return Rc::strong_count(slot) > 1;
            }
            true
        });
    }
}

/// Closes the least recently used shared connection without pending replies.
fn make_room(shared: &mut HashMap<ConnectionProfile, Rc<Slot>>) {
    let is_free = |slot: &Slot| {
        slot.made.try_lock().is_ok_and(|held| held.as_ref().is_none_or(|made| made.is_at_rest()))
    };
    let oldest = shared
        .iter()
        .filter(|(_, slot)| is_free(slot))
        .min_by_key(|(_, slot)| slot.last_use.get())
        .map(|(profile, _)| profile.clone());
    let Some(slot) = oldest.and_then(|profile| shared.remove(&profile)) else { return };
    if let Ok(held) = slot.made.try_lock() {
        held.iter().for_each(|upstream| upstream.close());
    }
}
