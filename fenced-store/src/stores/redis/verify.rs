//! Verification of the Redis behind each new connection, before it is used.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis_link::{LinkState, Product, RedisLink, Verifier, info_field, load_scripts};
use service_kit::Kit;
use service_kit::health::{Health, Status};

use super::preempt::{self, Failed, Wire};
use super::scripts::Scripts;
use super::state::GuardState;

/// Readiness check: Redis can be used.
const LINK: &str = "redis";
/// Readiness check: Redis keeps what was written.
const PERSISTENCE: &str = "redis-persistence";
/// Readiness check: the tests ran this version of Redis.
const VERSION: &str = "redis-version";

/// Refuses a Redis in which a mark can vanish or a script cannot write, and one that has lost its
/// marks until the floor is known.
pub(super) struct GuardVerifier {
    scripts: Arc<Scripts>,
    state: Arc<GuardState>,
    health: Health,
}

impl GuardVerifier {
    pub(super) fn new(scripts: Arc<Scripts>, state: Arc<GuardState>, health: Health) -> Self {
        Self { scripts, state, health }
    }
}

/// Connection under verification.
struct Verified<'a>(&'a mut MultiplexedConnection);

#[async_trait]
impl Wire for Verified<'_> {
    async fn call(&mut self, command: &redis::Cmd) -> Result<redis::Value, Failed> {
        let reply = self.0.send_packed_command(command).await;
        reply.and_then(redis::Value::extract_error).map_err(|error| error.to_string())
    }

    async fn call_all(&mut self, commands: &[redis::Cmd]) -> Result<Vec<redis::Value>, Failed> {
        let mut pipeline = redis::Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let replies = self.0.send_packed_commands(&pipeline, 0, commands.len()).await;
        let replies = replies.map_err(|error| error.to_string())?;
        let replies = replies.into_iter().map(redis::Value::extract_error);
        replies.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Verifier for GuardVerifier {
    async fn verify(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        let info: String = redis::cmd("INFO")
            .query_async(connection)
            .await
            .map_err(|error| format!("Redis did not reply to INFO: {error}"))?;
        judge(&info)?;
        let run_id = info_field(&info, "run_id").ok_or("INFO has no run_id")?;
        let product = Product::from_info(&info).ok_or("INFO has no redis_version")?;
        if self.state.run_id() != run_id {
            tracing::info!(server = %product, "verifying the Redis behind the guard");
        }
        self.health.set(VERSION, product.untested().map_or(Status::Ok, Status::Warn));
        // Not every user may read the configuration; then INFO alone decides.
        let fsync: Option<Vec<String>> =
            redis::cmd("CONFIG").arg("GET").arg("appendfsync").query_async(connection).await.ok();
        let fsync = fsync.and_then(|pair| pair.into_iter().nth(1));
        let persistence = persistence(&info, fsync.as_deref());
        self.state.check_disk(&persistence)?;
        self.state.record_gaps(&info, &persistence);
        self.health.set(PERSISTENCE, persistence);
        load_scripts(connection, &self.scripts.all()).await?;
        let mut wire = Verified(connection);
        let found = self.state.find(&mut wire, run_id).await?;
        if !found.is_open {
            // Connected clients were registered, if at all, in a state that is gone.
            let ids = preempt::clients_named(&mut wire, &self.state.client_name()).await?;
            preempt::end(&mut wire, &ids, &Default::default()).await?;
            self.state.open(&mut wire, &found).await?;
        }
        self.state.restore_marks(&mut wire, &self.scripts, run_id, &found).await?;
        self.state.adopt(run_id, found);
        Ok(())
    }
}

/// Checks that a Redis can be `atomic`.
pub(crate) fn judge(info: &str) -> Result<(), String> {
    let version = info_field(info, "redis_version").unwrap_or("unknown");
    let major: u32 = version.split('.').next().and_then(|part| part.parse().ok()).unwrap_or(0);
    if major < 7 {
        return Err(format!("Redis is version {version}; at least 7.0 is required"));
    }
    // Meanwhile INFO says that it keeps no append-only file, even if it does.
    if info_field(info, "loading") == Some("1") {
        return Err("Redis is still loading its data".to_owned());
    }
    match info_field(info, "role") {
        Some("master") => {}
        role => {
            let role = role.unwrap_or("unknown");
            return Err(format!("Redis has the role {role}; connect to the master"));
        }
    }
    // A limit of 0 means no eviction, whatever the policy; but the limit can be set while Redis
    // runs, so the policy itself has to be right.
    match info_field(info, "maxmemory_policy") {
        Some(policy) if policy == "noeviction" || policy.starts_with("volatile-") => Ok(()),
        policy => Err(format!(
            "Redis has maxmemory-policy {}, which may evict marks; set it to noeviction",
            policy.unwrap_or("unknown")
        )),
    }
}

/// Status of this Redis' persistence. A crash loses marks and data together, but then a holder
/// whose token was refused before may write again.
fn persistence(info: &str, fsync: Option<&str>) -> Status {
    match (info_field(info, "aof_enabled"), fsync) {
        (Some("1"), Some("always")) => Status::Ok,
        (Some("1"), _) => Status::Warn(format!(
            "Redis has appendfsync {}: a crash of its machine may lose the last marks and data; \
             set it to always for no loss",
            fsync.unwrap_or("unknown")
        )),
        _ => Status::Warn(
            "Redis keeps no append-only file: a restart loses marks and data since the last \
             snapshot; set appendonly yes, and appendfsync always for no loss at all"
                .to_owned(),
        ),
    }
}

/// Interval at which a working connection is verified again: an operator may have changed the
/// eviction policy, or demoted the process.
const VERIFY_INTERVAL: Duration = Duration::from_secs(10);

/// Updates readiness with the link, and verifies its Redis periodically. A Redis that fails takes
/// the link down: operations are refused until it passes.
pub(super) fn follow(link: &RedisLink, kit: &Kit) {
    let mut states = link.watch();
    let health = kit.health.clone();
    let link = link.clone();
    let stop = kit.tasks.shutdown_token();
    kit.tasks.spawn(async move {
        loop {
            let status = match &*states.borrow_and_update() {
                LinkState::Up(_) => Status::Ok,
                LinkState::Down(reason) => Status::Failing(reason.clone()),
            };
            health.set(LINK, status);
            tokio::select! {
                () = stop.cancelled() => return,
                changed = states.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(VERIFY_INTERVAL) => {
                    // The result is in the link's state.
                    let _ = link.verify_again(link.generation()).await;
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: &str, role: &str, policy: &str) -> String {
        format!("redis_version:{version}\r\nrole:{role}\r\nmaxmemory_policy:{policy}\r\n")
    }

    #[test]
    fn a_crash_s_cost_is_a_warning() {
        assert_eq!(persistence("aof_enabled:1", Some("always")), Status::Ok);
        for (info, fsync, word) in [
            ("aof_enabled:1", Some("everysec"), "everysec"),
            ("aof_enabled:1", None, "unknown"),
            ("aof_enabled:0", Some("always"), "no append-only file"),
        ] {
            let status = persistence(info, fsync);
            assert!(matches!(&status, Status::Warn(text) if text.contains(word)), "{status:?}");
        }
    }

    #[test]
    fn only_a_master_that_keeps_marks_is_used() {
        assert_eq!(judge(&info("7.0.15", "master", "noeviction")), Ok(()));
        assert_eq!(judge(&info("8.2.1", "master", "volatile-lru")), Ok(()));
        for (bad, reason) in [
            (info("6.2.14", "master", "noeviction"), "at least 7.0"),
            (info("7.0.15", "slave", "noeviction"), "connect to the master"),
            (info("7.0.15", "master", "allkeys-lru"), "may evict marks"),
            (info("7.0.15", "master", "noeviction") + "loading:1\r\n", "still loading"),
            (String::new(), "version unknown"),
        ] {
            let error = judge(&bad).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
