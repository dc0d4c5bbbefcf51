//! Parsers of commands whose keys no key spec gives for certain. They read options exactly as Redis
//! does, and refuse what Redis would refuse: a disagreement about an option would be one about a
//! key.

use super::policy::ByHand;
use super::refused::Refused;
use super::{Handling, KeyAccess, KeyUse, Plan, Touches};
use crate::doors::redis::resp::request::Command;
use crate::key::{OWN_NAMES, is_own_name};

impl ByHand {
    /// Returns the handling without any options.
    pub(super) fn handling(self) -> Handling {
        match self {
            Self::Tracking => Handling::Own,
            Self::Sort { .. } | Self::Streams { .. } | Self::Radius { .. } | Self::Flush => {
                Handling::Shared
            }
        }
    }
}

/// Adds the keys of `command`, and returns its plan.
pub(super) fn plan(
    by_hand: ByHand,
    name: &str,
    command: Command<'_>,
    keys: &mut Vec<KeyUse>,
) -> Result<Plan, Refused> {
    match by_hand {
        ByHand::Sort { stores } => sort(stores, name, command, keys),
        ByHand::Streams { group } => streams(group, command, keys),
        ByHand::Radius { options } => radius(options, command, keys),
        ByHand::Tracking => tracking(name, command),
        ByHand::Flush => flush(command),
    }
}

const fn plan_of(handling: Handling, touches: Touches) -> Plan {
    Plan { handling, touches, in_scripts: false, is_denied: false }
}

const fn keys_plan(handling: Handling) -> Plan {
    plan_of(handling, Touches::Keys)
}

/// SORT key \[BY pattern\] \[LIMIT offset count\] \[GET pattern …\] \[ASC|DESC\] \[ALPHA\] \[STORE
/// key\].
fn sort(
    stores: bool,
    name: &str,
    command: Command<'_>,
    keys: &mut Vec<KeyUse>,
) -> Result<Plan, Refused> {
    keys.push(KeyUse { arg: 1, access: KeyAccess::Read });
    let mut touches = Touches::Keys;
    let mut options = Options::from(command, 2);
    while let Some((at, word)) = options.next() {
        if is(word, "ASC") || is(word, "DESC") || is(word, "ALPHA") {
            continue;
        }
        if is(word, "LIMIT") {
            options.skip(2)?;
        } else if is(word, "STORE") && stores {
            options.skip(1)?;
            keys.push(KeyUse { arg: at + 1, access: KeyAccess::Write });
        } else if is(word, "BY") || is(word, "GET") {
            options.skip(1)?;
            let Some(lead) = lead_of_pattern(command.arg(at + 1)) else { continue };
            if may_lead_to_own(lead) {
                return Err(Refused::denied(
                    name,
                    "BY and GET with this pattern may reach Fencepost's own keys; begin it with a \
                     literal text, such as weight_*, or use BY nosort and GET #",
                ));
            }
            touches = Touches::NamedByData;
        } else {
            return Err(Refused::syntax());
        }
    }
    Ok(plan_of(Handling::Shared, touches))
}

/// Returns the text before the star of a pattern of SORT. `None` without a star: such a pattern
/// names no key (it means "do not sort", or gets nothing).
fn lead_of_pattern(pattern: &[u8]) -> Option<&[u8]> {
    let star = pattern.iter().position(|byte| *byte == b'*')?;
    Some(&pattern[..star])
}

/// Returns `true` if a name with this beginning may be one of Fencepost's own.
fn may_lead_to_own(lead: &[u8]) -> bool {
    match lead.iter().position(|byte| *byte == b'{') {
        Some(brace) => OWN_NAMES.starts_with(&lead[brace..]) || is_own_name(lead),
        None => lead.is_empty(),
    }
}

/// Returns the beginnings of the keys that SORT finds by the patterns of BY and GET.
pub(crate) fn data_patterns(command: Command<'_>) -> impl Iterator<Item = &[u8]> {
    (2..command.len())
        .filter(move |at| is(command.arg(*at), "BY") || is(command.arg(*at), "GET"))
        .filter_map(move |at| lead_of_pattern(command.arg(at + 1)))
}

/// XREAD [COUNT n] [BLOCK ms] STREAMS key … id …, and XREADGROUP GROUP group consumer … as well.
fn streams(group: bool, command: Command<'_>, keys: &mut Vec<KeyUse>) -> Result<Plan, Refused> {
    let mut handling = Handling::Shared;
    let mut options = Options::from(command, 1);
    while let Some((at, word)) = options.next() {
        if is(word, "STREAMS") {
            let count = command.len() - (at + 1);
            if count == 0 {
                return Err(Refused::syntax());
            }
            if !count.is_multiple_of(2) {
                return Err(Refused::error(
                    "Unbalanced XREAD list of streams: for each stream key an ID or '$' must be \
                     specified.",
                ));
            }
            // Reading as a group changes the group.
            let access = if group { KeyAccess::Write } else { KeyAccess::Read };
            keys.extend((at + 1..=at + count / 2).map(|arg| KeyUse { arg, access }));
            return Ok(keys_plan(handling));
        } else if is(word, "BLOCK") {
            handling = Handling::Own;
            options.skip(1)?;
        } else if is(word, "COUNT") || (group && is(word, "CLAIM")) {
            options.skip(1)?;
        } else if group && is(word, "GROUP") {
            options.skip(2)?;
        } else if is(word, "GROUP") || (!group && is(word, "NOACK")) {
            let option = if is(word, "GROUP") { "GROUP" } else { "NOACK" };
            return Err(Refused::error(&format!(
                "The {option} option is only supported by XREADGROUP. You called XREAD instead."
            )));
        } else if !is(word, "NOACK") {
            return Err(Refused::syntax());
        }
    }
    Err(Refused::syntax())
}

