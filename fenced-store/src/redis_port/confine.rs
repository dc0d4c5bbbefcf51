//! Redis users for own connections, so that a script reaches the keys that its connection may touch
//! and no others.
//!
//! The text of a script does not say which keys it will touch; Redis asks its ACL at each of
//! them. Every own connection is logged in as a user of its own. Confined, the user may touch what
//! the rules allow to the connection's tokens, as far as patterns can say it ([`KeyPatterns`]), and
//! the keys that a script declares beyond them. Before a command that needs more, and once nothing
//! is on its way, the user is widened, and confined again before the next script.
//!
//! Redis' ACL finds keys by key specs, and some commands take other keys than their specs find (the
//! last STORE of GEORADIUS, where the spec has the first). So a confined user may run what
//! [`CommandTable::script_rules`](super::commands::CommandTable::script_rules) lists and nothing
//! else: commands whose keys Redis and the guard find alike. What it may do when it is wide is a
//! selector of its own, which confining takes away.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use redis::Cmd;
use service_kit::ids;
use service_kit::redis_link::LinkError;

use super::commands::KeyAccess;
use super::refusal::{Refusal, quoted};
use crate::rules::{KeyPatterns, escaped, is_expressible};
use crate::store::redis::Shared;

/// A user is confined to at most so many keys beyond its patterns; Redis compares every key with
/// each of them.
pub(super) const KEYS_MAX: usize = 256;
/// The names of these keys take at most so many bytes.
pub(super) const KEY_BYTES_MAX: usize = 64 * 1024;

/// What a user that is not confined may do, as a selector. To Redis ROLE and LASTSAVE are
/// administration, too; they only read.
const WIDE: &str = "(~* &* +@all -@admin +role +lastsave -flushall -flushdb -swapdb -migrate)";

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

/// The users of one thread of the port.
#[derive(Debug)]
pub(super) struct AclUsers {
    prefix: String,
    next: Cell<u64>,
    is_allowed: Cell<bool>,
}

/// A user. Its name is never used again: a script that waits in Redis' socket when its client
/// leaves must not find its user widened for somebody else.
#[derive(Debug)]
pub(super) struct AclUser {
    name: String,
    password: String,
    scope: RefCell<Scope>,
    /// What it may touch when it is confined, whatever a script declares.
    patterns: KeyPatterns,
    /// What it may run when it is confined.
    rules: Arc<[String]>,
    /// Whether Redis knows these rules already; they stay.
    has_rules: Cell<bool>,
}

#[derive(Debug)]
enum Scope {
    All,
    /// Its patterns, and these keys beyond them.
    Confined(Scoped),
    /// A change was sent to Redis and has no reply: it may take effect at any time.
    Unsure,
}

/// Keys that were checked, and for what.
pub(super) type Scoped = BTreeMap<Vec<u8>, KeyAccess>;

/// A key of a command, and what the command does to it.
pub(super) type Wanted<'k> = (&'k [u8], KeyAccess);

fn suffices(known: KeyAccess, wanted: KeyAccess) -> bool {
    known == KeyAccess::Write || wanted == KeyAccess::Read
}

fn add(scoped: &mut Scoped, key: &[u8], access: KeyAccess) {
    match scoped.get_mut(key) {
        Some(known) if suffices(*known, access) => {}
        Some(known) => *known = access,
        None => {
            scoped.insert(key.to_vec(), access);
        }
    }
}

impl AclUsers {
    pub(super) fn new(namespace: &str) -> Self {
        Self {
            prefix: format!("{}{}:", prefix(namespace), ids::random_hex(8)),
            next: Cell::new(0),
            is_allowed: Cell::new(true),
        }
    }

