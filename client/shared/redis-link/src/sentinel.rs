//! Asking sentinels where the master is.

#[cfg(any(test, fuzzing))]
mod fuzz;
mod votes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value, cmd, from_redis_value};

#[cfg(any(test, fuzzing))]
pub(crate) use self::fuzz::votes as fuzz_votes;
pub(crate) use self::votes::Choice;
use self::votes::Votes;
use crate::access::Access;
use crate::url::address_text;

/// A group of sentinels and the name that they know a master by.
#[derive(Clone, Debug)]
pub(crate) struct Sentinels {
    /// Host and port of each.
    pub(crate) addresses: Vec<(String, u16)>,
    /// `mymaster`.
    pub(crate) master: String,
    /// A connection to each sentinel that no call uses at the moment.
    idle: Arc<[Mutex<Option<Idle>>]>,
}

/// Without its lack of a `Debug`.
struct Idle(MultiplexedConnection);

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Idle")
    }
}

impl Sentinels {
    /// Those at `addresses`, about the master of that name.
    pub(crate) fn new(addresses: Vec<(String, u16)>, master: String) -> Self {
        let idle = addresses.iter().map(|_| Mutex::new(None)).collect();
        Self { addresses, master, idle }
    }

    /// Returns the master that most of the sentinels have chosen; they are asked at the same time.
    /// A sentinel that wants a password gets its own where there is one, else the login of Redis
    /// itself.
    ///
    /// # Errors
    /// A sentence with the reply of each.
    pub(crate) async fn choice(
        &self,
        access: &Access,
        timeout: Duration,
    ) -> Result<Choice, String> {
        self.votes(access, timeout).await.result(&self.master)
    }

    /// Succeeds if more than half of all named sentinels reply, to a question that is sent after
    /// this call, that `choice` is the one in force. A sentinel that knows of a later choice never
    /// goes back to an earlier one; so while a majority names this one, no majority has named a
    /// later one before.
    ///
    /// # Errors
    /// A sentence with the reply of each.
    pub(crate) async fn confirm(
        &self,
        choice: &Choice,
        access: &Access,
        timeout: Duration,
    ) -> Result<(), String> {
        self.votes(access, timeout).await.confirm(choice, &self.master)
    }

    /// Collects replies until the remaining ones cannot change the result.
    async fn votes(&self, access: &Access, timeout: Duration) -> Votes {
        let mut votes = Votes::new(self.addresses.len());
        let asked = (0..self.addresses.len())
            .map(async |at| (at, tokio::time::timeout(timeout, self.ask_one(at, access)).await));
        let mut answers: FuturesUnordered<_> = asked.collect();
        while let Some((at, answer)) = answers.next().await {
            let (host, port) = &self.addresses[at];
            let who = address_text(host, *port);
            match answer {
                Ok(Ok(said)) => votes.says(&who, said),
                Ok(Err(error)) => votes.is_silent(self.failed(at, &error, access).await),
                Err(_) => votes.is_silent(silent(&who, timeout)),
            }
            if votes.settled().is_some() {
                break;
            }
        }
        votes
    }

    /// Returns a sentence for each sentinel that does not reply or does not know the master, and
    /// for each replica of it that is down by the account of the first sentinel that replies.
    pub(crate) async fn troubles(&self, access: &Access, timeout: Duration) -> Vec<String> {
        let asked = (0..self.addresses.len())
            .map(async |at| tokio::time::timeout(timeout, self.ask_one(at, access)).await);
        let mut troubles = Vec::new();
        let mut replicas = None;
        for (at, answer) in futures_util::future::join_all(asked).await.into_iter().enumerate() {
            let (host, port) = &self.addresses[at];
            let who = address_text(host, *port);
            match answer {
                Ok(Ok(Some(_))) if replicas.is_none() => {
                    replicas =
                        tokio::time::timeout(timeout, self.replicas(at)).await.ok().flatten();
                }
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => troubles.push(format!(
                    "the sentinel {who} knows no master \"{}\"; correct its configuration",
                    self.master
                )),
                Ok(Err(error)) => {
                    let why = self.failed(at, &error, access).await;
                    troubles.push(format!("the sentinel {why}"));
                }
                Err(_) => troubles.push(format!("the sentinel {}", silent(&who, timeout))),
            }
        }
        troubles.extend(replicas.into_iter().flatten().filter_map(|replica| lost(&replica)));
        troubles
    }

