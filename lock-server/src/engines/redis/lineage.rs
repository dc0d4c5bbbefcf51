//! Is this still the Redis that issued our tokens? What is stored for the verdict.
//!
//! In Redis a lineage is of one process, one replication history, and one counter that never fell;
//! see [`crate::engines::shared::lineage`].

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError};
use async_trait::async_trait;
use fence_protocol::Namespace;
use redis_link::{LinkOptions, RedisTarget, Script, Verifier, load_scripts, plain};
use service_kit::Kit;
use service_kit::clock::SystemClock;

use super::identity::identity;
use super::key_prefix::KeyPrefix;
use super::keys::Keys;
use super::refusals::elsewhere;
use super::rights::Needs;
use super::{NAME, Scripts};
use crate::engines::loss::AfterLoss;
use crate::engines::shared::lineage::keeper::{self, LineageKeeper, LineageStore, Written};
use crate::engines::shared::lineage::{Adoption, Found};
use crate::engines::shared::store_clock::StoreTime;
use crate::guards::{self, Guards};

/// Format of the records; one namespace takes servers of one format. 0.1 had formats up to 3.
const FORMAT: &str = "4";

/// Verifies connections to Redis.
#[derive(Debug)]
pub(super) struct RedisVerifier {
    is_cluster: bool,
    needs: Needs,
    keys: Keys,
    scripts: Arc<Scripts>,
    keeper: LineageKeeper<Arc<str>>,
}

impl RedisVerifier {
    pub(super) fn new(
        target: &RedisTarget,
        keys: &Keys,
        scripts: &Arc<Scripts>,
        known: (&Arc<AtomicU64>, &Arc<StoreTime>),
        loss: (AfterLoss, Guards),
        replicas: u32,
        kit: &Kit,
    ) -> Self {
        Self {
            is_cluster: target.is_cluster(),
            needs: Needs::new(target, keys.prefix()).and_replicas(replicas),
            keys: keys.clone(),
            scripts: scripts.clone(),
            keeper: LineageKeeper::new(NAME, known, loss, kit),
        }
    }

    /// The lineage in force.
    pub(super) fn current(&self) -> Option<Arc<str>> {
        self.keeper.current()
    }

    /// The guards, whose marks every verification compares with the counter.
    pub(super) fn guards(&self) -> &Guards {
        self.keeper.guards()
    }
}

#[async_trait]
impl Verifier for RedisVerifier {
    async fn verify(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        self.verify_chosen(connection, None).await
    }

    async fn verify_chosen(
        &self,
        connection: &mut MultiplexedConnection,
        choice: Option<u64>,
    ) -> Result<(), String> {
        self.needs.check(connection, LinkOptions::default().connect_timeout).await?;
        let mut store = RedisLineage::new(connection, self.is_cluster, &self.keys, choice);
        let verified = self.keeper.verify(&mut store).await?;
        load_scripts(connection, &self.scripts.all()).await?;
        self.keeper.adopt(verified.id.into());
        Ok(())
    }

    fn others_take(&self) -> Duration {
        if self.guards().is_empty() { Duration::ZERO } else { guards::GUARD_TIMEOUT }
    }
}

/// Vouches that a namespace has never issued a token, so that its first one is 1.
///
/// # Errors
/// A sentence; also where the namespace has a lineage already, which is then left as it is, and
/// where a guard has seen a token or does not say whether it has: nothing is done then.
pub async fn init_fresh(
    target: &RedisTarget,
    key_prefix: &KeyPrefix,
    namespace: &Namespace,
    guards: &Guards,
) -> Result<(), String> {
    guards.marks().await.vouch_for_a_new_namespace()?;
    let keys = Keys::new(key_prefix, namespace);
    let target = target.in_slot_of(keys.prefix().as_bytes());
    let timeout = LinkOptions::default().connect_timeout;
    let (mut connection, choice) = target.connect_chosen(timeout).await?;
    Needs::new(&target, keys.prefix()).check(&connection, timeout).await?;
    let mut store = RedisLineage::new(&mut connection, target.is_cluster(), &keys, choice);
    match keeper::vouch(&mut store, &SystemClock::new()).await? {
        None => Ok(()),
        Some(id) => {
            let id = if id.is_empty() { "missing" } else { &id };
            Err(format!(
                "namespace {namespace} at {target} is in use (lineage {id}); nothing was changed"
            ))
        }
    }
}

/// The lineage in one Redis.
struct RedisLineage<'a> {
    connection: &'a mut MultiplexedConnection,
    is_cluster: bool,
    keys: &'a Keys,
    /// Configuration epoch in which sentinels chose this process.
    choice: Option<u64>,
    /// This process, as it was when it was asked last.
    run_id: String,
    replication_id: String,
    /// Fields that were found last, as `lineage.lua` names them.
    was: Vec<Vec<u8>>,
}

impl<'a> RedisLineage<'a> {
    fn new(
        connection: &'a mut MultiplexedConnection,
        is_cluster: bool,
        keys: &'a Keys,
        choice: Option<u64>,
    ) -> Self {
        let [run_id, replication_id] = [String::new(), String::new()];
        Self { connection, is_cluster, keys, choice, run_id, replication_id, was: Vec::new() }
    }

    /// The script, to read where no argument comes behind these, or to write.
    fn script(&self) -> Cmd {
        let keys = self.keys;
        let script = Script::new("lineage.lua", include_str!("lineage.lua"));
        script.call_once(&[
            &keys.lineage,
            &keys.token,
            &keys.meta,
            &keys.paused_for,
            &keys.lives_until,
            &keys.absent,
            &keys.clock_ahead,
        ])
    }

