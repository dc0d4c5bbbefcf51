//! Preempt and abort: ends the connections that carry a lower token, before a higher one is
//! admitted.
//!
//! SCSI-3's PREEMPT AND ABORT, done to connections. A connection of the port is registered in
//! Redis under its token. The step that raises a mark over registered connections leaves the lock
//! *sealing*, and whoever meets it so ends them, awaits that they are gone, and records that. Every
//! step can be repeated by anybody, so a guard that stops between two of them hurts nobody.
//!
//! Client ids are worth something in one process only: they begin anew with the next. So whatever
//! names and kills connections does both on one and the same physical connection, whose process
//! cannot change under it.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::LockName;
use redis::{Cmd, Value};
use redis_link::{Pinned, info_field};

use super::scripts::Scripts;
use super::{Keys, reply};
use crate::fail_points::{FailPoint, FailPoints};

/// How often a lock may be found with new lower connections before somebody else has to try.
const ROUNDS: usize = 16;
/// So many connections are ended in one way to Redis and back.
const IDS_AT_ONCE: usize = 512;
/// How long connections that were killed may stay listed.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const FIRST_LOOK: Duration = Duration::from_micros(200);

/// Why a step on a connection gave nothing: a sentence. The steps here can all be repeated, so
/// there is nothing to tell apart.
pub(crate) type Failed = String;

/// One physical connection to one Redis process.
#[async_trait]
pub(crate) trait Wire: Send {
    /// Sends one command and reads its reply.
    async fn ask(&mut self, command: &Cmd) -> Result<Value, Failed>;

    /// Sends commands and reads all their replies; one behind the other where the wire cannot do
    /// better.
    async fn ask_all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
        let mut replies = Vec::with_capacity(commands.len());
        for command in commands {
            replies.push(self.ask(command).await?);
        }
        Ok(replies)
    }
}

#[async_trait]
impl Wire for Pinned {
    async fn ask(&mut self, command: &Cmd) -> Result<Value, Failed> {
        self.call(command).await.map_err(|error| error.to_string())
    }

    async fn ask_all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
        let replies = self.pipeline(commands).await.map_err(|error| error.to_string())?;
        let extracted = replies.into_iter().map(Value::extract_error).collect::<Result<_, _>>();
        extracted.map_err(|error| error.to_string())
    }
}

/// Ends what is registered below the mark of `lock`, until the lock is settled.
///
/// # Errors
/// A sentence; the lock is then still sealing, and the next one who meets it goes on.
pub(crate) async fn settle(
    wire: &mut dyn Wire,
    scripts: &Scripts,
    keys: &Keys,
    lock: &LockName,
    fail_points: &FailPoints,
) -> Result<(), Failed> {
    let mut gone = Vec::new();
    for _ in 0..ROUNDS {
        let lower = ask_strings(wire, &scripts.settle(keys, lock, &gone)).await?;
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

/// A registration that its owner has no more use for.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// The process that the connection was made to.
    pub(crate) run_id: String,
    /// Its id there.
    pub(crate) client_id: u64,
    /// What it is registered under.
    pub(crate) locks: Vec<LockName>,
}

/// Takes connections out of the registry. They are killed first: bytes that their owners sent may
/// still wait in Redis' socket, and a connection that is not registered could act on them unseen.
/// The number of ways to Redis and back does not grow with that of the connections.
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
    let info = ask_text(wire, &info).await?;
    // In another process an id is another connection's; the registered one ended with its own.
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
        wire.ask_all(commands).await?;
    }
    Ok(())
}

/// Kills clients of the process behind `wire` and awaits that they do not exist any more.
///
/// # Errors
/// A sentence where Redis refuses, or a client is still there after five seconds.
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
            // A wire takes no pipeline without commands.
            if !part.is_empty() {
                wire.ask_all(&part.iter().map(kill).collect::<Vec<_>>()).await?;
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
    let (mut waited, mut pause) = (Duration::ZERO, FIRST_LOOK);
    while !ask_text(wire, &list).await?.trim().is_empty() {
        if waited >= GONE_WITHIN {
            return Err(format!("Redis still lists clients {client_ids:?} after they were killed"));
        }
        tokio::time::sleep(pause).await;
        waited += pause;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Ok(())
}

/// The clients of the process behind `wire` that bear `name`.
///
/// # Errors
/// A sentence.
pub(crate) async fn clients_named(wire: &mut dyn Wire, name: &str) -> Result<Vec<u64>, Failed> {
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST");
    let text = ask_text(wire, &list).await?;
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

async fn ask_strings(wire: &mut dyn Wire, command: &Cmd) -> Result<Vec<String>, Failed> {
    let strings = reply::strings(wire.ask(command).await?);
    let strings = strings.ok_or("Redis answered what no script of ours does")?;
    strings
        .into_iter()
        .map(|bytes| String::from_utf8(bytes).map_err(|error| error.to_string()))
        .collect()
}

async fn ask_text(wire: &mut dyn Wire, command: &Cmd) -> Result<String, Failed> {
    match wire.ask(command).await? {
        Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|error| error.to_string()),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Ok(text),
        other => Err(format!("Redis answered {other:?} where a text was expected")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers from a table, and keeps what was asked.
    struct Scripted {
        replies: Vec<Result<Value, Failed>>,
        asked: Vec<String>,
        /// Batches that were asked.
        exchanges: usize,
    }

    #[async_trait]
    impl Wire for Scripted {
        async fn ask(&mut self, command: &Cmd) -> Result<Value, Failed> {
            let words: Vec<String> = command
                .args_iter()
                .map(|arg| match arg {
                    redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    _ => String::new(),
                })
                .collect();
            self.asked.push(words.join(" "));
            if self.replies.is_empty() { Ok(bulk("")) } else { self.replies.remove(0) }
        }

        /// As a pipeline of the driver.
        async fn ask_all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
            if commands.is_empty() {
                return Err("empty command - Client".to_owned());
            }
            let mut replies = Vec::new();
            for command in commands {
                replies.push(self.ask(command).await?);
            }
            self.exchanges += 1;
            Ok(replies)
        }
    }

    impl Scripted {
        fn new(replies: Vec<Result<Value, Failed>>) -> Self {
            Self { replies, asked: Vec::new(), exchanges: 0 }
        }
    }

    #[tokio::test]
    async fn one_connection_alone_can_be_ended() {
        let mut wire = Scripted::new(vec![Ok(Value::Int(1))]);
        end(&mut wire, &[7], &FailPoints::default()).await.unwrap();
        assert!(wire.asked.iter().any(|text| text == "CLIENT KILL ID 7"), "{:?}", wire.asked);
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
            let killed = wire.asked.iter().any(|text| text.contains("KILL ID 7"));
            assert_eq!(killed, kills, "{:?}", wire.asked);
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
        let kills = wire.asked.iter().filter(|text| text.starts_with("CLIENT KILL ID")).count();
        assert_eq!(kills, 400);
        assert_eq!(wire.asked.iter().filter(|text| text.starts_with("EVALSHA")).count(), 40);
        assert!(wire.exchanges <= 3, "{} batches for 400 connections", wire.exchanges);
    }

    #[tokio::test]
    async fn whoever_is_still_listed_is_awaited() {
        let listed = bulk("id=7 addr=127.0.0.1:1\n");
        let replies = vec![Ok(Value::Int(1)), Ok(listed.clone()), Ok(listed), Ok(bulk(""))];
        let mut wire = Scripted::new(replies);
        end(&mut wire, &[7], &FailPoints::default()).await.unwrap();
        let looks = wire.asked.iter().filter(|text| text.starts_with("CLIENT LIST ID 7")).count();
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