    /// A user that is confined to `patterns` and `rules` from the beginning, or may touch every
    /// key; `None` where the guard may not make users. `unsure` is called with the name of one that
    /// Redis may have made without saying so.
    ///
    /// # Errors
    /// Why Redis cannot be used.
    pub(super) async fn user(
        &self,
        redis: &Shared,
        rules: Arc<[String]>,
        patterns: KeyPatterns,
        is_confined: bool,
        unsure: impl FnOnce(String),
    ) -> Result<Option<AclUser>, Refusal> {
        if !self.is_allowed.get() {
            return Ok(None);
        }
        let name = format!("{}{}", self.prefix, self.next.replace(self.next.get() + 1));
        let password = ids::random_hex(16);
        let mut command = set_user(&name);
        command.arg("reset").arg("on").arg(format!(">{password}"));
        let scope = if is_confined {
            add_confinement(&mut command, Some(&rules), &patterns, &Scoped::new())?;
            Scope::Confined(Scoped::new())
        } else {
            command.arg(WIDE);
            Scope::All
        };
        match redis.link.call(&command).await {
            Ok(_) => {
                let (scope, has_rules) = (RefCell::new(scope), Cell::new(is_confined));
                Ok(Some(AclUser { name, password, scope, patterns, rules, has_rules }))
            }
            // Anything else, such as BUSY and LOADING, passes.
            Err(LinkError::Server { code, message })
                if ["NOPERM", "ERR"].contains(&code.as_str()) =>
            {
                tracing::warn!(
                    code,
                    message,
                    "the guard may not make Redis users (ACL SETUSER), so scripts are refused"
                );
                self.is_allowed.set(false);
                Ok(None)
            }
            Err(error) => {
                unsure(name);
                Err(Refusal::Unavailable(error.to_string()))
            }
        }
    }
}

/// Removes the users of guards that ended without doing so: those of this namespace that no
/// connection uses.
pub(super) async fn remove_leftovers(redis: &Shared, namespace: &str) {
    let (mut users, mut clients) = (redis::cmd("ACL"), redis::cmd("CLIENT"));
    users.arg("USERS");
    clients.arg("LIST");
    // Without the right to look there is nothing of the guard's to remove.
    let Ok(users) = redis.link.call(&users).await else { return };
    let Ok(clients) = redis.link.call(&clients).await else { return };
    let users: Vec<String> = redis::from_redis_value(users).unwrap_or_default();
    let clients: String = redis::from_redis_value(clients).unwrap_or_default();
    let in_use = |name: &str| {
        clients.split_whitespace().any(|word| word.strip_prefix("user=") == Some(name))
    };
    let prefix = prefix(namespace);
    let left: Vec<String> =
        users.into_iter().filter(|name| name.starts_with(&prefix) && !in_use(name)).collect();
    if !left.is_empty()
        && let Err(error) = remove(redis, &left).await
    {
        tracing::debug!(error, "users that are not needed any more stay in Redis");
    }
}

/// Removes users; Redis ends their connections with them.
///
/// # Errors
/// A sentence.
pub(super) async fn remove(redis: &Shared, names: &[String]) -> Result<(), String> {
    let mut command = redis::cmd("ACL");
    command.arg("DELUSER").arg(names);
    redis.link.call(&command).await.map(drop).map_err(|error| error.to_string())
}

fn prefix(namespace: &str) -> String {
    format!("fence:{namespace}:user:")
}

