//! Redis users for own connections, so that a script reaches the keys that were checked and no
//! others.
//!
//! Nobody can tell from a script's text which keys it will touch; Redis asks its ACL at each of
//! them. Every own connection is logged in as a user of its own, which may at first touch every
//! key. Before a script is sent the user is narrowed to the keys that the guard has checked, and
//! before another command is sent that needs more, and once nothing is on its way, widened again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use redis::{Cmd, Value};
use service_kit::ids;

use super::refusal::Refusal;
use crate::store::redis::Shared;

/// A user is narrowed to at most so many keys; Redis compares every key with each of them.
const KEYS_MAX: usize = 256;

/// What no script may do, whatever its keys.
const DENIED: [&str; 5] = ["-@admin", "-flushall", "-flushdb", "-swapdb", "-migrate"];

/// The users of one thread of the port.
#[derive(Debug)]
pub(super) struct AclUsers {
    prefix: String,
    next: Cell<u64>,
    free: RefCell<Vec<String>>,
    is_allowed: Cell<Option<bool>>,
}

/// A user, given back when dropped.
#[derive(Debug)]
pub(super) struct AclUser {
    name: String,
    password: String,
    users: Rc<AclUsers>,
    scope: RefCell<Scope>,
}

#[derive(Debug)]
enum Scope {
    All,
    Keys(BTreeSet<Vec<u8>>),
}

impl AclUsers {
    pub(super) fn new(namespace: &str) -> Rc<Self> {
        Rc::new(Self {
            prefix: format!("{}{}:", prefix(namespace), ids::random_hex(8)),
            next: Cell::new(0),
            free: RefCell::default(),
            is_allowed: Cell::new(None),
        })
    }

    /// A user that may touch every key; `None` where the guard may not make users.
    ///
    /// # Errors
    /// Why Redis cannot be used.
    pub(super) async fn user(self: &Rc<Self>, redis: &Shared) -> Result<Option<AclUser>, Refusal> {
        if self.is_allowed.get() == Some(false) {
            return Ok(None);
        }
        let free = self.free.borrow_mut().pop();
        let name = free.unwrap_or_else(|| {
            let number = self.next.get();
            self.next.set(number + 1);
            format!("{}{number}", self.prefix)
        });
        let password = ids::random_hex(16);
        let mut command = set_user(&name);
        command.arg("reset").arg("on").arg(format!(">{password}")).arg("~*").arg("&*").arg("+@all");
        command.arg(&DENIED[..]);
        match redis.link.call(&command).await {
            Ok(_) => {
                self.is_allowed.set(Some(true));
                let (users, scope) = (Rc::clone(self), RefCell::new(Scope::All));
                Ok(Some(AclUser { name, password, users, scope }))
            }
            Err(service_kit::redis_link::LinkError::Server { code, message }) => {
                tracing::warn!(
                    code,
                    message,
                    "the guard may not make Redis users (ACL SETUSER), so scripts are refused"
                );
                self.is_allowed.set(Some(false));
                Ok(None)
            }
            Err(error) => Err(Refusal::Unavailable(error.to_string())),
        }
    }

