//! State of the guard in one Redis, and recovery when it is gone.
//!
//! A hash beside the marks holds a random id. If the id is missing or another, Redis was emptied
//! (or replaced by one without the last writes): the marks are lost, and with them the
//! registrations of connections that may still act. So a new state is *opening* until every
//! connection of the port was ended, and it begins above a *floor*, the first token to admit: the
//! lock server's next token if its counter is in the same Redis, or an operator's number. Without
//! either, the guard refuses (`--lost-marks refuse`, the default).

use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::{LockName, Namespace, Token};
use redis::{Cmd, Value};
use redis_link::text_fields;
use service_kit::health::Status;
use service_kit::ids;

use super::gaps::gaps;
use super::preempt::{self, Failed, Wire};
use super::reply::{self, ScriptReply};
use super::scripts::Scripts;
use super::{Keys, RedisOptions};
use crate::stores::known_marks::KnownMarks;
use crate::stores::report::Gaps;
use crate::verdict::{Fence, Mark};

/// Number of marks raised at once; all must fit into the time limit of a verification.
const RESTORED_AT_ONCE: usize = 1024;

/// Treatment of lost marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LostMarks {
    /// Admit no token until a floor is known.
    #[default]
    Refuse,
    /// Begin anew from the marks that this guard remembers. A holder that was refused before may
    /// write again.
    Accept,
}

/// State of one namespace in one Redis, shared by the objects and the port.
#[derive(Debug)]
pub(crate) struct GuardState {
    keys: Keys,
    client_name: String,
    /// Keys of the lock server's counter and its record of Redis, if they are here too.
    issuer_keys: [String; 2],
    options: RedisOptions,
    known: Mutex<VerifiedState>,
    /// For a Redis that returns without its last writes.
    marks: KnownMarks,
    gaps: Mutex<Gaps>,
}

#[derive(Debug, Default)]
struct VerifiedState {
    id: String,
    run_id: String,
    /// Floor that an operator has set and no verification has carried out yet.
    stated: Option<Token>,
    /// First token that Redis admits.
    floor: u64,
}

/// State found in Redis.
#[derive(Clone, Debug)]
pub(super) struct FoundState {
    id: String,
    /// Floor that was sent with the request.
    stated: Option<Token>,
    floor: u64,
    pub(super) is_open: bool,
}

/// Describes lost marks; `highest` is the highest token known to Redis, 0 for none.
fn lost(highest: &str) -> String {
    let beyond = match highest {
        "0" => String::new(),
        highest => format!(" ({highest} was admitted here)"),
    };
    format!(
        "Redis has lost marks of this guard, or they were changed (was it emptied, or \
         did another program write them?), and the tokens issued before are unknown. Set \
         the first token to admit: POST /v1/floor {{\"floor\": N}} to this guard, or --floor N \
         if it does not start, with N above every token that was issued{beyond}; or start the \
         lock server of this namespace on the same Redis"
    )
}

impl GuardState {
    pub(super) fn new(namespace: &Namespace, keys: Keys, options: RedisOptions) -> Self {
        Self {
            keys,
            client_name: format!("fence:{namespace}:port"),
            issuer_keys: ["token", "meta"].map(|key| format!("{{fence:{namespace}}}:{key}")),
            options,
            known: Mutex::default(),
            marks: KnownMarks::default(),
            gaps: Mutex::default(),
        }
    }

