//! What the guard knows of its own state in one Redis, and what it does when that is gone.
//!
//! A hash beside the marks bears a random id. A guard that finds it gone, or another, knows that
//! Redis was emptied (or replaced by one that does not have the last writes): the marks are lost,
//! and with them the registrations of connections that may still act. So a new state is *opening*
//! until every connection of the port was ended, and it begins above a *floor*, the first token
//! to be admitted: the next one of the lock server where its counter is in the same Redis, or what
//! an operator states. Until one of the two is there, the guard refuses
//! (`--lost-marks refuse`, the default).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::{LockName, Namespace, Token};
use redis::{Cmd, Value};
use redis_link::text_fields;
use service_kit::health::Status;
use service_kit::ids;

use super::Keys;
use super::gaps::gaps;
use super::preempt::{self, Failed, Wire};
use super::reply::{self, Step};
use super::scripts::Scripts;
use crate::verdict::{Fence, Mark};

/// How many marks a guard remembers for a Redis that comes back without its last writes.
const MARKS_REMEMBERED: usize = 65_536;

/// So many of them are raised at once; all of them within the time that a verification may take.
const RESTORED_AT_ONCE: usize = 1024;

/// What becomes of lost marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LostMarks {
    /// Nothing is admitted until a floor is known.
    #[default]
    Refuse,
    /// Marks begin anew from those that this guard remembers. A holder that was refused before may
    /// write again.
    Accept,
}

/// The state of one namespace in one Redis. Shared by the objects and the port.
#[derive(Debug)]
pub(crate) struct GuardState {
    keys: Keys,
    client_name: String,
    /// The lock server's counter and what it knows of Redis, where it is kept here too.
    issuer_keys: [String; 2],
    lost_marks: LostMarks,
    known: Mutex<Known>,
    gaps: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
struct Known {
    id: String,
    run_id: String,
    /// The floor that an operator has stated and that no verification has carried out yet.
    stated: Option<Token>,
    /// The first token that is admitted in Redis.
    floor: u64,
    marks: HashMap<LockName, Mark>,
}

/// What was found in Redis.
#[derive(Clone, Debug)]
pub(super) struct Found {
    id: String,
    /// The floor that was stated with the question.
    stated: Option<Token>,
    floor: u64,
    pub(super) is_open: bool,
}

/// Why nothing is admitted; `highest` is the highest token that Redis knows of, 0 for none.
fn lost(highest: &str) -> String {
    let beyond = match highest {
        "0" => String::new(),
        highest => format!(" ({highest} was admitted here)"),
    };
    format!(
        "Redis has lost marks of this guard, or they are not as they were left (was it emptied, or \
         did another program write them?), and which tokens were issued before is not known. State \
         the first token to be admitted: POST /v1/floor {{\"floor\": N}} to this guard, or --floor N \
         where it does not start, with N above every token that was issued{beyond}; or start the \
         lock server of this namespace on the same Redis"
    )
}

impl GuardState {
    pub(super) fn new(namespace: &Namespace, keys: Keys, lost_marks: LostMarks) -> Self {
        Self {
            keys,
            client_name: format!("fence:{namespace}:port"),
            issuer_keys: ["token", "meta"].map(|key| format!("{{fence:{namespace}}}:{key}")),
            lost_marks,
            known: Mutex::default(),
            gaps: Mutex::default(),
        }
    }