    /// The process behind the connection. It is asked before each reading: its history may change
    /// while guards are waited for.
    async fn identify(&mut self) -> Result<(), String> {
        let info = ::redis::cmd("INFO").query_async::<String>(self.connection).await;
        let info = info.map_err(|error| failed("INFO", &error))?;
        let (run_id, replication_id) = identity(&info, self.is_cluster)?;
        run_id.clone_into(&mut self.run_id);
        replication_id.clone_into(&mut self.replication_id);
        Ok(())
    }

    /// Runs the script. What others wrote may be no text.
    async fn run(&mut self, command: &Cmd) -> Result<Vec<Vec<u8>>, String> {
        let fields = command.query_async(self.connection).await;
        fields.map_err(|error| failed("its lineage", &error))
    }

    /// First sign of a loss in what was found.
    ///
    /// # Errors
    /// A sentence where the sentinels are behind.
    fn sign(
        &self,
        (run_id, replication_id): (&str, &str),
        is_whole: bool,
        known_epoch: Option<u64>,
    ) -> Result<Option<&'static str>, String> {
        let is_same = *run_id == self.run_id && *replication_id == self.replication_id;
        let epochs = self.choice.zip(known_epoch);
        if let Some((choice, epoch)) = epochs.filter(|(choice, epoch)| is_same && choice < epoch) {
            return Err(format!(
                "the sentinels chose this Redis in epoch {choice}, and a lock server has used it \
                 in epoch {epoch}: they are behind, and are retried. If the sentinels were set up \
                 anew, and their epochs began again, HDEL {} epoch",
                self.keys.meta
            ));
        }
        Ok(if !is_whole && run_id.is_empty() {
            Some("nothing is stored: new, or emptied")
        } else if !is_whole {
            Some("the lineage or the counter is gone")
        } else if *run_id != self.run_id {
            Some("the Redis process changed")
        } else if *replication_id != self.replication_id {
            Some("the replication history changed")
        } else if epochs.is_some_and(|(choice, epoch)| choice > epoch) {
            // It lacks what the one in between had.
            Some("the sentinels chose another Redis and this one again")
        } else {
            None
        })
    }
}

#[async_trait]
impl LineageStore for RedisLineage<'_> {
    async fn find(&mut self, _known_id: &str) -> Result<Found, String> {
        self.identify().await?;
        let was = self.run(&self.script()).await?;
        let texts: Vec<_> = was.iter().map(|field| String::from_utf8_lossy(field)).collect();
        let fields: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        let [
            clock,
            lineage,
            token,
            lives_until,
            ahead,
            run_id,
            replication_id,
            format,
            epoch,
            verified,
        ] = fields[..]
        else {
            return Err(format!("Redis cannot be verified: the script answered {texts:?}"));
        };
        if !run_id.is_empty() && format != FORMAT {
            return Err(other_format(
                self.keys.prefix(),
                if format.is_empty() { "1" } else { format },
            ));
        }
        let counter = counter_of(token);
        let is_whole = !lineage.is_empty() && counter.is_some();
        let found = Found {
            id: lineage.to_owned(),
            counter: counter.unwrap_or(0),
            verified_counter: counter_of(verified).unwrap_or(0),
            is_used: [lineage, token, lives_until, run_id].iter().any(|field| !field.is_empty()),
            sign: self.sign((run_id, replication_id), is_whole, epoch.parse().ok())?,
            may_be_restored: false,
            clock_ms: clock.parse().unwrap_or(0),
            ahead_ms: ahead.parse().unwrap_or(0),
            lives_until_ms: counter_of(lives_until).unwrap_or(0),
        };
        self.was = was;
        Ok(found)
    }

    async fn write(&mut self, adoption: &Adoption, id: &str) -> Result<Option<Written>, String> {
        let mut command = self.script();
        // All but the clock.
        command.arg(&self.was[1..]);
        command.arg(&self.run_id).arg(&self.replication_id).arg(FORMAT);
        command.arg(self.choice.map(|epoch| epoch.to_string()).unwrap_or_default());
        command.arg(adoption.reason.as_deref().unwrap_or_default()).arg(id);
        command.arg(adoption.lifted_to.unwrap_or(0)).arg(adoption.pause_ms);
        command.arg(adoption.ahead_ms.map(|ahead_ms| ahead_ms.to_string()).unwrap_or_default());
        let fields = self.run(&command).await?;
        let number = |field: &[u8]| counter_of(&String::from_utf8_lossy(field)).unwrap_or(0);
        match fields.as_slice() {
            [] => Ok(None),
            [counter, paused_ms] => {
                let [counter, paused_ms] = [counter, paused_ms].map(|field| number(field));
                Ok(Some(Written { counter, paused_ms }))
            }
            other => Err(format!("Redis cannot be verified: the script answered {other:?}")),
        }
    }
}

/// A number of digits alone; the largest where it has too many.
fn counter_of(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn failed(step: &str, error: &RedisError) -> String {
    match error.code().and_then(elsewhere) {
        Some(where_to) => format!("Redis cannot be verified: {where_to}"),
        None => format!("Redis cannot be verified ({step}): {}", plain(error)),
    }
}

fn other_format(prefix: &str, found: &str) -> String {
    format!(
        "the locks in this Redis are stored in format {found}, and this lock-server stores them in \
         format {FORMAT}: run the version that wrote them, or use another --namespace, or, when no \
         lock server uses it and no lease of it lives, delete its keys {prefix}*; its tokens then \
         continue above all that were issued"
    )
}
