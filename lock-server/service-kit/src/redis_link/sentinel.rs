//! Asking sentinels where the master is.

mod votes;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, cmd};

use self::votes::Votes;
use super::access::Access;
use super::target::address_text;

/// The port of a sentinel whose address names none.
pub(super) const DEFAULT_PORT: u16 = 26379;

/// A group of sentinels and the name that they know a master by.
#[derive(Clone, Debug)]
pub(super) struct Sentinels {
    /// Host and port of each.
    pub(super) addresses: Vec<(String, u16)>,
    /// `mymaster`.
    pub(super) master: String,
    /// A connection to each that nobody uses just now.
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
    pub(super) fn new(addresses: Vec<(String, u16)>, master: String) -> Self {
        let idle = addresses.iter().map(|_| Mutex::new(None)).collect();
        Self { addresses, master, idle }
    }

    /// Where most of the sentinels say that the master is; they are asked at the same time. One that
    /// wants a password is given its own where there is one, else the login that Redis itself gets.
    ///
    /// # Errors
    /// A sentence with what each of them said.
    pub(super) async fn ask(
        &self,
        access: &Access,
        timeout: Duration,
    ) -> Result<(String, u16), String> {
        self.votes(access, timeout).await.result(&self.master)
    }

    /// Whether more than half of all that were named say, to a question that is sent after this
    /// call, that the master is at `address`. A sentinel that names another one never goes back to
    /// the old one, unless that is chosen anew; so while a majority names this master, no majority
    /// can have named a later one before.
    ///
    /// # Errors
    /// A sentence with what each of them said.
    pub(super) async fn confirm(
        &self,
        address: &str,
        access: &Access,
        timeout: Duration,
    ) -> Result<(), String> {
        self.votes(access, timeout).await.confirm(address, &self.master)
    }

    /// What they say, up to where the rest can change nothing.
    async fn votes(&self, access: &Access, timeout: Duration) -> Votes {
        let mut votes = Votes::of(self.addresses.len());
        let asked = (0..self.addresses.len())
            .map(async |at| (at, tokio::time::timeout(timeout, self.ask_one(at, access)).await));
        let mut answers: FuturesUnordered<_> = asked.collect();
        while let Some((at, answer)) = answers.next().await {
            let (host, port) = &self.addresses[at];
            let who = address_text(host, *port);
            match answer {
                Ok(Ok(said)) => votes.says(&who, said),
                Ok(Err(error)) => {
                    let why = access.of_sentinels().explain(&error, host, *port).await.text();
                    votes.is_silent(format!("{who}: {why}"));
                }
                Err(_) => {
                    let limit = timeout.as_millis();
                    votes.is_silent(format!("{who} did not answer within {limit} ms"));
                }
            }
            if votes.settled().is_some() {
                break;
            }
        }
        votes
    }

    /// On the connection that is there, or a new one where there is none or it fails. One whose
    /// answer nobody waits for any more is not used again.
    async fn ask_one(
        &self,
        at: usize,
        access: &Access,
    ) -> Result<Option<(String, u16)>, RedisError> {
        let idle = self.slot(at).take();
        if let Some(Idle(mut connection)) = idle
            && let Ok(said) = self.query(&mut connection).await
        {
            *self.slot(at) = Some(Idle(connection));
            return Ok(said);
        }
        let (host, port) = &self.addresses[at];
        let mut connection = connect(host, *port, &access.of_nobody()).await?;
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

    async fn query(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Option<(String, u16)>, RedisError> {
        let mut question = cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master);
        question.query_async(connection).await
    }
}

async fn connect(
    host: &str,
    port: u16,
    access: &Access,
) -> Result<MultiplexedConnection, RedisError> {
    access.client(host, port)?.get_multiplexed_async_connection().await
}
