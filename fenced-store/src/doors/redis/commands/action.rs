//! What happens to a command: how it is handled and where its keys are, or why it is denied.

use super::channels::{self, Channels};
use super::policy::{self, ByHand, Observed};
use super::refused::Refused;
use super::spec::{Number, Spec};
use super::{Handling, KeyUse, Plan, Touches, by_hand};
use crate::doors::redis::resp::request::Command;

/// What happens to a command that is allowed.
#[derive(Debug)]
pub(super) struct Action {
    pub(super) handling: Handling,
    pub(super) keys: Keys,
    /// Whether the user of a script may run it.
    pub(super) in_scripts: bool,
}

/// Why a command is refused.
#[derive(Debug)]
pub(super) struct Denial {
    pub(super) reason: Box<str>,
    /// How it travels in observe mode; `None` where it is refused all the same.
    pub(super) observed: Option<Observed>,
}

impl Denial {
    /// A refusal in every mode.
    pub(super) fn in_every_mode(reason: &str) -> Self {
        Self { reason: reason.into(), observed: None }
    }
}

/// Where the keys of a command are.
#[derive(Debug)]
pub(super) enum Keys {
    None,
    Keyspace,
    Channels(Channels),
    Specs { specs: Box<[Spec]>, number: Number },
    ByHand(ByHand),
}

impl Action {
    /// A script may run it where Redis' ACL finds its keys as the guard does, by fixed positions or
    /// a count; and where it has no keys and is listed.
    pub(super) fn new(name: &str, handling: Handling, keys: Keys) -> Self {
        let in_scripts = match keys {
            Keys::Specs { .. } => true,
            Keys::None | Keys::Channels(_) => policy::is_keyless_in_scripts(name),
            Keys::Keyspace | Keys::ByHand(_) => false,
        };
        Self { handling, keys, in_scripts }
    }

    /// Adds the keys of `command`, and says how it travels.
    pub(super) fn plan(
        &self,
        name: &str,
        command: Command<'_>,
        keys: &mut Vec<KeyUse>,
    ) -> Result<Plan, Refused> {
        let (handling, in_scripts) = (self.handling, self.in_scripts);
        let plan = |touches| Plan { handling, touches, in_scripts, is_denied: false };
        let (specs, number) = match &self.keys {
            Keys::None => return Ok(plan(Touches::Nothing)),
            Keys::Keyspace => return Ok(plan(Touches::Keyspace)),
            Keys::Channels(which) => return channels::check(*which, command).map(plan),
            Keys::ByHand(by_hand) => return by_hand::plan(*by_hand, name, command, keys),
            Keys::Specs { specs, number } => (specs, number),
        };
        for spec in specs {
            spec.push(name, *number, command, keys)?;
        }
        match (keys.is_empty(), handling) {
            (false, _) => Ok(plan(Touches::Keys)),
            (true, Handling::Script) => Ok(plan(Touches::Nothing)),
            (true, _) => Err(Refused::syntax()),
        }
    }
}
