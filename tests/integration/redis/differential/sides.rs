//! One store, or several servers on one Redis, and what can be seen of it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use fence_protocol::{LeaseId, LockName, Token};
use fence_tests::wait::{patience, soon, until_true};
use lock_server::engines::options::StoreOptions;
use lock_server::store::{Acquire, Grant, Limits, ListQuery, LockStore, Revoke, StoreError};
use service_kit::Kit;
use tokio::task::JoinHandle;

use super::steps::{SHORT_MS, StoreStep, World};

/// A reply that is owed comes by then, if it comes at all.
const REPLY_MAX: Duration = Duration::from_secs(5);

type GrantResult = Result<Vec<Grant>, StoreError>;

struct Caller {
    parts: Vec<Acquire>,
    server: usize,
    task: JoinHandle<GrantResult>,
    said: Option<String>,
}

pub(super) struct Side {
    what: &'static str,
    servers: Vec<Arc<dyn LockStore>>,
    callers: Vec<Caller>,
    /// The token of each grant that was seen.
    tokens: HashMap<(LockName, LeaseId), Token>,
}

impl Side {
    pub(super) async fn open(what: &'static str, urls: &[&str]) -> Self {
        let limits = Limits {
            waiters_per_lock: 3,
            shared_per_lock: 3,
            session_leases: 4,
            ended_retention_ms: 3_600_000,
            ..Limits::default()
        };
        let options = StoreOptions { limits, ..fence_tests::store_options::patient() };
        let mut servers = Vec::new();
        for url in urls {
            let url = url.parse().unwrap();
            let kit = Kit::new(what);
            servers.push(lock_server::engines::open(&url, &options, &kit).await.unwrap());
        }
        Self { what, servers, callers: Vec::new(), tokens: HashMap::new() }
    }

    fn at(&self, server: usize) -> &Arc<dyn LockStore> {
        &self.servers[server % self.servers.len()]
    }

    /// Runs a step; returns the caller's reply, without times and tokens.
    pub(super) async fn apply(&mut self, step: &StoreStep) -> String {
        let plain = |refusal: StoreError| said(&Err(refusal));
        match step {
            StoreStep::Acquire(parts, server) => {
                let mut parts = parts.clone();
                let mut server = *server;
                let id = parts[0].lease_id;
                if self.callers.iter().any(|c| c.said.is_none() && c.parts[0].lease_id == id) {
                    // In Redis a question without patience does not cost the place of a waiter, and
                    // is not answered by another server.
                    server = 0;
                    for part in &mut parts {
                        part.wait_ms = SHORT_MS;
                    }
                }
                let outcome =
                    soon("an answer", acquire(self.at(server).clone(), parts.clone())).await;
                self.record(&parts, &outcome);
                said(&outcome)
            }
            StoreStep::Wait(parts, server) => self.wait(parts.clone(), *server).await,
            StoreStep::HangUp(at) => self.hang_up(*at).await,
            StoreStep::Renew(lock, lease, ttl, server) => {
                let outcome = self.at(*server).renew(lock, *lease, *ttl).await;
                outcome.map_or_else(plain, |grant| said(&Ok(vec![grant])))
            }
            StoreStep::Release(lock, lease, server) => {
                let outcome = self.at(*server).release(lock, *lease).await;
                outcome.map_or_else(plain, |ended| format!("{:?}", (ended.lease_id, ended.reason)))
            }
            StoreStep::Revoke(lock, revoke, server) => {
                let outcome = self.at(*server).revoke(lock, revoke.clone()).await;
                let ids = |ended: Vec<_>| {
                    let ids =
                        ended.iter().map(|e: &fence_protocol::wire::lock::EndedReply| e.lease_id);
                    format!("{:?}", ids.collect::<Vec<_>>())
                };
                outcome.map_or_else(plain, ids)
            }
            StoreStep::Begin(new) => {
                let outcome = self.at(0).create_session(new.clone()).await;
                outcome.map_or_else(plain, |reply| format!("{:?}", reply.principal))
            }
            StoreStep::Beat(id) => {
                let outcome = self.at(1).heartbeat(*id).await;
                outcome.map_or_else(plain, |reply| reply.lease_count.to_string())
            }
            StoreStep::End(id) => {
                let outcome = self.at(1).end_session(*id).await;
                outcome.map_or_else(plain, |reply| reply.lease_count.to_string())
            }
            StoreStep::Block(id) => {
                let reason = "*blocked, so".parse().unwrap();
                let outcome = self.at(0).block_session(*id, reason).await;
                outcome.map_or_else(plain, |reply| format!("{:?}", reply.blocked))
            }
        }
    }

