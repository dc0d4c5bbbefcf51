//! Asking sentinels where the master is.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, cmd};

use super::access::Access;

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
    /// Where the first sentinel that answers says the master is. A sentinel that wants a password
    /// is given its own where there is one, else the login that Redis itself gets.
    ///
    /// # Errors
    /// A sentence with what each of them said.
    pub(super) async fn ask(
        &self,
        access: &Access,
        timeout: Duration,
    ) -> Result<(String, u16), String> {
        let mut reasons = Vec::new();
        for (host, port) in &self.addresses {
            let asked = tokio::time::timeout(timeout, self.ask_one(host, *port, access));
            match asked.await {
                Ok(Ok(Some(address))) => return Ok(address),
                Ok(Ok(None)) => reasons.push(format!("{host}:{port} knows no such master")),
                Ok(Err(error)) => {
                    let why = access.of_sentinels().explain(&error, host).text();
                    reasons.push(format!("{host}:{port}: {why}"));
                }
                Err(_) => {
                    let limit = timeout.as_millis();
                    reasons.push(format!("{host}:{port} did not answer within {limit} ms"));
                }
            }
        }
        Err(format!(
            "no sentinel says where the master \"{}\" is: {}. Correct the URL, or start them",
            self.master,
            reasons.join("; ")
        ))
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
