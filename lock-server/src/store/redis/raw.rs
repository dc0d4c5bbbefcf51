//! The store's scripts without the server, for measuring what the server adds.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ::redis::Cmd;
use fence_protocol::{LeaseId, Namespace};
use service_kit::Kit;
use service_kit::redis_link::{LinkOptions, RedisTarget, Script, Verifier};

use super::KeyPrefix;
use super::lineage::{ABSENT, LineageKeeper};
use super::scripts::Scripts;
use super::timekeeper::Timekeeper;
use crate::guards::Guards;
use crate::store::{Limits, LossOptions};

/// Whatever Redis shows: what is measured here does not watch the clock.
const LATEST: u64 = 999_999_999_999_999;

/// The commands of one client that talks to Redis directly.
#[derive(Clone, Debug)]
pub struct RawCommands {
    scripts: Scripts,
    lineage: String,
    prefix: String,
}

impl RawCommands {
    /// Verifies the lineage and loads the scripts, as a lock server does.
    ///
    /// # Errors
    /// A sentence where Redis cannot be reached or used.
    pub async fn prepare(target: &RedisTarget, namespace: &Namespace) -> Result<Self, String> {
        let (kit, scripts, prefix) =
            (Kit::new("raw"), Scripts::new(), KeyPrefix::default().of(namespace));
        let seen = Arc::new(AtomicU64::new(0));
        let guards = Guards::new(&[], namespace, &kit.health)?;
        let time = Timekeeper::new(&prefix, &scripts.clock, LossOptions::default(), &kit);
        let time = Arc::new(time);
        let keeper = LineageKeeper::new(target, &prefix, &scripts, &seen, &time, guards, &kit);
        let mut connection = target.connect(LinkOptions::default().connect_timeout).await?;
        keeper.verify(&mut connection).await?;
        let lineage = keeper.current().ok_or("the lineage was not adopted")?.id;
        Ok(Self { scripts, lineage, prefix })
    }

    /// An acquire without waiting.
    pub fn acquire(&self, lock: &str, lease_id: LeaseId, owner: &str, ttl_ms: u64) -> Cmd {
        let mut command = self.begin(&self.scripts.acquire, lock, lease_id);
        command.arg(owner).arg(ttl_ms).arg(0).arg(0).arg("");
        command.arg(Limits::default().waiters_per_lock).arg(3_000).arg("").arg("");
        command.arg("").arg(0).arg("x").arg(0).arg("").arg(LATEST);
        command
    }

    /// A release.
    pub fn release(&self, lock: &str, lease_id: LeaseId) -> Cmd {
        let mut command = self.begin(&self.scripts.release, lock, lease_id);
        command.arg(LATEST);
        command
    }

    fn begin(&self, script: &Script, lock: &str, lease_id: LeaseId) -> Cmd {
        let mut command =
            script.call(&[&format!("{}lineage", self.prefix), &format!("{}{ABSENT}", self.prefix)]);
        command.arg(&self.lineage).arg(&self.prefix).arg(0).arg("raw");
        command.arg(Limits::default().ended_retention_ms).arg(3_000);
        command.arg(Limits::default().shared_per_lock);
        command.arg(lock).arg(lease_id.to_string());
        command
    }
}
