//! Preempt and abort: ends the connections with a lower token before a higher one is admitted.
//!
//! SCSI-3's PREEMPT AND ABORT, for connections. A connection of the port is registered in Redis
//! under its token. The step that raises a mark over registered connections leaves the lock
//! *sealing*. The next guard that meets it ends those connections, awaits their end, and records
//! it. Every step is idempotent, whichever guard runs it, so a guard may stop between any two.
//!
//! A client id is valid in one process only: ids start again after a restart. So listing and
//! killing connections use one physical connection, whose process cannot change.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::LockName;
use redis::{Cmd, Value};
use redis_link::{LinkState, Pinned, info_field};

use super::reply::ScriptReply;
use super::scripts::Scripts;
use super::{Keys, Shared, TRIES, reply};
use crate::fail_points::{FailPoint, FailPoints};
use crate::stores::contract::FenceOutcome;
use crate::verdict::Fence;

/// Maximum number of rounds in which a lock may be found with new lower connections.
const ROUNDS: usize = 16;
/// Maximum number of connections ended in one round trip to Redis.
const IDS_AT_ONCE: usize = 512;
/// Time that killed connections may stay listed.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_micros(200);
/// Error for an unknown reply.
const FOREIGN: &str = "Redis sent a reply that is none of our scripts'";
/// Time limit for the return of the guard's own connection.
const LINK: Duration = Duration::from_secs(2);

/// Failure of a step on a connection: a sentence. All steps here can be retried, so errors have no
/// kinds.
pub(crate) type Failed = String;

/// One physical connection to one Redis process.
#[async_trait]
pub(crate) trait Wire: Send {
    /// Sends one command and reads its reply.
    async fn call(&mut self, command: &Cmd) -> Result<Value, Failed>;

    /// Sends commands and reads all their replies; the first error ends it.
    async fn call_all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Failed>;
}

#[async_trait]
impl Wire for Pinned {
    async fn call(&mut self, command: &Cmd) -> Result<Value, Failed> {
        Pinned::call(self, command).await.map_err(|error| error.to_string())
    }

    async fn call_all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
        let replies = self.pipeline(commands).await.map_err(|error| error.to_string())?;
        let extracted = replies.into_iter().map(Value::extract_error).collect::<Result<_, _>>();
        extracted.map_err(|error| error.to_string())
    }
}

impl Shared {
    /// Registers the connection of `wire` under a token, after every connection with a lower one
    /// has ended. Nothing else may be under way on it.
    ///
    /// # Errors
    /// A sentence. The connection may be registered, and has to be retired.
    pub(crate) async fn register(
        &self,
        wire: &mut dyn Wire,
        fence: &Fence,
        client_id: u64,
    ) -> Result<FenceOutcome, Failed> {
        let Self { scripts, keys, fail_points, .. } = self;
        let mut passed = FailPoint::AfterRegister;
        for _ in 0..TRIES {
            fail_points.reached(FailPoint::BeforeRegister);
            let generation = self.link.generation();
            let command = scripts.register(keys, &self.state.id(), fence, client_id);
            let value = match wire.call(&command).await {
                Ok(value) => value,
                Err(reason) if reason.contains("NOSCRIPT") || reason.contains("NoScript") => {
                    self.verified_again(generation).await?;
                    continue;
                }
                Err(reason) => return Err(reason),
            };
            match reply::parse(value, Some(fence)).map_err(|error| error.to_string())? {
                ScriptReply::Done(outcome @ FenceOutcome::Applied { .. }) => {
                    fail_points.reached(passed);
                    self.state.remember(fence);
                    return Ok(outcome);
                }
                ScriptReply::Done(
                    outcome @ (FenceOutcome::Stale { .. } | FenceOutcome::Collision { .. }),
                ) => return Ok(outcome),
                ScriptReply::Done(_) => return Err(FOREIGN.to_owned()),
                ScriptReply::Sealing => {
                    settle(wire, scripts, keys, &fence.lock, fail_points).await?;
                    // Registered again: only the reply shows that the mark is still this one.
                    passed = FailPoint::AfterSealed;
                }
                ScriptReply::Unverified => self.verified_again(generation).await?,
            }
        }
        Err(format!("the registration under lock {} did not settle", fence.lock))
    }

    /// Has the process verified. If the link is down, because Redis was just restarted, its return
    /// is awaited.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) async fn verified_again(&self, generation: u64) -> Result<(), Failed> {
        let verified = self.link.verify_again(generation).await;
        let Err(error) = verified else { return Ok(()) };
        let mut states = self.link.watch();
        let up = states.wait_for(|state| matches!(state, LinkState::Up(_)));
        match tokio::time::timeout(LINK, up).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(error.to_string()),
        }
    }
}

