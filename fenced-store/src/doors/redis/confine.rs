//! Redis users for own connections, which limit a script to the keys that its connection may touch.
//!
//! The text of a script does not show its keys; Redis checks its ACL at each key access. Every own
//! connection is logged in as a user of its own. Confined, the user may touch the keys that the
//! rules give to the connection's tokens, as far as patterns can express it ([`KeyPatterns`]), and
//! further keys that a script declares. Before a command that needs more, and once nothing is under
//! way, the user is widened; before the next script it is confined again.
//!
//! Redis' ACL finds keys by key specs, and some commands take other keys than their specs give (the
//! last STORE of GEORADIUS, where the spec has the first). So a confined user may run only the
//! commands of [`CommandTable::script_rules`](super::commands::CommandTable::script_rules), for
//! which Redis and the guard find the same keys. The rights of a wide user are a separate selector,
//! which confining removes.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use redis::Cmd;
use redis_link::LinkError;

use super::commands::KeyAccess;
use super::refusal::Refusal;
use crate::rules::KeyPatterns;
use crate::stores::redis::Shared;

mod keys;
mod users;

pub(super) use keys::{CheckedKeys, Wanted};
pub(super) use users::{AclUsers, UserRules, remove, remove_leftovers};

/// Rights of a user that is not confined, for a selector. Redis counts ROLE and LASTSAVE as
/// administration, although they only read.
pub(super) const WIDE: &str = "~* &* +@all -@admin +role +lastsave -swapdb -migrate";
/// Rights in observe mode, in which clients may administer Redis.
const WIDE_OBSERVED: &str = "~* &* +@all -swapdb";

/// Channels that a script may publish to: all but those that begin with `{fence:`. Patterns cannot
/// exclude, so there is one for each byte in which a name can differ.
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

/// A Redis user. Its name is never used again: a script that waits in Redis' socket when its client
/// leaves must not find its user widened for another client.
#[derive(Debug)]
pub(super) struct AclUser {
    name: String,
    password: String,
    /// Selector of its rights when it is not confined.
    wide: String,
    scope: RefCell<Scope>,
    /// Keys when it is confined, whatever a script declares.
    patterns: KeyPatterns,
    /// Commands when it is confined.
    rules: Arc<[String]>,
    /// Redis already has these rules; they stay.
    has_rules: Cell<bool>,
    /// Id in Redis of the connection that is logged in as this user; 0 before there is one.
    pub(super) redis_id: Cell<u64>,
}

#[derive(Debug)]
enum Scope {
    All,
    /// Its patterns, and these further keys.
    Confined(CheckedKeys),
    /// A change was sent to Redis and has no reply: it may take effect at any time.
    Unknown,
}

impl AclUser {
    /// Returns the name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes the command that logs a connection in as this user.
    pub(super) fn auth(&self) -> Cmd {
        let mut command = redis::cmd("AUTH");
        command.arg(&self.name).arg(&self.password);
        command
    }

    /// Returns `true` if a command with these keys can be run now; `in_scripts` as in its plan.
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

    /// Returns `true` if its patterns cover this key.
    pub(super) fn reaches(&self, (key, access): Wanted<'_>) -> bool {
        self.patterns.cover(key, access == KeyAccess::Write)
    }

    /// Returns `queued`, and the keys of a script that its patterns do not cover.
    pub(super) fn beyond<'k>(
        &self,
        queued: CheckedKeys,
        keys: impl Iterator<Item = Wanted<'k>>,
    ) -> CheckedKeys {
        let mut more = queued;
        keys.filter(|wanted| !self.reaches(*wanted)).for_each(|wanted| more.add(wanted));
        more
    }

    /// Returns `true` if it is confined to exactly its patterns and these keys, so that a script's
    /// success does not depend on earlier commands.
    pub(super) fn is_confined_to(&self, more: &CheckedKeys) -> bool {
        matches!(&*self.scope.borrow(), Scope::Confined(known) if known == more)
    }

    /// Confines it to its patterns and to checked keys. No command that needs other keys may be
    /// under way. A key that was checked for reading can only be read.
    ///
    /// # Errors
    /// The error line, if the keys cannot be expressed or Redis cannot be used.
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

    /// Lets it run every command on every key again. No script that was to be confined may be under
    /// way.
    ///
    /// # Errors
    /// The reason why Redis cannot be used.
    pub(super) async fn widen(&self, redis: &Shared, run_id: Option<&str>) -> Result<(), Refusal> {
        let mut command = set_user(&self.name);
        command.arg("clearselectors").arg(&self.wide);
        self.set(redis, run_id, &command, Scope::All).await
    }

    /// Returns `true` if a change was sent that may still take effect. Its connection must not be
    /// used again: a late change would widen a confined user.
    pub(super) fn is_scope_unknown(&self) -> bool {
        matches!(*self.scope.borrow(), Scope::Unknown)
    }

    /// Changes the user to `scope` in the process of its connection; in another process it would
    /// confine nothing.
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
                // Redis has not received it, or has refused it (BUSY).
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

/// Adds to ACL SETUSER the rules that confine a user; with `rules` if Redis does not have them yet.
///
/// # Errors
/// As for [`CheckedKeys::acl_rules`].
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
    // Redis' ACL counts PFCOUNT as a read; it stores the count in its key, so here it is a write.
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
            wide: WIDE.to_owned(),
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
        assert!(!covers(b"a", Read), "a change without a reply proves nothing");
    }
}