    async fn wait(&mut self, parts: Vec<Acquire>, server: usize) -> String {
        let id = parts[0].lease_id;
        let known = self.callers.iter().any(|caller| caller.parts[0].lease_id == id);
        let own = self.at(server).clone();
        let mut asking = Box::pin(acquire(own, parts.clone()));
        // Nothing shows that a repeat has arrived: it stands where it stood. It is asked for here
        // and now, and what is asked after it at the same server is answered after it.
        let first = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
        let task = match first {
            Poll::Ready(outcome) => tokio::spawn(async move { outcome }),
            Poll::Pending => tokio::spawn(asking),
        };
        if known {
            let none = fence_tests::key_file::lease_id();
            let _ = self.at(server).renew(&parts[0].lock, none, None).await;
        } else {
            until_true("a place or an answer", || async {
                task.is_finished() || self.in_queue(&parts[0].lock, id).await
            })
            .await;
        }
        self.callers.push(Caller { parts, server, task, said: None });
        String::new()
    }

    /// `true` if a waiter has its lock, and not yet its reply.
    async fn owes_a_reply(&self) -> bool {
        for caller in self.callers.iter().filter(|caller| caller.said.is_none()) {
            let part = &caller.parts[0];
            let shown = self.at(1).show(&part.lock).await.unwrap();
            let mut holders = shown.holder.iter().chain(&shown.also_held);
            if holders.any(|holder| holder.lease_id == part.lease_id) {
                return true;
            }
        }
        false
    }

    async fn in_queue(&self, lock: &LockName, id: LeaseId) -> bool {
        let state = self.at(0).show(lock).await.unwrap();
        state.queue.iter().any(|waiter| waiter.lease_id == id)
    }

    async fn hang_up(&mut self, at: usize) -> String {
        let waiting: Vec<usize> =
            (0..self.callers.len()).filter(|at| self.callers[*at].said.is_none()).collect();
        let Some(at) = waiting.get(at % waiting.len().max(1)).copied() else {
            return "no waiter".to_owned();
        };
        let caller = self.callers.remove(at);
        caller.task.abort();
        assert!(caller.task.await.is_err(), "{}: it waited", self.what);
        let parts = &caller.parts;
        let same = |other: &Caller| {
            other.said.is_none()
                && other.server == caller.server
                && other.parts[0].lease_id == parts[0].lease_id
                && other.parts.iter().map(|part| &part.lock).eq(parts.iter().map(|part| &part.lock))
        };
        if !self.callers.iter().any(same) {
            until_true("the queue without who hung up", || async {
                !self.in_queue(&parts[0].lock, parts[0].lease_id).await
            })
            .await;
        }
        format!("{at}")
    }

    /// The token of an id never falls.
    fn record(&mut self, parts: &[Acquire], outcome: &GrantResult) {
        let Ok(grants) = outcome else { return };
        for (part, grant) in parts.iter().zip(grants) {
            self.seen(&part.lock, part.lease_id, grant.token);
        }
    }

    fn seen(&mut self, lock: &LockName, lease: LeaseId, token: Token) {
        // A lock remembers eight ended ids: one that ended before them may be granted anew.
        let known = self.tokens.insert((lock.clone(), lease), token);
        assert!(known <= Some(token), "{}: a lower token of {lock} {lease}", self.what);
    }

    /// All that can be seen.
    pub(super) async fn snapshot(&mut self, world: &World) -> String {
        for at in 0..self.callers.len() {
            if self.callers[at].said.is_none() && self.callers[at].task.is_finished() {
                let outcome = (&mut self.callers[at].task).await.unwrap();
                self.callers[at].said = Some(said(&outcome));
                let parts = self.callers[at].parts.clone();
                self.record(&parts, &outcome);
            }
        }
        let mut text = String::new();
        for caller in &self.callers {
            let _ = writeln!(text, "{} {:?}", caller.parts[0].lease_id, caller.said);
        }
        for lock in &world.locks {
            let _ = writeln!(text, "{}", self.look_at(lock).await);
        }
        for id in &world.sessions {
            let shown = self.at(0).show_session(*id).await;
            let _ = match shown {
                Err(refusal) => writeln!(text, "{}", said(&Err(refusal))),
                Ok(reply) => writeln!(
                    text,
                    "session {:?} {} {:?} {:?} {:?}",
                    reply.owner, reply.lease_count, reply.leases, reply.blocked, reply.principal
                ),
            };
        }
        let prefix = world.locks[0].as_str().split('/').next().unwrap().to_owned() + "/";
        let page = self
            .at(1)
            .list(ListQuery { prefix, after: None, limit: 9, owner: None })
            .await
            .unwrap();
        let lines = page
            .locks
            .iter()
            .map(|line| (&line.lock, &line.holder.as_ref().unwrap().owner, line.queue_length));
        let _ = writeln!(text, "{:?}", lines.collect::<Vec<_>>());
        text
    }