/// Ends the connections registered below the mark of `lock`, until the lock is settled.
///
/// # Errors
/// A sentence; the lock is then still sealing, and the next guard that meets it continues.
pub(crate) async fn settle(
    wire: &mut dyn Wire,
    scripts: &Scripts,
    keys: &Keys,
    lock: &LockName,
    fail_points: &FailPoints,
) -> Result<(), Failed> {
    let mut gone = Vec::new();
    for _ in 0..ROUNDS {
        let lower = call_strings(wire, &scripts.settle(keys, lock, &gone)).await?;
        if lower.is_empty() {
            return Ok(());
        }
        fail_points.reached(FailPoint::AfterRaise);
        let ids = lower.iter().map(|field| client_id(field)).collect::<Result<Vec<_>, _>>()?;
        tracing::info!(%lock, connections = ids.len(), "ending connections with lower tokens");
        end(wire, &ids, fail_points).await?;
        fail_points.reached(FailPoint::AfterAbort);
        gone = lower;
    }
    Err(format!("lock {lock} still has connections with lower tokens after {ROUNDS} rounds"))
}

/// Registration of a connection that its guard no longer uses.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// Run id of the process that the connection was made to.
    pub(crate) run_id: String,
    /// Client id in that process.
    pub(crate) client_id: u64,
    /// Locks that it is registered under.
    pub(crate) locks: Vec<LockName>,
}

/// Removes connections from the registry. They are killed first: bytes that their owners sent may
/// still wait in Redis' socket, and an unregistered connection could act on them unseen. The number
/// of round trips to Redis does not grow with the number of connections.
///
/// # Errors
/// A sentence; the registrations then stay, which costs a line each in Redis and a needless kill
/// later.
pub(crate) async fn retire(
    wire: &mut dyn Wire,
    scripts: &Scripts,
    keys: &Keys,
    registrations: &[&Registration],
) -> Result<(), Failed> {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let info = call_text(wire, &info).await?;
    // In another process the id is another connection's; the registered one ended with its process.
    let is_of_this = |known: &&&Registration| info_field(&info, "run_id") == Some(&*known.run_id);
    let ids: Vec<u64> = registrations.iter().filter(is_of_this).map(|r| r.client_id).collect();
    end(wire, &ids, &FailPoints::default()).await?;
    let mut gone: BTreeMap<&LockName, Vec<String>> = BTreeMap::new();
    for Registration { run_id, client_id, locks } in registrations {
        for lock in locks {
            gone.entry(lock).or_default().push(format!("{run_id}:{client_id}"));
        }
    }
    let settle = |(lock, fields): (&&LockName, &Vec<String>)| scripts.settle(keys, lock, fields);
    let commands: Vec<Cmd> = gone.iter().map(settle).collect();
    for commands in commands.chunks(IDS_AT_ONCE) {
        wire.call_all(commands).await?;
    }
    Ok(())
}

/// Kills clients of the process behind `wire` and awaits their end.
///
/// # Errors
/// A sentence if Redis refuses, or a client is still listed after five seconds.
pub(crate) async fn end(
    wire: &mut dyn Wire,
    client_ids: &[u64],
    fail_points: &FailPoints,
) -> Result<(), Failed> {
    for (index, ids) in client_ids.chunks(IDS_AT_ONCE).enumerate() {
        let kill = |id: &u64| {
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(id);
            kill
        };
        let (first, rest) = ids.split_at(usize::from(index == 0));
        for (part, is_first) in [(first, true), (rest, false)] {
            // An empty pipeline is an error.
            if !part.is_empty() {
                wire.call_all(&part.iter().map(kill).collect::<Vec<_>>()).await?;
            }
            if is_first && index == 0 {
                fail_points.reached(FailPoint::MidAbort);
            }
        }
        await_gone(wire, ids).await?;
    }
    Ok(())
}

async fn await_gone(wire: &mut dyn Wire, client_ids: &[u64]) -> Result<(), Failed> {
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST").arg("ID").arg(client_ids);
    let mut waited = Duration::ZERO;
    let mut pause = FIRST_PAUSE;
    while !call_text(wire, &list).await?.trim().is_empty() {
        if waited >= GONE_WITHIN {
            return Err(format!("Redis still lists clients {client_ids:?} after they were killed"));
        }
        tokio::time::sleep(pause).await;
        waited += pause;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Ok(())
}

/// Returns the clients named `name` of the process behind `wire`.
///
/// # Errors
/// A sentence.
pub(crate) async fn clients_named(wire: &mut dyn Wire, name: &str) -> Result<Vec<u64>, Failed> {
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST");
    let text = call_text(wire, &list).await?;
    let field = |line: &str, key: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(key)).map(str::to_owned)
    };
    let mut ids = Vec::new();
    for line in text.lines().filter(|line| field(line, "name=").as_deref() == Some(name)) {
        let id = field(line, "id=").and_then(|id| id.parse().ok());
        ids.push(id.ok_or_else(|| format!("Redis lists a client without an id: {line}"))?);
    }
    Ok(ids)
}

