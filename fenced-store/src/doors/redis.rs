//! The Redis port: clients keep their driver and send their token as password, and the guard relays
//! to one Redis.
//!
//! Preempt and abort. A connection to Redis is registered there under its tokens before anything is
//! sent on it (`upstream::connect`). The step that raises a mark finds the connections registered
//! below it. The guard that ran the step makes Redis end those connections, and awaits that, before
//! the new token is admitted (`crate::stores::redis::preempt`). So commands travel unchanged, every
//! command of Redis works, and a write costs no more than behind a plain proxy.
//!
//! A thread of the port owns all state of its clients: no locks, and no wake-ups between threads.
//! Clients with the same tokens share a pipelined connection (`hub`) until they need one of their
//! own (`client`).
//!
//! ```text
//! client --- Client: parse, plan (commands), authorize (rules, tokens) ---> Upstream --- Redis
//!    ^                                                                         |
//!    '------------- Outbox: replies in the order of the commands <-------------'
//! ```

use std::sync::{Arc, PoisonError, RwLock};

use fence_protocol::wire::fence::Mode;
use redis_link::{LinkState, RedisLink};
use tokio::sync::{mpsc, watch};

use crate::doors::tcp::front::{CONNECTION, FrontSettings};
use crate::guard::{Guard, RequestSummary};
use crate::stores::redis::Shared;

mod authorize;
mod backlog;
mod budget;
mod client;
mod cluster;
pub(crate) mod commands;
mod confine;
mod counters;
mod databases;
mod front;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod hub;
mod look_ups;
mod out;
mod outbox;
mod own_clients;
mod password;
mod patience;
mod probe;
mod profile;
mod refusal;
pub(crate) mod resp;
mod retire;
mod script_denial;
mod server_facts;
mod session;
mod spares;
mod stranger;
mod thread;
mod token_group;
mod tokens;
mod upstream;

use commands::{CommandTable, Observing};
use counters::PortCounters;
pub(crate) use front::{Front, Listening, plain_text_reply};
use own_clients::OwnClients;
pub use password::PortPassword;
pub use patience::SilenceLimits;
use refusal::Refusal;
use retire::Ended;
use server_facts::ServerFacts;
use session::PortContext;

/// Settings of the port.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// Address, threads and clients. Its TLS replies to plain text in the protocol of Redis.
    pub front: FrontSettings,
    /// Maximum size of a command, in bytes.
    pub max_command_bytes: usize,
    /// Memory for all clients together beyond 64 KiB for each, in bytes.
    pub max_buffer_bytes: usize,
    /// Time limits of silent clients.
    pub silence: SilenceLimits,
    /// Treatment of a connection whose token was refused.
    pub after_fenced: AfterFenced,
    /// Password for clients without a fencing credential.
    pub password: Option<PortPassword>,
}

/// Treatment of a connection whose token was refused: no command can succeed on it any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AfterFenced {
    /// It is closed once the client has received the error, so that a pool connects again and asks
    /// its credential hook for the newest token.
    #[default]
    Close,
    /// It stays open, so that its client can present a newer token on it.
    Keep,
}

impl PortSettings {
    /// Returns `true` if a connection is closed once its tokens were refused.
    fn closes_fenced(&self) -> bool {
        self.after_fenced == AfterFenced::Close
    }
}

/// State that all threads of the port share.
#[derive(Debug)]
pub(crate) struct Port {
    context: Arc<PortContext>,
    redis: Arc<Shared>,
    table: watch::Receiver<Arc<CommandTable>>,
    facts: RwLock<Arc<ServerFacts>>,
    ended: mpsc::Sender<Ended>,
    counters: PortCounters,
    own_clients: Arc<OwnClients>,
    /// In observe mode, the commands that pass although they are refused otherwise.
    observing: Option<Observing>,
}

