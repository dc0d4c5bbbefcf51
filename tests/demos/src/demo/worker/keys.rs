//! An ordinary Redis driver: it knows nothing of fencing, and finds its token in the URL.

use fence_client::protocol::wire::lock::LeaseReply;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value};

use crate::demo::orders::{Answer, ErrorReply};
use crate::process::PATIENCE;

/// Keys of one Redis, or of the guard's port before it.
#[derive(Debug)]
pub(in crate::demo) struct Keys {
    url: String,
    /// The connection, and the credential that it logged in with: one connection a lease.
    open: Option<(Option<String>, MultiplexedConnection)>,
}

impl Keys {
    pub(super) fn new(url: String) -> Self {
        Self { url, open: None }
    }

    pub(super) async fn get(
        &mut self,
        key: &str,
        lease: Option<&LeaseReply>,
    ) -> Result<Answer, String> {
        let (value, answer) = self.send(&Cmd::get(key), lease).await?;
        let document = match value {
            Value::BulkString(bytes) => serde_json::from_slice(&bytes).ok(),
            _ => None,
        };
        Ok(Answer { document, ..answer })
    }

    pub(super) async fn set(
        &mut self,
        key: &str,
        lease: Option<&LeaseReply>,
        value: &str,
    ) -> Result<Answer, String> {
        self.send(&Cmd::set(key, value), lease).await.map(|(_, answer)| answer)
    }

    async fn send(
        &mut self,
        command: &Cmd,
        lease: Option<&LeaseReply>,
    ) -> Result<(Value, Answer), String> {
        let credential = lease.map(|lease| lease.fencing_credential.clone());
        let connection = match &mut self.open {
            Some((opened_with, connection)) if *opened_with == credential => connection,
            _ => {
                let connection = connect(&with_credential(&self.url, credential.as_deref())).await;
                &mut self.open.insert((credential, connection?)).1
            }
        };
        match command.query_async(connection).await {
            Ok(value) => Ok((value, Answer::default())),
            Err(error) => match error_reply(&error) {
                Some(reply) => Ok((Value::Nil, Answer { error: Some(reply), ..Answer::default() })),
                None => Err(format!("no reply: {error}")),
            },
        }
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection, String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let connected = match Client::open(url) {
        Ok(client) => client.get_multiplexed_async_connection_with_config(&config).await,
        Err(error) => Err(error),
    };
    connected.map_err(|error| format!("no connection: {error}"))
}

/// The URL that a client of the guard uses: the user does not matter, the password is the token.
fn with_credential(url: &str, credential: Option<&str>) -> String {
    match (credential, url.split_once("://")) {
        (Some(credential), Some((scheme, rest))) => format!("{scheme}://fence:{credential}@{rest}"),
        _ => url.to_owned(),
    }
}

/// Error reply of the server; `None` if there was no reply.
fn error_reply(error: &RedisError) -> Option<ErrorReply> {
    let code = error.code()?;
    let text = error.detail().unwrap_or_default();
    Some(ErrorReply { code: code.to_owned(), text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_the_password() {
        let url = "redis://127.0.0.1:6380/2";
        assert_eq!(with_credential(url, Some("34~x")), "redis://fence:34~x@127.0.0.1:6380/2");
        assert_eq!(with_credential(url, None), url);
    }
}