fn client_id(field: &str) -> Result<u64, Failed> {
    field
        .split_once(':')
        .and_then(|(_, id)| id.parse().ok())
        .ok_or_else(|| format!("a registration in Redis cannot be read: {field}"))
}

async fn call_strings(wire: &mut dyn Wire, command: &Cmd) -> Result<Vec<String>, Failed> {
    let strings = reply::strings(wire.call(command).await?);
    let strings = strings.ok_or(FOREIGN)?;
    strings
        .into_iter()
        .map(|bytes| String::from_utf8(bytes).map_err(|error| error.to_string()))
        .collect()
}

async fn call_text(wire: &mut dyn Wire, command: &Cmd) -> Result<String, Failed> {
    match wire.call(command).await? {
        Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|error| error.to_string()),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Ok(text),
        other => Err(format!("Redis replied {other:?} instead of a text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies from a table, and records the commands.
    struct Scripted {
        replies: Vec<Result<Value, Failed>>,
        commands: Vec<String>,
        /// Number of batches.
        exchanges: usize,
    }

    #[async_trait]
    impl Wire for Scripted {
        async fn call(&mut self, command: &Cmd) -> Result<Value, Failed> {
            let words: Vec<String> = command
                .args_iter()
                .map(|arg| match arg {
                    redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    _ => String::new(),
                })
                .collect();
            self.commands.push(words.join(" "));
            if self.replies.is_empty() { Ok(bulk("")) } else { self.replies.remove(0) }
        }

        /// Fails for an empty batch, as a pipeline of the driver does.
        async fn call_all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
            if commands.is_empty() {
                return Err("empty command - Client".to_owned());
            }
            let mut replies = Vec::new();
            for command in commands {
                replies.push(self.call(command).await?);
            }
            self.exchanges += 1;
            Ok(replies)
        }
    }

    impl Scripted {
        fn new(replies: Vec<Result<Value, Failed>>) -> Self {
            Self { replies, commands: Vec::new(), exchanges: 0 }
        }
    }

    #[tokio::test]
    async fn one_connection_alone_can_be_ended() {
        let mut wire = Scripted::new(vec![Ok(Value::Int(1))]);
        end(&mut wire, &[7], &FailPoints::default()).await.unwrap();
        assert!(wire.commands.iter().any(|text| text == "CLIENT KILL ID 7"), "{:?}", wire.commands);
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn a_connection_of_another_process_is_not_killed() {
        let registration = Registration { run_id: "aa".to_owned(), client_id: 7, locks: vec![] };
        for (run_id, kills) in [("aa", true), ("bb", false)] {
            let info = bulk(&format!("run_id:{run_id}\r\n"));
            let mut wire = Scripted::new(vec![Ok(info)]);
            let keys = Keys::new(&Default::default(), "guard");
            retire(&mut wire, &Scripts::new(), &keys, &[&registration]).await.unwrap();
            let killed = wire.commands.iter().any(|text| text.contains("KILL ID 7"));
            assert_eq!(killed, kills, "{:?}", wire.commands);
        }
    }

    #[tokio::test]
    async fn many_connections_are_retired_in_a_few_exchanges() {
        let registration = |client_id| Registration {
            run_id: "aa".to_owned(),
            client_id,
            locks: vec![LockName::new(&format!("orders/{}", client_id % 40)).unwrap()],
        };
        let registrations: Vec<Registration> = (1..=400).map(registration).collect();
        let mut wire = Scripted::new(vec![Ok(bulk("run_id:aa\r\n"))]);
        let all: Vec<&Registration> = registrations.iter().collect();
        let keys = Keys::new(&Default::default(), "guard");
        retire(&mut wire, &Scripts::new(), &keys, &all).await.unwrap();
        let kills = wire.commands.iter().filter(|text| text.starts_with("CLIENT KILL ID")).count();
        assert_eq!(kills, 400);
        assert_eq!(wire.commands.iter().filter(|text| text.starts_with("EVALSHA")).count(), 40);
        assert!(wire.exchanges <= 3, "{} batches for 400 connections", wire.exchanges);
    }

    #[tokio::test]
    async fn clients_still_listed_are_awaited() {
        let listed = bulk("id=7 addr=127.0.0.1:1\n");
        let replies = vec![Ok(Value::Int(1)), Ok(listed.clone()), Ok(listed), Ok(bulk(""))];
        let mut wire = Scripted::new(replies);
        end(&mut wire, &[7], &FailPoints::default()).await.unwrap();
        let looks =
            wire.commands.iter().filter(|text| text.starts_with("CLIENT LIST ID 7")).count();
        assert_eq!(looks, 3);
    }

    #[tokio::test]
    async fn clients_are_found_by_their_whole_name() {
        let lines =
            "id=3 addr=a name=fence:x:port age=1\nid=4 name=fence:x:port2 age=1\nid=5 name= a\n";
        let mut wire = Scripted::new(vec![Ok(bulk(lines))]);
        assert_eq!(clients_named(&mut wire, "fence:x:port").await, Ok(vec![3]));
    }
}
