//! Marks and open lanes of the reverse proxy in Redis, which one guard at a time may change.
//!
//! The guard takes its own medicine: each change carries the leader's token, and the script refuses
//! it once another guard has taken the lanes over.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{LeaseId, LockName, Namespace, Token};
use redis::{Cmd, Value};
use redis_link::{LinkError, RedisTarget};
use service_kit::Kit;

use super::{RedisOptions, RedisStore, Shared, UNVERIFIED, reply};
use crate::stores::contract::{Fences as _, StoreError};
use crate::stores::lanes::Opening;
use crate::verdict::Mark;

/// Marks and open lanes in one Redis.
#[derive(Clone, Debug)]
pub(crate) struct LanesInRedis {
    /// Marks, as a Redis store without objects has them.
    pub(crate) store: Arc<RedisStore>,
    open: String,
    lead: String,
}

/// Leader that has taken the lanes over, as the scripts compare it.
#[derive(Clone, Debug)]
pub(crate) struct Leader {
    /// Its token.
    pub(crate) token: Token,
    /// Id of the state that it took over.
    state: String,
}

/// Record of the leader in Redis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lead {
    /// Floor when it took the lanes over; 0 for none.
    pub(crate) floor: u64,
    /// Longest time to live of all leaders' leases so far.
    pub(crate) ttl: Duration,
}

/// State of the lanes at a take-over.
#[derive(Debug)]
pub(crate) struct TakenOver {
    pub(crate) leader: Leader,
    /// `false` if Redis knows of no earlier leader: it is new, or was emptied.
    pub(crate) has_predecessor: bool,
    /// Longest time to live of all leaders' leases so far, in milliseconds.
    pub(crate) ttl_ms: u64,
    /// Open lanes: lock, mark, writes that may be at the upstream.
    pub(crate) open: Vec<(LockName, Option<Mark>, Opening)>,
}

/// Change of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneChange {
    /// Raised mark, if any.
    pub(crate) mark: Option<Mark>,
    /// Writes that may be at the upstream; `None` for a closed lane.
    pub(crate) open: Option<Opening>,
}

/// Refusal or failure of a leader's step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeadError {
    /// Another guard leads, marks or open lanes were lost, or the floor was raised. Final for this
    /// term.
    Deposed {
        /// Token of the leader now, if there is one.
        by: Option<Token>,
    },
    /// Redis refuses the step for a reason that no retry removes. Nothing was changed. Final for
    /// this term.
    Refused(String),
    /// The outcome is unknown, or nothing was changed. The same step may be retried.
    Failed(String),
}

impl fmt::Display for LeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deposed { by: Some(token) } => {
                write!(f, "the leader with token {token} has taken the lanes over")
            }
            Self::Deposed { by: None } => {
                f.write_str("Redis lost the lanes' state, or its floor was raised")
            }
            Self::Refused(why) => write!(
                f,
                "{why}; marks or lanes were changed by another program, or the rights of the user: \
                 see GET /v1/stores"
            ),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// First words of errors with which Redis refuses a step for a time. Another guard would get the
/// same, so the leader retries.
const FOR_A_TIME: [&str; 10] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
];

