//! Redis users for own connections, so that a script reaches the keys that its connection may touch
//! and no others.
//!
//! The text of a script does not show which keys it will touch; Redis asks its ACL at each of
//! them. Every own connection is logged in as a user of its own. Confined, the user may touch what
//! the rules allow to the connection's tokens, as far as patterns can express it ([`KeyPatterns`]), and
//! the keys that a script declares beyond them. Before a command that needs more, and once nothing
//! is on its way, the user is widened, and confined again before the next script.
//!
//! Redis' ACL finds keys by key specs, and some commands take other keys than their specs find (the
//! last STORE of GEORADIUS, where the spec has the first). So a confined user may run what
//! [`CommandTable::script_rules`](super::commands::CommandTable::script_rules) lists and nothing
//! else: commands whose keys Redis and the guard find alike. What it may do when it is wide is a
//! selector of its own, which confining takes away.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use redis::Cmd;
use redis_link::LinkError;

use super::commands::KeyAccess;
use super::refusal::Refusal;
use crate::rules::KeyPatterns;
use crate::store::redis::Shared;

mod keys;
mod users;

pub(super) use keys::{CheckedKeys, Wanted};
pub(super) use users::{AclUsers, remove, remove_leftovers};

/// What a user that is not confined may do, as a selector. To Redis ROLE and LASTSAVE are
/// administration, too; they only read.
const WIDE: &str = "(~* &* +@all -@admin +role +lastsave -swapdb -migrate)";
/// The same in observe mode, in which clients may administer Redis.
const WIDE_OBSERVED: &str = "(~* &* +@all -swapdb)";

/// Channels that a script may publish to: all but those that begin with `{fence:`. Patterns have no
/// "but", so there is one for each byte in which a name can differ.
const SCRIPT_CHANNELS: [&str; 14] = [
    "&",
    "&[^{]*",
    "&{",
    "&{[^f]*",
    "&{f",
    "&{f[^e]*",
    "&{fe",
    "&{fe[^n]*",
    "&{fen",
    "&{fen[^c]*",
    "&{fenc",
    "&{fenc[^e]*",
    "&{fence",
    "&{fence[^:]*",
];

/// A user. Its name is never used again: a script that waits in Redis' socket when its client
/// leaves must not find its user widened for another client.
#[derive(Debug)]
pub(super) struct AclUser {
    name: String,
    password: String,
    /// What it may do when it is not confined.
    wide: &'static str,
    scope: RefCell<Scope>,
    /// What it may touch when it is confined, whatever a script declares.
    patterns: KeyPatterns,
    /// What it may run when it is confined.
    rules: Arc<[String]>,
    /// Whether Redis knows these rules already; they stay.
    has_rules: Cell<bool>,
    /// The id in Redis of the connection that is logged in as this user; 0 before there is one.
    pub(super) redis_id: Cell<u64>,
}

#[derive(Debug)]
enum Scope {
    All,
    /// Its patterns, and these keys beyond them.
    Confined(CheckedKeys),
    /// A change was sent to Redis and has no reply: it may take effect at any time.
    Unknown,
}

impl AclUser {
    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Logs a connection in as this user.
    pub(super) fn auth(&self) -> Cmd {
        let mut command = redis::cmd("AUTH");
        command.arg(&self.name).arg(&self.password);
        command
    }