    async fn look_at(&mut self, lock: &LockName) -> String {
        let shown = self.at(1).show(lock).await.unwrap();
        let mut text = format!(
            "{lock} {:?} {} {:?} {:?} {}",
            shown.state,
            shown.lease_count,
            shown.size,
            shown.delayed_ms.is_some(),
            shown.queue_length
        );
        let mut last = None;
        for holder in shown.holder.iter().chain(&shown.also_held) {
            assert!(last < Some(holder.info.token), "{}: {shown:?}", self.what);
            last = Some(holder.info.token);
            self.seen(lock, holder.lease_id, holder.info.token);
            let _ = write!(
                text,
                "\n  {} {} {:?} {} {:?} {:?} {:?}",
                holder.lease_id,
                holder.info.owner,
                holder.mode,
                holder.renewals,
                holder.session_id,
                holder.incarnation,
                holder.metadata
            );
        }
        for waiter in &shown.queue {
            let _ =
                write!(text, "\n  waits {} {} {:?}", waiter.lease_id, waiter.owner, waiter.mode);
        }
        for ended in &shown.history {
            let token = ended.token.is_some();
            let said = (&ended.owner, ended.reason, &ended.why, token);
            let _ = write!(text, "\n  ended {} {said:?}", ended.lease_id);
        }
        text
    }

    /// The round is over.
    pub(super) async fn clean_up(&mut self, world: &World) {
        for caller in self.callers.drain(..) {
            caller.task.abort();
        }
        for lock in &world.locks {
            until_true("an empty queue", || async {
                let _ = self.at(0).revoke(lock, Revoke::default()).await;
                self.at(0).show(lock).await.unwrap().queue_length == 0
            })
            .await;
            let _ = self.at(0).revoke(lock, Revoke::default()).await;
        }
        self.tokens.clear();
    }
}

async fn acquire(store: Arc<dyn LockStore>, parts: Vec<Acquire>) -> GrantResult {
    if parts.len() == 1 {
        return store.acquire(parts[0].clone()).await.map(|grant| vec![grant]);
    }
    store.acquire_all(parts).await
}

/// Reply to a caller, without times and tokens.
fn said(outcome: &GrantResult) -> String {
    match outcome {
        Ok(grants) => {
            let each = grants.iter().map(|grant| (grant.lease_id, &grant.owner, grant.mode));
            format!("{:?}", each.collect::<Vec<_>>())
        }
        // Whether those behind have moved up by now is the store's own.
        Err(StoreError::Held { .. }) => "held".to_owned(),
        Err(StoreError::TakeoverRefused { why, .. }) => format!("{why:?}"),
        Err(StoreError::Session(refusal)) => {
            let why = refusal.why.to_string();
            format!("session {}", why.chars().filter(|c| !c.is_ascii_digit()).collect::<String>())
        }
        // Which lock of several is named where none of them is to blame, is the store's own.
        Err(StoreError::Part { lock, refusal }) => match **refusal {
            StoreError::Session(_) | StoreError::IdConflict { .. } => {
                format!("part: {}", said(&Err((**refusal).clone())))
            }
            _ => format!("part {lock}: {}", said(&Err((**refusal).clone()))),
        },
        Err(StoreError::Unknown(text)) => panic!("an unknown outcome: {text}"),
        Err(other) => format!("{other:?}"),
    }
}

/// Both come to show the same.
pub(super) async fn agree(one: &mut Side, two: &mut Side, world: &World, log: &[String]) {
    let began = Instant::now();
    loop {
        let ours = one.snapshot(world).await;
        let theirs = two.snapshot(world).await;
        if ours == theirs {
            let owed = one.owes_a_reply().await || two.owes_a_reply().await;
            if !owed || began.elapsed() > REPLY_MAX {
                return;
            }
        }
        assert!(
            began.elapsed() < patience(),
            "one:\n{ours}\ntwo:\n{theirs}\nsteps:\n{}",
            log.join("\n")
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
