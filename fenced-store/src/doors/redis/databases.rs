//! Databases that the guard's user may enter. Valkey closes databases to a user by rules
//! (`db=0,2`), and the users that the guard makes must not enter more than the guard.

use super::upstream::connect::RawWire;
use crate::stores::redis::Shared;
use crate::stores::redis::preempt::Wire as _;

/// Maximum number of databases that are tried.
const TRIED_MAX: u64 = 1024;

/// Returns the rule that closes the same databases of a Valkey to another user; `None` if all are
/// open.
///
/// It tries them, because a user can do that without the right to read rules.
///
/// # Errors
/// A sentence with the remedy, if a database can be neither entered nor known as closed.
pub(super) async fn rule(redis: &Shared) -> Result<Option<String>, String> {
    let (mut wire, _) = RawWire::logged_in(redis).await?;
    let mut open: Vec<String> = Vec::new();
    let mut has_closed = false;
    for db in 0..TRIED_MAX {
        let mut select = redis::cmd("SELECT");
        select.arg(db);
        match wire.call(&select).await {
            Ok(_) => open.push(db.to_string()),
            Err(error) if error.contains("access database") => has_closed = true,
            Err(error) if error.contains("out of range") => {
                return Ok(has_closed.then(|| format!("db={}", open.join(","))));
            }
            Err(error) => {
                return Err(format!(
                    "the databases that the guard's user may enter are unknown ({error}), so its \
                     scripts cannot be kept to them; let it SELECT: ACL SETUSER guard +select"
                ));
            }
        }
    }
    Err(format!("it has more than {TRIED_MAX} databases: lower its setting `databases`"))
}
