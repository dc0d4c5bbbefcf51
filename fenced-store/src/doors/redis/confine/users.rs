//! Redis users of one thread of the port: creation and removal.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use fence_protocol::wire::fence::Mode;
use redis_link::LinkError;
use service_kit::ids;

use super::super::refusal::Refusal;
use super::keys::CheckedKeys;
use super::{AclUser, Scope, WIDE, WIDE_OBSERVED, add_confinement, set_user};
use crate::rules::KeyPatterns;
use crate::stores::redis::Shared;

/// Users of one thread of the port.
#[derive(Debug)]
pub(crate) struct AclUsers {
    prefix: String,
    next: Cell<u64>,
    is_allowed: Cell<bool>,
    wide: &'static str,
}

/// Rules of a new user beyond its keys.
pub(crate) struct UserRules<'r> {
    /// Commands when it is confined.
    pub(crate) commands: Arc<[String]>,
    /// Databases, if some are closed to the guard itself.
    pub(crate) databases: Option<&'r str>,
}

impl AclUsers {
    pub(crate) fn new(namespace: &str, mode: Mode) -> Self {
        let wide = match mode {
            Mode::Enforce => WIDE,
            Mode::Observe => WIDE_OBSERVED,
        };
        Self {
            prefix: format!("{}{}:", prefix(namespace), ids::random_hex(8)),
            next: Cell::new(0),
            is_allowed: Cell::new(true),
            wide,
        }
    }

    /// Makes a user that is confined to `patterns` and `rules` from the beginning, or may touch
    /// every key; `None` if the guard may not make users. `unanswered` is called with the name if
    /// Redis has not replied to its creation.
    ///
    /// # Errors
    /// The reason why Redis cannot be used.
    pub(crate) async fn user(
        &self,
        redis: &Shared,
        UserRules { commands: rules, databases }: UserRules<'_>,
        patterns: KeyPatterns,
        is_confined: bool,
        unanswered: impl FnOnce(String),
    ) -> Result<Option<AclUser>, Refusal> {
        if !self.is_allowed.get() {
            return Ok(None);
        }
        let name = format!("{}{}", self.prefix, self.next.replace(self.next.get() + 1));
        let password = ids::random_hex(16);
        let mut command = set_user(&name);
        command.arg("reset").arg("on").arg(format!(">{password}")).arg(databases);
        let wide = match databases {
            None => format!("({})", self.wide),
            Some(databases) => format!("({} {databases})", self.wide),
        };
        let scope = if is_confined {
            let none = CheckedKeys::default();
            add_confinement(&mut command, Some(&rules), &patterns, &none)?;
            Scope::Confined(none)
        } else {
            command.arg(&wide);
            Scope::All
        };
        match redis.link.call(&command).await {
            Ok(_) => Ok(Some(AclUser {
                name,
                password,
                wide,
                scope: RefCell::new(scope),
                patterns,
                rules,
                has_rules: Cell::new(is_confined),
                redis_id: Cell::default(),
            })),
            // Any other error, such as BUSY and LOADING, is transient.
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
                unanswered(name);
                Err(Refusal::Unavailable(error.to_string()))
            }
        }
    }
}

/// Removes the users of guards that ended without doing so: those of this namespace that no
/// connection uses.
pub(crate) async fn remove_leftovers(redis: &Shared, namespace: &str) {
    let mut users = redis::cmd("ACL");
    let mut clients = redis::cmd("CLIENT");
    users.arg("USERS");
    clients.arg("LIST");
    // A guard without the right to list users has made none.
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
        tracing::debug!(error, "users that are no longer needed stay in Redis");
    }
}

/// Removes users; Redis ends their connections with them.
///
/// # Errors
/// A sentence.
pub(crate) async fn remove(redis: &Shared, names: &[String]) -> Result<(), String> {
    let mut command = redis::cmd("ACL");
    command.arg("DELUSER").arg(names);
    redis.link.call(&command).await.map(drop).map_err(|error| error.to_string())
}

fn prefix(namespace: &str) -> String {
    format!("fence:{namespace}:user:")
}