fn set_user(name: &str) -> Cmd {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(name);
    command
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
                let is_known = |wanted: Wanted<'k>| {
                    let known = more.get::<[u8]>(wanted.0);
                    self.reaches(wanted) || known.is_some_and(|known| suffices(*known, wanted.1))
                };
                in_scripts && keys.all(is_known)
            }
            Scope::Unsure => false,
        }
    }

    /// Whether its patterns cover this key.
    pub(super) fn reaches(&self, (key, access): Wanted<'_>) -> bool {
        self.patterns.cover(key, access == KeyAccess::Write)
    }

    /// The keys of a script that its patterns do not cover.
    pub(super) fn beyond<'k>(&self, keys: impl Iterator<Item = Wanted<'k>>) -> Scoped {
        let mut more = Scoped::new();
        keys.filter(|wanted| !self.reaches(*wanted))
            .for_each(|(key, access)| add(&mut more, key, access));
        more
    }

    /// Whether it is confined to its patterns and these keys: no more, so that a script passes or
    /// fails whatever was sent before it, and no less.
    pub(super) fn is_confined_to(&self, more: &Scoped) -> bool {
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
        more: Scoped,
    ) -> Result<(), Refusal> {
        if more.len() > KEYS_MAX || more.keys().map(Vec::len).sum::<usize>() > KEY_BYTES_MAX {
            return Err(too_many_keys());
        }
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
        command.arg("clearselectors").arg(WIDE);
        self.set(redis, run_id, &command, Scope::All).await
    }

    /// Whether a change of it was sent that may still take effect. Its connection must not be used
    /// any more: a late one would widen what is confined by then.
    pub(super) fn is_unsure(&self) -> bool {
        matches!(*self.scope.borrow(), Scope::Unsure)
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
        let before = self.scope.replace(Scope::Unsure);
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

/// Adds to ACL SETUSER what confines a user; with `rules` where Redis does not know them yet.
///
/// # Errors
/// The line to be answered, where a key cannot be written down.
pub(super) fn add_confinement(
    command: &mut Cmd,
    rules: Option<&[String]>,
    patterns: &KeyPatterns,
    more: &Scoped,
) -> Result<(), Refusal> {
    command.arg("clearselectors");
    if let Some(rules) = rules {
        command.arg("nocommands").arg("resetchannels").arg(rules).arg(&SCRIPT_CHANNELS[..]);
    }
    // To Redis' ACL it reads; it stores the count in its key, so it counts as a write here.
    let only_reads = patterns.has_reads() || more.values().any(|access| *access == KeyAccess::Read);
    command.arg(if only_reads { "-pfcount" } else { "+pfcount" });
    command.arg("resetkeys");
    for rule in patterns.acl_rules() {
        command.arg(rule);
    }
    for (key, access) in more {
        command.arg(pattern(key, *access)?);
    }
    Ok(())
}

/// The refusal of a script whose keys are too many to confine it.
pub(super) fn too_many_keys() -> Refusal {
    Refusal::Line(format!(
        "DENIED a script (or a transaction with one) can have at most {KEYS_MAX} keys, of \
         {KEY_BYTES_MAX} bytes together, beside those that the rules let it reach by pattern; see \
         redis-commands.md, Scripts"
    ))
}

/// A key as an ACL pattern that matches it alone.
fn pattern(key: &[u8], access: KeyAccess) -> Result<Vec<u8>, Refusal> {
    if !key.iter().all(|byte| is_expressible(*byte)) {
        return Err(Refusal::Line(format!(
            "DENIED key {} has white space or a zero byte, which Redis' ACL cannot express, and no \
             pattern of the rules covers it, so a script cannot be confined to it",
            quoted(key)
        )));
    }
    let sign: &[u8] = match access {
        KeyAccess::Read => b"%R~",
        KeyAccess::Write => b"~",
    };
    Ok([sign, &escaped(key)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_becomes_a_pattern_of_itself() {
        let written = |key| pattern(key, KeyAccess::Write);
        assert_eq!(written(b"orders:42").unwrap(), b"~orders:42");
        assert_eq!(written(b"a*b?[c]\\").unwrap(), b"~a\\*b\\?\\[c\\]\\\\");
        for bad in [&b"a b"[..], b"a\tb", b"a\0b"] {
            assert!(written(bad).is_err());
        }
    }

    #[test]
    fn what_was_checked_for_reading_is_read_only() {
        use KeyAccess::{Read, Write};
        assert_eq!(pattern(b"a", Read).unwrap(), b"%R~a");
        let mut scoped = Scoped::new();
        for (key, access) in
            [(b"a", Read), (b"b", Write), (b"b", Read), (b"c", Read), (b"c", Write)]
        {
            add(&mut scoped, key, access);
        }
        let scope = RefCell::new(Scope::Confined(scoped));
        let user = AclUser {
            name: String::new(),
            password: String::new(),
            scope,
            patterns: KeyPatterns::default(),
            rules: Arc::new([]),
            has_rules: Cell::new(false),
        };
        let covers = |key: &'static [u8], access| user.covers(true, [(key, access)].into_iter());
        assert!(covers(b"a", Read) && !covers(b"a", Write));
        assert!(covers(b"b", Write) && covers(b"c", Write) && !covers(b"d", Read));
        assert!(!user.covers(false, [(&b"b"[..], Write)].into_iter()), "no script may run it");
        *user.scope.borrow_mut() = Scope::Unsure;
        assert!(!covers(b"a", Read), "a lost reply says nothing");
    }
}
