//! Leases in memory: gone with the process. For demos, tests, and locks that may be lost.
//!
//! A restart forgets every token, so the counter begins high instead of at 1: above everything
//! that an earlier process of the same name can have issued.

use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use service_kit::clock::Clock;
use service_kit::health::Health;

use super::engine::{Engine, NoJournal};
use super::{
    Acquire, Grant, Limits, ListQuery, LockStore, NewSession, Revoke, SessionStore, StoreError,
};
use lease::{Machine, tokens};

/// The `memory:` store.
#[derive(Debug)]
pub struct MemoryStore(Engine);

impl MemoryStore {
    /// An empty store.
    ///
    /// # Errors
    /// Where the system has no thread to give.
    pub fn start(limits: Limits, clock: Arc<dyn Clock>, health: Health) -> std::io::Result<Self> {
        let machine = Machine::new(tokens::restart_floor(clock.wall_ms()), limits);
        Ok(Self(Engine::start(machine, NoJournal, clock, health)?))
    }
}

super::engine::serve_through_engine!(MemoryStore, "memory");