impl From<LinkError> for LeadError {
    fn from(error: LinkError) -> Self {
        match &error {
            LinkError::Server { code, .. } if !FOR_A_TIME.contains(&code.as_str()) => {
                Self::Refused(error.to_string())
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl LanesInRedis {
    /// Opens the lanes that the guards of `lock` share, and probes the Redis.
    ///
    /// # Errors
    /// A sentence with the address, the reason and the remedy.
    pub(crate) async fn open(
        target: RedisTarget,
        namespace: &Namespace,
        lock: &LockName,
        options: RedisOptions,
        kit: &Kit,
    ) -> Result<Self, String> {
        let options = RedisOptions { outlives_data: true, ..options };
        let folder = format!("lanes:{lock}");
        let store = RedisStore::open(target, namespace, &folder, options, kit).await?;
        let prefix = &store.shared.keys.prefix;
        let [open, lead] = ["open", "lead"].map(|key| format!("{prefix}{key}"));
        Ok(Self { store: Arc::new(store), open, lead })
    }

    fn shared(&self) -> &Shared {
        &self.store.shared
    }

    fn keys(&self) -> [&str; 6] {
        let keys = &self.shared().keys;
        [&keys.marks, &keys.locks, &self.open, &keys.state, &self.open, &self.lead]
    }

    /// Makes the holder of `token` the leader and returns the lanes. A retry changes nothing.
    ///
    /// # Errors
    /// [`LeadError`].
    pub(crate) async fn take_over(
        &self,
        token: Token,
        lease: LeaseId,
        ttl_ms: u64,
    ) -> Result<TakenOver, LeadError> {
        let state = self.shared().state.id();
        let mut command = self.shared().scripts.take_over.call(&self.keys());
        command.arg(&state).arg(token.get()).arg(lease.to_string()).arg(ttl_ms);
        let fields = self.call(&command, &state).await?;
        let strange = || LeadError::Refused("Redis sent lanes that cannot be read".to_owned());
        let [known, ttl_ms, lanes @ ..] = fields.as_slice() else { return Err(strange()) };
        let floor = self.floor().await.map_err(|error| LeadError::Failed(error.to_string()))?;
        // Not served: as long as its mark is not restored, each request reads that.
        let (changed, lanes): (Vec<_>, Vec<_>) =
            lanes.chunks_exact(3).partition(|lane| lane[2] == CHANGED);
        for lane in changed {
            tracing::error!(lock = lane[0], "an open lane is not served: {UNVERIFIED}");
        }
        let open = lanes.into_iter().map(|lane| {
            let lock = LockName::new(lane[0].as_str()).ok()?;
            let open = opening(&lane[1])?;
            let mark = match lane[2].as_str() {
                "" => None,
                text => Some(reply::stored(text.as_bytes())?),
            };
            Some((lock, highest(mark, floor), open))
        });
        Ok(TakenOver {
            leader: Leader { token, state },
            has_predecessor: known == "1",
            ttl_ms: ttl_ms.parse().map_err(|_| strange())?,
            open: open.collect::<Option<_>>().ok_or_else(strange)?,
        })
    }

    /// Confirms that `leader` still leads.
    ///
    /// # Errors
    /// [`LeadError`].
    pub(crate) async fn confirm(&self, leader: &Leader) -> Result<(), LeadError> {
        let command = self.commit_command(leader, 0);
        self.call(&command, &leader.state).await.map(drop)
    }

    /// Makes changes durable in one step. `batch` begins at 1 and rises; a retry has the same.
    ///
    /// # Errors
    /// [`LeadError`].
    pub(crate) async fn commit<'c>(
        &self,
        leader: &Leader,
        batch: u64,
        changes: impl Iterator<Item = (&'c LockName, LaneChange)>,
    ) -> Result<(), LeadError> {
        let mut command = self.commit_command(leader, batch);
        let text = |token: Option<Token>| token.map(|token| token.to_string()).unwrap_or_default();
        for (lock, LaneChange { mark, open }) in changes {
            let lease = mark.map(|mark| mark.lease.to_string()).unwrap_or_default();
            command.arg(lock.as_str()).arg(text(mark.map(|mark| mark.token))).arg(lease);
            command.arg(open.map(opening_text).unwrap_or_default());
        }
        self.call(&command, &leader.state).await.map(drop)
    }

    fn commit_command(&self, leader: &Leader, batch: u64) -> Cmd {
        let mut command = self.shared().scripts.commit.call(&self.keys());
        command.arg(&leader.state).arg(leader.token.get()).arg(batch);
        command
    }

    /// Returns the mark of a lock, or one just below the floor if that is higher.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) async fn mark(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let mark = self.store.show(lock).await?;
        Ok(highest(mark, self.floor().await?))
    }

    /// As [`mark`](Self::mark), for the leader, before it changes the lane.
    ///
    /// # Errors
    /// Also for a mark that another program changed: so this lock alone is refused, and not the
    /// commit that it would be part of.
    pub(crate) async fn intact_mark(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let mut listed = redis::cmd("ZSCORE");
        listed.arg(&self.shared().keys.locks).arg(lock.as_str());
        let (mark, floor, listed) =
            tokio::try_join!(self.store.show(lock), self.floor(), self.shared().run_read(listed))?;
        if mark.is_some() == matches!(listed, Value::Nil) {
            return Err(StoreError::Unavailable(UNVERIFIED.to_owned()));
        }
        Ok(highest(mark, floor))
    }

    /// Returns the record of the leader, which may lead no more.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) async fn lead(&self) -> Result<Lead, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(&self.lead).arg("floor").arg("ttl");
        let value = self.shared().run_read(command).await?;
        let unread =
            || StoreError::Unavailable("the record of the leader cannot be read".to_owned());
        let numbers = reply::numbers(value).ok_or_else(unread)?;
        let [floor, ttl_ms] = numbers[..] else { return Err(unread()) };
        Ok(Lead { floor, ttl: Duration::from_millis(ttl_ms) })
    }

    /// Returns the mark just below the floor, if one is stated.
    async fn floor(&self) -> Result<Option<Mark>, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(&self.shared().keys.state).arg("floor").arg("floor_lease");
        reply::below_floor(self.shared().run_read(command).await?)
    }

    /// Runs a script of a leader. A state that has to be verified again is verified, and the call
    /// retried if it is still the same.
    async fn call(&self, command: &Cmd, state: &str) -> Result<Vec<String>, LeadError> {
        for _ in 0..super::TRIES {
            let generation = self.shared().link.generation();
            let value = self.shared().link.call(command).await;
            let strange =
                || LeadError::Refused("Redis sent a reply that is none of ours".to_owned());
            let mut fields = strings(value?).ok_or_else(strange)?;
            let word = if fields.is_empty() { String::new() } else { fields.remove(0) };
            match word.as_str() {
                "leads" | "done" => return Ok(fields),
                "deposed" => {
                    let by = fields.first().and_then(|token| token.parse().ok());
                    return Err(LeadError::Deposed { by });
                }
                _ => {}
            }
            self.shared().link.verify_again(generation).await?;
            if self.shared().state.id() != state {
                return Err(LeadError::Deposed { by: None });
            }
        }
        Err(LeadError::Refused(UNVERIFIED.to_owned()))
    }
}

/// In place of a mark that another program changed.
const CHANGED: &str = "changed";

/// Mark of an open lane whose writes are all conditional, behind its token. A version without
/// conditions cannot read it, and does not take the writes for its own.
const CONDITIONAL: &str = " conditional";

fn opening_text(Opening { token, is_conditional }: Opening) -> String {
    format!("{token}{}", if is_conditional { CONDITIONAL } else { "" })
}

fn opening(text: &str) -> Option<Opening> {
    let token = text.strip_suffix(CONDITIONAL);
    let is_conditional = token.is_some();
    Some(Opening { token: token.unwrap_or(text).parse().ok()?, is_conditional })
}

fn highest(mark: Option<Mark>, floor: Option<Mark>) -> Option<Mark> {
    mark.into_iter().chain(floor).max_by_key(|mark| mark.token)
}

fn strings(value: Value) -> Option<Vec<String>> {
    let fields = reply::strings(value)?;
    fields.into_iter().map(|field| String::from_utf8(field).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_lane_is_read_as_it_was_written() {
        for is_conditional in [false, true] {
            let open = Opening { token: Token::new(33).unwrap(), is_conditional };
            assert_eq!(opening(&opening_text(open)), Some(open));
        }
        assert_eq!(opening("33 otherwise"), None);
    }
}
