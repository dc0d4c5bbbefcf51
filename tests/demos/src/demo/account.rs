//! The account that late writes compete for, and the end of their stories.

use std::time::Duration;

use fence_client::protocol::LockName;
use serde_json::json;

use super::actor::{Actor, described, log_of, shown};
use super::narrator::{EventFigures, Narrator};
use super::orders::Answer;
use super::record::Kind;
use super::stage::Stage;
use super::verdict::LateWrite;
use super::worker::Documents;
use crate::process::awaited;
use fence_terminal::exit::Failure;
use fence_terminal::readable::readable;

pub(super) const WORKER_A: &str = "worker A";
pub(super) const WORKER_B: &str = "worker B";
pub(super) const LOCK_SERVER: &str = "lock-server";
pub(super) const DOCUMENT: &str = "document";
pub(super) const DATASTORE: &str = "datastore";
pub(super) const DIRECTOR: &str = "director";

/// Deposits of A and B.
pub(super) const DEPOSIT_A: i64 = 30;
pub(super) const DEPOSIT_B: i64 = 50;

/// Time to live of a lease in a demo, in milliseconds.
pub(super) const TTL_MS: u64 = 1500;
/// Time to live of B's lease, in milliseconds: enough on a busy machine.
pub(super) const TTL_B_MS: u64 = 4 * TTL_MS;
/// Longest wait of B in the queue, in milliseconds.
pub(super) const WAIT_MS: u64 = 20_000;

/// One account and the lock on it, which have the same name.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) key: String,
    pub(super) fenced: bool,
    /// The lane of the account itself.
    pub(super) lane: &'static str,
}

impl Account {
    pub(super) const LANES: [&str; 5] = [LOCK_SERVER, WORKER_A, WORKER_B, DOCUMENT, DIRECTOR];
    pub(super) const LANES_DATASTORE: [&str; 5] =
        [LOCK_SERVER, WORKER_A, WORKER_B, DATASTORE, DIRECTOR];

    pub(super) fn new(fenced: bool) -> Self {
        let key = if fenced { "guarded/account" } else { "unguarded/account" };
        Self { key: key.to_owned(), fenced, lane: DOCUMENT }
    }

    /// An account in a folder of its own, apart from keys that exist already.
    pub(super) fn below(folder: &str, fenced: bool) -> Self {
        let account = Self::new(fenced);
        Self { key: format!("{folder}/{}", account.key), ..account }
    }

    pub(super) fn lock(&self) -> Result<LockName, Failure> {
        Ok(LockName::new(&self.key)?)
    }

    /// Makes the account, under a lease of the director's own where it is guarded.
    pub(super) async fn open(
        &self,
        stage: &Stage,
        narrator: &mut Narrator,
        base: &str,
    ) -> Result<(), Failure> {
        let client = stage.client()?;
        let grant = match self.fenced {
            true => {
                let request = client.lock(&self.key).ttl(Duration::from_secs(15));
                Some(request.acquire_detached().await?)
            }
            false => None,
        };
        let account = json!({ "balance": 100, "log": ["opened with 100"] });
        let mut documents = Documents::new(base)?;
        let written = documents.put(&self.key, grant.as_ref(), account.to_string()).await;
        let written = written.map_err(Failure::internal)?;
        if !written.is_success() {
            let what = described(&written);
            return Err(Failure::internal(format!("the account cannot be opened: {what}")));
        }
        let read = documents.get(&self.key, grant.as_ref()).await.map_err(Failure::internal)?;
        if let Some(grant) = grant {
            client.locks().release(&grant.lock, grant.lease_id).await?;
        }
        let text = format!("holds {}", shown(read.document.as_ref()));
        narrator.event(self.lane, Kind::Step, &text)
    }

    /// Both workers, ready and idle.
    pub(super) fn workers(&self, stage: &Stage, base: &str) -> Result<(Actor, Actor), Failure> {
        let actor = |name| {
            let process = stage.worker(name, base)?;
            Ok::<_, Failure>(Actor::new(name, process, &self.key, self.fenced))
        };
        Ok((actor(WORKER_A)?, actor(WORKER_B)?))
    }

    /// Reads from the lock server how the lease of `actor` ended, and narrates it. Returns the time
    /// on the machine's clock, in milliseconds.
    pub(super) async fn expired(
        &self,
        stage: &Stage,
        narrator: &mut Narrator,
        actor: &Actor,
    ) -> Result<u64, Failure> {
        let client = stage.client()?;
        let lock = self.lock()?;
        let (reply, now) = awaited("the end of the lease", async || {
            let reply = client.locks().show(&lock).await?;
            let now = narrator.now();
            let ended = reply
                .history
                .iter()
                .find(|ended| ended.lease_id.to_string() == actor.grant.lease_id);
            Ok(ended.cloned().map(|ended| (ended, now)))
        })
        .await?;
        let at_ms = now.saturating_sub(reply.ended_ms_ago);
        let token = actor.grant.token;
        let reason = reply.reason.as_str();
        let held = readable(reply.held_ms);
        let text = format!("the lease of token {token} ended: {reason}, after {held}");
        let figures = EventFigures { token: Some(token), status: None };
        narrator.event_at(at_ms, LOCK_SERVER, Kind::Delay, &text, figures)?;
        actor.lease_until(narrator, at_ms);
        Ok(at_ms)
    }

    /// B reads the account again while it still holds the lock, and the facts are put together.
    pub(super) async fn read_back(
        &self,
        narrator: &mut Narrator,
        (a, b): (&Actor, &mut Actor),
        (late, new): (&Answer, &Answer),
    ) -> Result<LateWrite, Failure> {
        let end = b.read(narrator).await?.document.unwrap_or_default();
        let facts = LateWrite {
            old_token: a.grant.token,
            new_token: b.grant.token,
            late_taken: late.is_success(),
            late_status: late.status,
            late_code: late.code(),
            late_mark: late.met_mark(),
            new_taken: new.is_success(),
            new_status: new.status,
            old_update: format!("A +{DEPOSIT_A}"),
            new_update: format!("B +{DEPOSIT_B}"),
            final_balance: end["balance"].as_i64().unwrap_or_default(),
            final_log: log_of(&end),
        };
        let has_b = facts.final_log.contains(&facts.new_update);
        let (kind, what) = if has_b {
            (Kind::Kept, format!("still has \"{}\"", facts.new_update))
        } else {
            let text = "is missing, while B still holds the lock";
            (Kind::Lost, format!("\"{}\" {text}", facts.new_update))
        };
        narrator.event(self.lane, kind, &format!("{what}: {}", shown(Some(&end))))?;
        Ok(facts)
    }

    /// Narrates the refusals that the guard counted.
    pub(super) async fn refusals(
        &self,
        stage: &Stage,
        narrator: &mut Narrator,
    ) -> Result<(), Failure> {
        let fence = stage.client()?.objects().fence(&self.lock()?).await?;
        let mark = fence.mark.map(|mark| mark.to_string()).unwrap_or_default();
        let last = fence.last_refusals.first();
        let last =
            last.map(|last| format!("; the last one was {}, token {}", last.operation, last.token));
        let guarantee = fence.guarantee.as_str();
        let total = fence.refused_total;
        let last = last.unwrap_or_default();
        narrator
            .remark(&format!("the guard ({guarantee}) says: mark {mark}, {total} refused{last}"))
    }
}