/// GEORADIUS key longitude latitude radius unit and GEORADIUSBYMEMBER key member radius unit, with
/// \[WITHCOORD\] \[WITHDIST\] \[WITHHASH\] \[COUNT n \[ANY\]\] \[ASC|DESC\] \[STORE key|STOREDIST
/// key\].
fn radius(
    first_option: usize,
    command: Command<'_>,
    keys: &mut Vec<KeyUse>,
) -> Result<Plan, Refused> {
    const FLAGS: [&str; 6] = ["WITHCOORD", "WITHDIST", "WITHHASH", "ANY", "ASC", "DESC"];
    keys.push(KeyUse { arg: 1, access: KeyAccess::Read });
    let mut options = Options::from(command, first_option);
    while let Some((at, word)) = options.next() {
        if is(word, "STORE") || is(word, "STOREDIST") {
            options.skip(1)?;
            keys.push(KeyUse { arg: at + 1, access: KeyAccess::Write });
        } else if is(word, "COUNT") {
            options.skip(1)?;
        } else if !FLAGS.iter().any(|flag| is(word, flag)) {
            return Err(Refused::syntax());
        }
    }
    Ok(keys_plan(Handling::Shared))
}

/// CLIENT TRACKING ON|OFF \[REDIRECT id\] \[PREFIX prefix …\] \[BCAST\] \[OPTIN\] \[OPTOUT\]
/// \[NOLOOP\].
fn tracking(name: &str, command: Command<'_>) -> Result<Plan, Refused> {
    let mut broadcasts = false;
    let mut prefixes = 0;
    let mut reaches_own = false;
    let mut options = Options::from(command, 3);
    while let Some((at, word)) = options.next() {
        if is(word, "BCAST") {
            broadcasts = true;
        } else if is(word, "PREFIX") {
            options.skip(1)?;
            let prefix = command.arg(at + 1);
            prefixes += 1;
            reaches_own |= OWN_NAMES.starts_with(prefix) || is_own_name(prefix);
        } else if is(word, "REDIRECT") {
            return Err(Refused::denied(
                name,
                "REDIRECT sends messages to another client's connection; use RESP3 (HELLO 3), \
                 where they come on this one",
            ));
        } else if !["OPTIN", "OPTOUT", "NOLOOP"].iter().any(|flag| is(word, flag)) {
            return Err(Refused::syntax());
        }
    }
    if broadcasts && (prefixes == 0 || reaches_own) {
        return Err(Refused::denied(
            name,
            "BCAST would also name Fencepost's own keys; give each PREFIX of your keys, none of which \
             {fence: begins with",
        ));
    }
    let touches = if broadcasts { Touches::Keyspace } else { Touches::Nothing };
    Ok(plan_of(Handling::Own, touches))
}

/// FLUSHDB [ASYNC|SYNC] and FLUSHALL [ASYNC|SYNC].
fn flush(command: Command<'_>) -> Result<Plan, Refused> {
    match command.len() {
        1 => {}
        2 if is(command.arg(1), "ASYNC") || is(command.arg(1), "SYNC") => {}
        _ => return Err(Refused::syntax()),
    }
    Ok(plan_of(Handling::Shared, Touches::Everything))
}

/// Iterator over a command's options.
struct Options<'b> {
    command: Command<'b>,
    next: usize,
}

impl<'b> Options<'b> {
    fn from(command: Command<'b>, next: usize) -> Self {
        Self { command, next }
    }

    /// Returns the next option and its position.
    fn next(&mut self) -> Option<(usize, &'b [u8])> {
        let at = self.next;
        (at < self.command.len()).then(|| {
            self.next += 1;
            (at, self.command.arg(at))
        })
    }

    /// Skips the arguments of an option, all of which must exist.
    fn skip(&mut self, args: usize) -> Result<(), Refused> {
        self.next += args;
        if self.next <= self.command.len() { Ok(()) } else { Err(Refused::syntax()) }
    }
}

/// Compares with a keyword as Redis does: in any case, up to the first NUL.
fn is(word: &[u8], keyword: &str) -> bool {
    let end = word.iter().position(|byte| *byte == 0).unwrap_or(word.len());
    word[..end].eq_ignore_ascii_case(keyword.as_bytes())
}