    /// Refuses a Redis whose crash may lose marks while their data, which is elsewhere, stays.
    ///
    /// # Errors
    /// A sentence with the remedy.
    pub(super) fn check_disk(&self, persistence: &Status) -> Result<(), Failed> {
        match persistence {
            Status::Warn(text)
                if self.options.outlives_data && self.options.lost_marks == LostMarks::Refuse =>
            {
                Err(format!(
                    "{text}. The data behind these marks would stay; set appendonly yes and \
                     appendfsync always, or accept the loss with --lost-marks accept"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the gaps that the last verification found.
    pub(super) fn gaps(&self) -> Gaps {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the gaps in Redis' disk and settings.
    pub(super) fn record_gaps(&self, info: &str, persistence: &Status) {
        let gaps = gaps(info, persistence, &self.keys.prefix);
        *self.gaps.lock().unwrap_or_else(PoisonError::into_inner) = gaps;
    }

    /// Returns the client name of every connection of the port, the same for all guards.
    pub(crate) fn client_name(&self) -> String {
        self.client_name.clone()
    }

    /// Returns the id that scripts compare; empty before the first verification.
    pub(crate) fn id(&self) -> String {
        self.known().id.clone()
    }

    /// Returns the run id of the last verified process; empty before the first verification.
    pub(crate) fn run_id(&self) -> String {
        self.known().run_id.clone()
    }

    /// Remembers an acknowledged mark.
    pub(crate) fn remember(&self, fence: &Fence) {
        self.marks.remember(fence);
    }

    /// Returns the highest mark of a lock that this guard acknowledged.
    pub(crate) fn remembered(&self, lock: &LockName) -> Option<Mark> {
        self.marks.deciding(lock, None)
    }

    /// Sets the floor for the next verification.
    pub(super) fn state_floor(&self, floor: Token) {
        self.known().stated = Some(floor);
    }

    /// Returns the floor in force; `None` while a newly set one is not.
    pub(super) fn floor_in_force(&self) -> Option<u64> {
        let known = self.known();
        known.stated.is_none().then_some(known.floor)
    }

    /// Adopts or begins the state, as the script decides.
    ///
    /// # Errors
    /// A sentence; also if marks were lost and no floor is known.
    pub(super) async fn find(
        &self,
        wire: &mut dyn Wire,
        run_id: &str,
    ) -> Result<FoundState, Failed> {
        let (id, stated) = {
            let known = self.known();
            (known.id.clone(), known.stated)
        };
        let value = wire.call(&self.find_command(&id, stated, run_id)).await?;
        let fields = text_fields(value).ok_or("Redis sent a reply that is none of our scripts'")?;
        match fields.as_slice() {
            [found, phase, floor] => {
                if !id.is_empty() && *found != id {
                    tracing::error!(
                        floor,
                        "Redis has lost marks of this guard; nothing below the floor is admitted \
                         any more"
                    );
                }
                let floor =
                    floor.parse().map_err(|_| format!("the floor {floor} is not a number"))?;
                Ok(FoundState { id: found.clone(), stated, floor, is_open: phase == "open" })
            }
            [_, highest] => Err(lost(highest)),
            _ => Err("Redis sent a reply that is none of our scripts'".to_owned()),
        }
    }

    fn find_command(&self, id: &str, floor: Option<Token>, run_id: &str) -> Cmd {
        let lost_marks = match self.options.lost_marks {
            LostMarks::Refuse => "refuse",
            LostMarks::Accept => "accept",
        };
        let mut command = redis::cmd("EVAL");
        command
            .arg(include_str!("state.lua"))
            .arg(5)
            .arg(&self.keys.state)
            .arg(&self.issuer_keys[..])
            .arg(&self.keys.marks)
            .arg(&self.keys.locks);
        command.arg(id).arg(ids::random_hex(16)).arg(ids::lease_id().to_string()).arg(lost_marks);
        command.arg(floor.map_or_else(String::new, |floor| floor.to_string())).arg(run_id);
        command
    }

    /// Opens the state, after every connection of the port was ended.
    ///
    /// # Errors
    /// A sentence.
    pub(super) async fn open(&self, wire: &mut dyn Wire, found: &FoundState) -> Result<(), Failed> {
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("open.lua")).arg(1).arg(&self.keys.state).arg(&found.id);
        match wire.call(&command).await? {
            Value::Int(1) => Ok(()),
            _ => Err("the guard's state in Redis changed while it was opened".to_owned()),
        }
    }

    /// Raises the marks of a restarted or replaced Redis to those that this guard remembers. They
    /// were acknowledged, so no token below them may be admitted.
    ///
    /// # Errors
    /// A sentence.
    pub(super) async fn restore_marks(
        &self,
        wire: &mut dyn Wire,
        scripts: &Scripts,
        run_id: &str,
        found: &FoundState,
    ) -> Result<(), Failed> {
        let has_all = {
            let known = self.known();
            known.run_id.is_empty() || (known.run_id == run_id && known.id == found.id)
        };
        if has_all {
            return Ok(());
        }
        let fence = |(lock, presented)| Fence { lock, presented };
        let marks: Vec<Fence> = self.marks.to_vec().into_iter().map(fence).collect();
        tracing::warn!(
            marks = marks.len(),
            "Redis was restarted, replaced or emptied; raising its marks to those that this guard \
             remembers"
        );
        for marks in marks.chunks(RESTORED_AT_ONCE) {
            let seal = |fence| scripts.seal(&self.keys, &found.id, fence);
            let values = wire.call_all(&marks.iter().map(seal).collect::<Vec<_>>()).await?;
            for (value, fence) in values.into_iter().zip(marks) {
                // Another guard may have come first, and admitted a token that this one knows is
                // stale.
                if matches!(reply::parse(value, Some(fence)), Ok(ScriptReply::Sealing)) {
                    let keys = &self.keys;
                    let lock = &fence.lock;
                    preempt::settle(wire, scripts, keys, lock, &Default::default()).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn adopt(&self, run_id: &str, found: FoundState) {
        let mut known = self.known();
        known.id = found.id;
        run_id.clone_into(&mut known.run_id);
        known.floor = found.floor;
        // A floor set since the request is for the next verification.
        if known.stated == found.stated {
            known.stated = None;
        }
    }

    fn known(&self) -> MutexGuard<'_, VerifiedState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