    /// Whether a command with these keys can be run as it is; `in_scripts` as in its plan.
    pub(super) fn covers<'k>(
        &self,
        in_scripts: bool,
        mut keys: impl Iterator<Item = Wanted<'k>>,
    ) -> bool {
        match &*self.scope.borrow() {
            Scope::All => true,
            Scope::Confined(more) => {
                in_scripts && keys.all(|wanted| self.reaches(wanted) || more.have(wanted))
            }
            Scope::Unknown => false,
        }
    }

    /// Whether its patterns cover this key.
    pub(super) fn reaches(&self, (key, access): Wanted<'_>) -> bool {
        self.patterns.cover(key, access == KeyAccess::Write)
    }

    /// `queued`, and the keys of a script that its patterns do not cover.
    pub(super) fn beyond<'k>(
        &self,
        queued: CheckedKeys,
        keys: impl Iterator<Item = Wanted<'k>>,
    ) -> CheckedKeys {
        let mut more = queued;
        keys.filter(|wanted| !self.reaches(*wanted)).for_each(|wanted| more.add(wanted));
        more
    }

    /// Whether it is confined to its patterns and these keys: no more, so that a script passes or
    /// fails whatever was sent before it, and no less.
    pub(super) fn is_confined_to(&self, more: &CheckedKeys) -> bool {
        matches!(&*self.scope.borrow(), Scope::Confined(known) if known == more)
    }

    /// Confines it to its patterns and to keys that were checked. Nothing may be on its way that
    /// needs other keys. A key that was checked for reading can be read only.
    ///
    /// # Errors
    /// The line to be answered, where they cannot be written down, or Redis cannot be used.
    pub(super) async fn confine(
        &self,
        redis: &Shared,
        run_id: Option<&str>,
        more: CheckedKeys,
    ) -> Result<(), Refusal> {
        let rules = (!self.has_rules.get()).then_some(&self.rules[..]);
        let mut command = set_user(&self.name);
        add_confinement(&mut command, rules, &self.patterns, &more)?;
        self.set(redis, run_id, &command, Scope::Confined(more)).await?;
        self.has_rules.set(true);
        Ok(())
    }

    /// Lets it run every command on every key again. Nothing may be on its way that was to be
    /// confined.
    ///
    /// # Errors
    /// Why Redis cannot be used.
    pub(super) async fn widen(&self, redis: &Shared, run_id: Option<&str>) -> Result<(), Refusal> {
        let mut command = set_user(&self.name);
        command.arg("clearselectors").arg(self.wide);
        self.set(redis, run_id, &command, Scope::All).await
    }

    /// Whether a change of it was sent that may still take effect at any time. Its connection must not be used
    /// any more: a late one would widen what is confined by then.
    pub(super) fn is_scope_unknown(&self) -> bool {
        matches!(*self.scope.borrow(), Scope::Unknown)
    }

    /// Changes the user to `scope` in the very process that the connection was made to; in another
    /// one it would confine nothing.
    async fn set(
        &self,
        redis: &Shared,
        run_id: Option<&str>,
        command: &Cmd,
        scope: Scope,
    ) -> Result<(), Refusal> {
        let is_same = || run_id.is_none_or(|run_id| redis.state.run_id() == run_id);
        let changed = || Refusal::Unavailable("Redis changed behind the guard".to_owned());
        if !is_same() {
            return Err(changed());
        }
        let before = self.scope.replace(Scope::Unknown);
        match redis.link.call(command).await {
            Ok(_) if is_same() => {
                *self.scope.borrow_mut() = scope;
                Ok(())
            }
            Ok(_) => Err(changed()),
            Err(error) => {
                // Redis has not seen it, or has refused it (BUSY).
                if !matches!(error, LinkError::Unknown(_)) {
                    *self.scope.borrow_mut() = before;
                }
                Err(Refusal::Unavailable(error.to_string()))
            }
        }
    }
}

fn set_user(name: &str) -> Cmd {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(name);
    command
}

/// Adds to ACL SETUSER what confines a user; with `rules` where Redis does not know them yet.
///
/// # Errors
/// As [`CheckedKeys::acl_rules`].
pub(super) fn add_confinement(
    command: &mut Cmd,
    rules: Option<&[String]>,
    patterns: &KeyPatterns,
    more: &CheckedKeys,
) -> Result<(), Refusal> {
    command.arg("clearselectors");
    if let Some(rules) = rules {
        command.arg("nocommands").arg("resetchannels").arg(rules).arg(&SCRIPT_CHANNELS[..]);
    }
    // To Redis' ACL it reads; it stores the count in its key, so it counts as a write here.
    let only_reads = patterns.has_reads() || more.has_reads();
    command.arg(if only_reads { "-pfcount" } else { "+pfcount" });
    command.arg("resetkeys");
    for rule in patterns.acl_rules() {
        command.arg(rule);
    }
    command.arg(more.acl_rules()?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::KeyAccess::{Read, Write};
    use super::*;

    #[test]
    fn a_user_covers_what_it_is_confined_to() {
        let mut more = CheckedKeys::default();
        more.add((b"a", Read));
        more.add((b"b", Write));
        let user = AclUser {
            name: String::new(),
            password: String::new(),
            wide: WIDE,
            scope: RefCell::new(Scope::Confined(more)),
            patterns: KeyPatterns::default(),
            rules: Arc::new([]),
            has_rules: Cell::new(false),
            redis_id: Cell::default(),
        };
        let covers = |key: &'static [u8], access| user.covers(true, [(key, access)].into_iter());
        assert!(covers(b"a", Read) && !covers(b"a", Write) && covers(b"b", Write));
        assert!(!user.covers(false, [(&b"b"[..], Write)].into_iter()), "no script may run it");
        *user.scope.borrow_mut() = Scope::Unknown;
        assert!(!covers(b"a", Read), "a change without a reply says nothing");
    }
}
