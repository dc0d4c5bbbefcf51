//! Databases that the guard's user may enter. Valkey closes databases to a user by rules
//! (`db=0,2`), and the users that the guard makes must not enter more than the guard.

use redis_link::Product;

use super::upstream::connect::RawWire;
use crate::stores::redis::Shared;
use crate::stores::redis::preempt::Wire as _;

/// Returns the rule that closes the same databases to another user; `None` if all are open.
///
/// It tries them, because a user can do that without the right to read rules.
///
/// # Errors
/// A sentence with the remedy, if a database can be neither entered nor known as closed.
pub(super) async fn rule(redis: &Shared) -> Result<Option<String>, String> {
    let (mut wire, _) = RawWire::logged_in(redis).await?;
    let mut open: Vec<String> = Vec::new();
    let mut has_closed = false;
    for db in 0_u64.. {
        let mut select = redis::cmd("SELECT");
        select.arg(db);
        match wire.call(&select).await {
            Ok(_) => open.push(db.to_string()),
            Err(error) if error.contains("access database") => has_closed = true,
            Err(error) if error.contains("out of range") => break,
            Err(error) if error.contains("'select' command") && is_redis(redis).await? => break,
            Err(error) => {
                return Err(format!(
                    "the databases that the guard's user may enter are unknown ({error}), so its \
                     scripts cannot be kept to them; let it SELECT: ACL SETUSER guard +select"
                ));
            }
        }
    }
    Ok(has_closed.then(|| format!("db={}", open.join(","))))
}

/// Returns `true` for Redis itself, which closes no databases.
async fn is_redis(redis: &Shared) -> Result<bool, String> {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let reply = redis.link.call(&info).await.map_err(|error| error.to_string())?;
    let text: String = redis::from_redis_value(reply).map_err(|error| error.to_string())?;
    Ok(Product::from_info(&text).is_some_and(|product| product.is_redis()))
}
