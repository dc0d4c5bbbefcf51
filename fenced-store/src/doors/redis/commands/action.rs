//! Action for a command: its handling and key positions, or the reason of its denial.

use super::channels::{self, Channels};
use super::policy::{self, ByHand, Observed};
use super::refused::Refused;
use super::spec::{Number, Spec};
use super::{Handling, KeyUse, Plan, Touches, by_hand};
use crate::doors::redis::resp::request::Command;

/// Action for an allowed command.
#[derive(Debug)]
pub(super) struct Action {
    pub(super) handling: Handling,
    pub(super) keys: Keys,
    /// The user of a script may run it.
    pub(super) in_scripts: bool,
}

/// Denial of a command.
#[derive(Debug)]
pub(super) struct Denial {
    pub(super) reason: Box<str>,
    /// Handling in observe mode; `None` if the command is refused there too.
    pub(super) observed: Option<Observed>,
}

impl Denial {
    /// Makes a denial in every mode.
    pub(super) fn in_every_mode(reason: &str) -> Self {
        Self { reason: reason.into(), observed: None }
    }
}

/// Key positions of a command.
#[derive(Debug)]
pub(super) enum Keys {
    None,
    Keyspace,
    Channels(Channels),
    Specs { specs: Box<[Spec]>, number: Number },
    ByHand(ByHand),
}

impl Action {
    /// Makes an action of a command of at least `words_min` words. A script may run it if Redis'
    /// ACL finds the same keys as the guard, by fixed positions or a count; or if it has no keys
    /// and is listed.
    ///
    /// The ACL finds no key at all where one of several key specs begins behind the last word, as
    /// that of `PFMERGE key`, which creates the key.
    pub(super) fn new(name: &str, words_min: usize, handling: Handling, keys: Keys) -> Self {
        let in_scripts = match &keys {
            Keys::Specs { specs, .. } => {
                specs.len() == 1 || specs.iter().all(|spec| spec.needed() < words_min)
            }
            Keys::None | Keys::Channels(_) => policy::is_keyless_in_scripts(name),
            Keys::Keyspace | Keys::ByHand(_) => false,
        };
        Self { handling, keys, in_scripts }
    }

    /// Adds the keys of `command`, and returns its plan.
    pub(super) fn plan(
        &self,
        name: &str,
        command: Command<'_>,
        keys: &mut Vec<KeyUse>,
    ) -> Result<Plan, Refused> {
        let handling = self.handling;
        let in_scripts = self.in_scripts;
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
