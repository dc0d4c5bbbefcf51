//! Asking sentinels where the master is.

mod votes;

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
}

impl Sentinels {
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
        let mut votes = Votes::of(self.addresses.len());
        let asked = self.addresses.iter().map(async |(host, port)| {
            let answer = tokio::time::timeout(timeout, self.ask_one(host, *port, access)).await;
            (address_text(host, *port), (host, *port), answer)
        });
        let mut answers: FuturesUnordered<_> = asked.collect();
        while let Some((who, (host, port), answer)) = answers.next().await {
            match answer {
                Ok(Ok(said)) => votes.says(&who, said),
                Ok(Err(error)) => {
                    let why = access.of_sentinels().explain(&error, host, port).await.text();
                    votes.is_silent(format!("{who}: {why}"));
                }
                Err(_) => {
                    let limit = timeout.as_millis();
                    votes.is_silent(format!("{who} did not answer within {limit} ms"));
                }
            }
            if let Some(address) = votes.settled() {
                return Ok(address);
            }
        }
        votes.result(&self.master)
    }

    async fn ask_one(
        &self,
        host: &str,
        port: u16,
        access: &Access,
    ) -> Result<Option<(String, u16)>, RedisError> {
        let answer = match connect(host, port, &access.of_nobody()).await {
            Ok(mut connection) => self.query(&mut connection).await,
            Err(error) => Err(error),
        };
        match answer {
            Err(error) if error.code() == Some("NOAUTH") => {
                self.query(&mut connect(host, port, &access.of_sentinels()).await?).await
            }
            other => other,
        }
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