impl Port {
    /// Reads the commands of this Redis, and starts removing the registrations of ended
    /// connections.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) async fn open(
        guard: Arc<Guard>,
        redis: Arc<Shared>,
        settings: PortSettings,
    ) -> Result<Arc<Self>, String> {
        probe::probe(&redis, &guard.fencing.namespace).await?;
        let observing = observing(&guard, &redis.link);
        let table = read_table(&redis.link, observing).await?;
        let (publish, table) = watch::channel(Arc::new(table));
        let counters = PortCounters::new(&guard.kit.metrics);
        let (ended, worker) = retire::queue(Arc::clone(&redis));
        let tasks = guard.kit.tasks.clone();
        confine::remove_leftovers(&redis, guard.fencing.namespace.as_str()).await;
        let port = Arc::new(Self {
            facts: RwLock::new(Arc::new(read_facts(&redis).await?)),
            context: PortContext::new(guard, settings),
            redis,
            table,
            ended,
            counters,
            own_clients: Arc::default(),
            observing,
        });
        tasks.spawn(worker.run(tasks.shutdown_token()));
        tasks.spawn(follow(Arc::clone(&port), publish));
        Ok(port)
    }

    fn facts(&self) -> Arc<ServerFacts> {
        Arc::clone(&self.facts.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Queues an ended connection; its registration in Redis is removed later.
    fn retire(&self, ended: Ended) {
        if ended.is_nothing() {
            return;
        }
        if self.ended.try_send(ended).is_err() {
            // A registration left behind costs a line in Redis, and a needless kill when the mark
            // is raised.
            tracing::warn!("too many connections end at once; a registration stays in Redis");
        }
    }

    /// Counts a refusal by the fence in the guard's account.
    fn note_refusal(&self, refusal: &Refusal) {
        let Some((code, fence, outcome)) = refusal.by_fence() else { return };
        self.context.guard.observer.passes(code, CONNECTION, &refusal.not_applied());
        let text = "a connection of the Redis port".to_owned();
        let fence = Some(fence.clone());
        let summary = RequestSummary { fence, kind: "redis", text, owner: None };
        // The client gets the refusal in Redis' form.
        let _ = self.context.guard.account(&summary, Ok(outcome));
    }
}

/// Reads the commands again whenever another Redis may be behind the link.
async fn follow(port: Arc<Port>, publish: watch::Sender<Arc<CommandTable>>) {
    let stop = port.context.guard.kit.tasks.shutdown_token();
    let mut states = port.redis.link.watch();
    states.mark_unchanged();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = states.changed() => if changed.is_err() { return },
        }
        if !matches!(&*states.borrow_and_update(), LinkState::Up(_)) {
            continue;
        }
        match read_table(&port.redis.link, port.observing).await {
            Ok(table) => drop(publish.send_replace(Arc::new(table))),
            Err(reason) => tracing::warn!(reason, "the list of commands is out of date"),
        }
        match read_facts(&port.redis).await {
            Ok(facts) => {
                *port.facts.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
            }
            Err(reason) => tracing::warn!(reason, "what is known of the server is out of date"),
        }
    }
}

/// Returns the commands that pass in observe mode. Administration of Redis is lent to clients only
/// if the guard's login has no password: replies can hold passwords (CONFIG GET, ACL LIST), and
/// neither a fencing credential nor the port's password is worth as much as the guard's.
fn observing(guard: &Guard, link: &RedisLink) -> Option<Observing> {
    let (_, password) = link.target().credentials();
    let may_administer = password.is_none();
    (guard.observer.mode() == Mode::Observe).then_some(Observing { may_administer })
}

async fn read_table(
    link: &RedisLink,
    observing: Option<Observing>,
) -> Result<CommandTable, String> {
    let reply = link.call(&redis::cmd("COMMAND")).await.map_err(|error| error.to_string())?;
    let table = CommandTable::from_reply(&reply)?;
    Ok(match observing {
        Some(observing) => table.observing(observing),
        None => table,
    })
}

async fn read_facts(redis: &Shared) -> Result<ServerFacts, String> {
    let hello = redis.link.call(&redis::cmd("HELLO")).await.map_err(|error| error.to_string())?;
    let mut facts = ServerFacts::from_hello(hello).ok_or("the reply to HELLO cannot be read")?;
    // Redis itself closes no databases to a user.
    if facts.server != "redis" {
        facts.databases = databases::rule(redis).await?;
    }
    Ok(facts)
}