    /// What can void the guarantee, as the last verification found it.
    pub(super) fn gaps(&self) -> Vec<String> {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what a verification found of Redis' disk and settings.
    pub(super) fn note_gaps(&self, info: &str, persistence: &Status) {
        let gaps = gaps(info, persistence, self.keys.prefix());
        *self.gaps.lock().unwrap_or_else(PoisonError::into_inner) = gaps;
    }

    /// The name that every connection of the port bears in Redis, whichever guard made it.
    pub(crate) fn client_name(&self) -> String {
        self.client_name.clone()
    }

    /// The id that scripts compare; empty before the first verification.
    pub(crate) fn id(&self) -> String {
        self.known().id.clone()
    }

    /// The process that was verified last; empty before the first verification.
    pub(crate) fn run_id(&self) -> String {
        self.known().run_id.clone()
    }

    /// Keeps a mark in mind that was answered, for a Redis that comes back without it.
    pub(crate) fn remember(&self, fence: &Fence) {
        let marks = &mut self.known().marks;
        if let Some(mark) = marks.get_mut(&fence.lock) {
            if mark.token < fence.presented.token {
                *mark = fence.presented;
            }
        } else if marks.len() < MARKS_REMEMBERED {
            marks.insert(fence.lock.clone(), fence.presented);
        }
    }

    /// The mark of a lock, as far as this guard has answered it.
    pub(crate) fn remembered(&self, lock: &LockName) -> Option<Mark> {
        self.known().marks.get(lock).copied()
    }

    /// States the floor for the next verification.
    pub(super) fn state_floor(&self, floor: Token) {
        self.known().stated = Some(floor);
    }

    /// The floor that is in force; `None` while one that was stated is not.
    pub(super) fn floor_in_force(&self) -> Option<u64> {
        let known = self.known();
        known.stated.is_none().then_some(known.floor)
    }

    /// Adopts or begins the state, as the script says.
    ///
    /// # Errors
    /// A sentence; also where marks were lost and no floor is known.
    pub(super) async fn ask(&self, wire: &mut dyn Wire, run_id: &str) -> Result<Found, Failed> {
        let (id, stated) = {
            let known = self.known();
            (known.id.clone(), known.stated)
        };
        let value = wire.ask(&self.ask_command(&id, stated, run_id)).await?;
        let fields = text_fields(value).ok_or("Redis answered what no script of ours does")?;
        match fields.as_slice() {
            [found, phase, floor] => {
                if !id.is_empty() && *found != id {
                    tracing::error!(
                        floor,
                        "Redis has lost marks of this guard; nothing below the floor is admitted \
                         any more"
                    );
                }
                let floor = floor.parse().map_err(|_| format!("the floor {floor} is no number"))?;
                Ok(Found { id: found.clone(), stated, floor, is_open: phase == "open" })
            }
            [_, highest] => Err(lost(highest)),
            _ => Err("Redis answered what no script of ours does".to_owned()),
        }
    }

    fn ask_command(&self, id: &str, floor: Option<Token>, run_id: &str) -> Cmd {
        let lost_marks = match self.lost_marks {
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

    /// Opens the state, once every connection of the port is gone.
    ///
    /// # Errors
    /// A sentence.
    pub(super) async fn open(&self, wire: &mut dyn Wire, found: &Found) -> Result<(), Failed> {
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("open.lua")).arg(1).arg(&self.keys.state).arg(&found.id);
        match wire.ask(&command).await? {
            Value::Int(1) => Ok(()),
            _ => Err("the guard's state in Redis changed while it was opened".to_owned()),
        }
    }

    /// After Redis was restarted or replaced: raises the marks that it may have lost to what this
    /// guard remembers. They were answered, so nothing below them may be admitted again.
    ///
    /// # Errors
    /// A sentence.
    pub(super) async fn restore_marks(
        &self,
        wire: &mut dyn Wire,
        scripts: &Scripts,
        run_id: &str,
        found: &Found,
    ) -> Result<(), Failed> {
        let marks: Vec<Fence> = {
            let known = self.known();
            if known.run_id.is_empty() || (known.run_id == run_id && known.id == found.id) {
                return Ok(());
            }
            let fence =
                |(lock, mark): (&LockName, &Mark)| Fence { lock: lock.clone(), presented: *mark };
            known.marks.iter().map(fence).collect()
        };
        tracing::warn!(
            marks = marks.len(),
            "Redis was restarted, replaced or emptied; raising its marks to those that this guard \
             remembers"
        );
        for marks in marks.chunks(RESTORED_AT_ONCE) {
            let seal = |fence| scripts.seal(&self.keys, &found.id, fence);
            let values = wire.ask_all(&marks.iter().map(seal).collect::<Vec<_>>()).await?;
            for (value, fence) in values.into_iter().zip(marks) {
                // Another guard may have been here before, and admitted what this one knows is
                // stale.
                if matches!(reply::step(value, Some(fence)), Ok(Step::Sealing)) {
                    let (keys, lock) = (&self.keys, &fence.lock);
                    preempt::settle(wire, scripts, keys, lock, &Default::default()).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn adopt(&self, run_id: &str, found: Found) {
        let mut known = self.known();
        known.id = found.id;
        run_id.clone_into(&mut known.run_id);
        known.floor = found.floor;
        // One that was stated since the question is for the next verification.
        if known.stated == found.stated {
            known.stated = None;
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