    /// Removes what this thread has made.
    pub(super) async fn remove_all(&self, redis: &Shared) {
        if self.next.get() > 0 {
            let names = (0..self.next.get()).map(|number| format!("{}{number}", self.prefix));
            delete(redis, &names.collect::<Vec<_>>()).await;
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
    if !left.is_empty() {
        delete(redis, &left).await;
    }
}

async fn delete(redis: &Shared, names: &[String]) {
    let mut command = redis::cmd("ACL");
    command.arg("DELUSER").arg(names);
    if let Err(error) = redis.link.call(&command).await {
        tracing::debug!(%error, "users that are not needed any more stay in Redis");
    }
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
    /// Logs a connection in as this user.
    pub(super) fn auth(&self) -> Cmd {
        let mut command = redis::cmd("AUTH");
        command.arg(&self.name).arg(&self.password);
        command
    }

    /// Whether all of `keys` can be touched as it is.
    pub(super) fn covers<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) -> bool {
        match &*self.scope.borrow() {
            Scope::All => true,
            Scope::Keys(known) => keys.all(|key| known.contains(key)),
        }
    }

    /// Whether it is narrowed to some keys.
    pub(super) fn is_narrow(&self) -> bool {
        matches!(&*self.scope.borrow(), Scope::Keys(_))
    }

    /// Narrows it to keys that were checked: these, and those that it was narrowed to before.
    ///
    /// # Errors
    /// The line to be answered, where they cannot be written down, or Redis cannot be used.
    pub(super) async fn narrow<'k>(
        &self,
        redis: &Shared,
        run_id: Option<&str>,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<(), Refusal> {
        let wanted: BTreeSet<Vec<u8>> = keys.map(<[u8]>::to_vec).collect();
        let mut all = match &*self.scope.borrow() {
            Scope::Keys(known) if wanted.is_subset(known) => return Ok(()),
            Scope::Keys(known) if known.len() + wanted.len() <= KEYS_MAX => known.clone(),
            _ => BTreeSet::new(),
        };
        all.extend(wanted);
        if all.len() > KEYS_MAX {
            return Err(Refusal::Line(format!(
                "DENIED a script (or a transaction with one) can have at most {KEYS_MAX} keys"
            )));
        }
        let mut command = set_user(&self.name);
        command.arg("resetkeys");
        for key in &all {
            command.arg(pattern(key)?);
        }
        self.set(redis, run_id, &command).await?;
        *self.scope.borrow_mut() = Scope::Keys(all);
        Ok(())
    }

    /// Lets it touch every key again. Nothing may be on its way that was to be confined.
    ///
    /// # Errors
    /// Why Redis cannot be used.
    pub(super) async fn widen(&self, redis: &Shared, run_id: Option<&str>) -> Result<(), Refusal> {
        let mut command = set_user(&self.name);
        command.arg("resetkeys").arg("~*");
        self.set(redis, run_id, &command).await?;
        *self.scope.borrow_mut() = Scope::All;
        Ok(())
    }

    /// Changes the user in the very process that the connection was made to; in another one it
    /// would confine nobody.
    async fn set(
        &self,
        redis: &Shared,
        run_id: Option<&str>,
        command: &Cmd,
    ) -> Result<(), Refusal> {
        let generation = redis.link.generation();
        let same = |_: &()| {
            redis.link.generation() == generation
                && run_id.is_none_or(|run_id| redis.state.run_id() == run_id)
        };
        let changed = || Refusal::Unavailable("Redis changed behind the guard".to_owned());
        if !same(&()) {
            return Err(changed());
        }
        match redis.link.call(command).await {
            Ok(Value::ServerError(error)) => Err(Refusal::Unavailable(format!("{error:?}"))),
            Ok(_) if same(&()) => Ok(()),
            Ok(_) => Err(changed()),
            Err(error) => Err(Refusal::Unavailable(error.to_string())),
        }
    }
}

impl Drop for AclUser {
    fn drop(&mut self) {
        self.users.free.borrow_mut().push(std::mem::take(&mut self.name));
    }
}

/// A key as an ACL pattern that matches it alone.
fn pattern(key: &[u8]) -> Result<Vec<u8>, Refusal> {
    if key.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0 || *byte == 0x0b) {
        return Err(Refusal::Line(format!(
            "DENIED key {} has white space, which Redis' ACL cannot express, so a script cannot be \
             confined to it",
            key.escape_ascii()
        )));
    }
    let mut pattern = vec![b'~'];
    for byte in key {
        if b"*?[]\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_becomes_a_pattern_of_itself() {
        assert_eq!(pattern(b"orders:42").unwrap(), b"~orders:42");
        assert_eq!(pattern(b"a*b?[c]\\").unwrap(), b"~a\\*b\\?\\[c\\]\\\\");
        for bad in [&b"a b"[..], b"a\tb", b"a\0b"] {
            assert!(pattern(bad).is_err());
        }
    }
}