    /// Returns the replicas by the account of a sentinel that has just replied.
    async fn replicas(&self, at: usize) -> Option<Vec<HashMap<String, String>>> {
        let Idle(mut connection) = self.slot(at).take()?;
        let reply: Value = self.question("replicas").query_async(&mut connection).await.ok()?;
        *self.slot(at) = Some(Idle(connection));
        from_redis_value(reply).ok()
    }

    async fn failed(&self, at: usize, error: &RedisError, access: &Access) -> String {
        let (host, port) = &self.addresses[at];
        let why = access.of_sentinels().explain(error, host, *port).await.text();
        format!("{}: {why}", address_text(host, *port))
    }

    /// Sends the question on the idle connection, or on a new one where there is none or it fails.
    /// A connection whose reply no caller awaits any more is not used again.
    async fn ask_one(&self, at: usize, access: &Access) -> Result<Option<Choice>, RedisError> {
        let idle = self.slot(at).take();
        if let Some(Idle(mut connection)) = idle
            && let Ok(said) = self.query(&mut connection).await
        {
            *self.slot(at) = Some(Idle(connection));
            return Ok(said);
        }
        let (host, port) = &self.addresses[at];
        let mut connection = connect(host, *port, &access.without_login()).await?;
        let mut answer = self.query(&mut connection).await;
        if let Err(error) = &answer
            && error.code() == Some("NOAUTH")
        {
            connection = connect(host, *port, &access.of_sentinels()).await?;
            answer = self.query(&mut connection).await;
        }
        if answer.is_ok() {
            *self.slot(at) = Some(Idle(connection));
        }
        answer
    }

    fn slot(&self, at: usize) -> std::sync::MutexGuard<'_, Option<Idle>> {
        self.idle[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address and its epoch. No answer has both in the midst of a failover, so the epoch is
    /// asked for before and after the address.
    async fn query(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Option<Choice>, RedisError> {
        let mut questions = Pipeline::new();
        for what in ["master", "get-master-addr-by-name", "master"] {
            questions.add_command(self.question(what));
        }
        let replies = connection.send_packed_commands(&questions, 0, 3).await?;
        let Ok([before, address, after]) = <[Value; 3]>::try_from(replies) else {
            return Err((ErrorKind::Parse, "it answered something else").into());
        };
        let address: Option<(String, u16)> = from_redis_value(address.extract_error()?)?;
        let Some((host, port)) = address else { return Ok(None) };
        let before = epoch_of(before)?;
        let epoch = epoch_of(after)?;
        match before == epoch {
            true => Ok(Some(Choice { host, port, epoch })),
            false => Err((ErrorKind::Parse, "it has just made another choice").into()),
        }
    }

    fn question(&self, what: &str) -> Cmd {
        let mut question = cmd("SENTINEL");
        question.arg(what).arg(&self.master);
        question
    }
}

fn silent(who: &str, timeout: Duration) -> String {
    format!("{who} did not answer within {} ms", timeout.as_millis())
}

/// A sentence if the sentinels count a replica as down, or it does not follow the master.
fn lost(replica: &HashMap<String, String>) -> Option<String> {
    let field = |name: &str| replica.get(name).map_or("", String::as_str);
    let is_down = field("flags").split(',').any(|flag| flag.ends_with("_down"));
    let why = if is_down {
        "is down; start it, or have the sentinels forget it (SENTINEL RESET)"
    } else if field("master-link-status") == "err" {
        "does not follow the master"
    } else {
        return None;
    };
    Some(format!("the replica {} {why}", address_text(field("ip"), field("port").parse().ok()?)))
}

fn epoch_of(reply: Value) -> Result<u64, RedisError> {
    let fields: HashMap<String, String> = from_redis_value(reply.extract_error()?)?;
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok());
    epoch.ok_or_else(|| (ErrorKind::Parse, "its answer lacks config-epoch").into())
}

async fn connect(
    host: &str,
    port: u16,
    access: &Access,
) -> Result<MultiplexedConnection, RedisError> {
    access.client(host, port)?.get_multiplexed_async_connection().await
}
