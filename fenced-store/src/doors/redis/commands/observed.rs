//! Commands that pass in observe mode although the policy refuses them.
//!
//! A script then runs every command but a few ([`SCRIPT_RULES`]), on all keys but Fencepost's own.
//! Of the refused commands, those pass that leave the guard able to work.

use super::action::{Action, Keys};
use super::policy::Observed;
use super::refused::{Refused, shown};
use super::table::Entry;
use super::{CommandTable, Handling, KeyUse, Local, Plan, Touches};
use crate::doors::redis::look_ups;
use crate::doors::redis::resp::request::Command;
use crate::key::is_own_name;

/// ACL rules of a script's user in observe mode. FLUSHDB and FLUSHALL would delete Fencepost's own
/// keys, SWAPDB and MIGRATE would move them.
const SCRIPT_RULES: [&str; 8] =
    ["+@all", "-@admin", "+role", "+lastsave", "-flushall", "-flushdb", "-swapdb", "-migrate"];

/// Observe mode for commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observing {
    /// Clients may administer Redis, as each of them could without the guard.
    pub(crate) may_administer: bool,
}

impl CommandTable {
    /// Returns the table in observe mode.
    pub(crate) fn observing(self, observing: Observing) -> Self {
        let script_rules = SCRIPT_RULES.map(str::to_owned).into();
        Self { script_rules, observing: Some(observing), ..self }
    }
}

impl Observing {
    /// Plans a command as [`CommandTable::plan`] does, from its entry.
    pub(super) fn plan(
        self,
        entry: &Entry,
        command: Command<'_>,
        keys: &mut Vec<KeyUse>,
    ) -> Result<Plan, Refused> {
        match entry.action() {
            Ok(action) if action.handling == Handling::Local(Local::ConfigGet) => {
                self.config_get(action, entry.name(), command, keys)
            }
            Ok(action) => {
                let mut plan = action.plan(entry.name(), command, keys)?;
                let is_channels = matches!(action.keys, Keys::Channels(_));
                // A confined user cannot publish on the guard's channel before a WAIT.
                let is_wait = matches!(entry.name(), "wait" | "waitaof");
                let is_bounded =
                    !matches!(plan.touches, Touches::Everything | Touches::NamedByData);
                plan.in_scripts |= is_bounded && !is_channels && !is_wait;
                Ok(plan)
            }
            Err(denial) => match denial.observed {
                None => Err(Refused::denied(entry.name(), &denial.reason)),
                Some(Observed::Administration) if !self.may_administer => {
                    Err(administration(entry.name()))
                }
                Some(Observed::Own) => denied(Handling::Own, command),
                Some(Observed::Shared | Observed::Administration) => {
                    denied(Handling::Shared, command)
                }
            },
        }
    }

    /// Plans CONFIG GET, for all settings if the client may administer Redis.
    fn config_get(
        self,
        action: &Action,
        name: &str,
        command: Command<'_>,
        keys: &mut Vec<KeyUse>,
    ) -> Result<Plan, Refused> {
        let is_offered = look_ups::offers(command);
        match self.may_administer {
            true => Ok(Plan { is_denied: !is_offered, ..denied(Handling::Shared, command)? }),
            false if is_offered => action.plan(name, command, keys),
            false => Err(administration(name)),
        }
    }
}

/// Plans a command that the policy refuses. Its key positions are unknown, so no word may be one of
/// Fencepost's own keys.
fn denied(handling: Handling, command: Command<'_>) -> Result<Plan, Refused> {
    match command.iter().skip(1).find(|word| is_own_name(word)) {
        Some(word) => Err(Refused::own_key(word)),
        None => {
            Ok(Plan { handling, touches: Touches::Nothing, in_scripts: false, is_denied: true })
        }
    }
}

fn administration(name: &str) -> Refused {
    Refused(format!(
        "DENIED {} administers Redis, whose password the guard has and its clients need not know; send \
         it to Redis itself",
        shown(name)
    ))
}
