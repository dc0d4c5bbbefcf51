//! Where a Redis is.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo};

/// How many commands may wait for the connection before callers do.
const PIPELINE_BUFFER: usize = 4096;

/// A Redis URL that was understood: `redis://[user[:password]@]host[:port][/db]`.
///
/// Its text and its `Debug` hide the password.
#[derive(Clone)]
pub struct RedisTarget {
    info: ConnectionInfo,
    shown: String,
}

/// A URL that is no Redis URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{shown}\" is no Redis URL ({why}); write redis://host:port, or redis://user:password@host:port/db"
)]
pub struct TargetError {
    shown: String,
    why: String,
}

impl FromStr for RedisTarget {
    type Err = TargetError;

    fn from_str(url: &str) -> Result<Self, TargetError> {
        let shown = without_password(url);
        let refuse = |why: String| TargetError { shown: shown.clone(), why };
        if !url.starts_with("redis://") {
            return Err(refuse("it does not begin with redis://".to_owned()));
        }
        let info = url.into_connection_info().map_err(|error| refuse(error.to_string()))?;
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        Ok(Self { info, shown })
    }
}

impl RedisTarget {
    /// A new connection that pipelines deeply, with `TCP_NODELAY` on.
    ///
    /// Replies are timed by the caller, so that a late one is "unknown" and not a failure.
    ///
    /// # Errors
    /// A sentence with the address and the cause.
    pub async fn connect(&self, timeout: Duration) -> Result<MultiplexedConnection, String> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        self.client()?
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| self.unreachable(&error.to_string()))
    }

    /// A new connection that only listens to channels.
    ///
    /// # Errors
    /// A sentence with the address and the cause.
    pub async fn subscribe(&self, timeout: Duration) -> Result<PubSub, String> {
        let client = self.client()?;
        match tokio::time::timeout(timeout, client.get_async_pubsub()).await {
            Ok(Ok(pubsub)) => Ok(pubsub),
            Ok(Err(error)) => Err(self.unreachable(&error.to_string())),
            Err(_) => Err(self.unreachable(&format!("no answer in {} ms", timeout.as_millis()))),
        }
    }

    fn client(&self) -> Result<Client, String> {
        Client::open(self.info.clone()).map_err(|error| self.unreachable(&error.to_string()))
    }

    fn unreachable(&self, why: &str) -> String {
        format!("Redis at {} cannot be reached: {why}. Start it, or correct the URL", self.shown)
    }
}

impl fmt::Display for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// A URL with `***` in place of user and password: what errors and logs may show.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://***@{host}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_never_shown() {
        let target: RedisTarget = "redis://app:hunter2@127.0.0.1:6379/3".parse().unwrap();
        assert_eq!(target.to_string(), "redis://***@127.0.0.1:6379/3");
        assert!(!format!("{target:?}").contains("hunter2"));
    }

    #[test]
    fn other_urls_are_refused_with_the_value() {
        for bad in ["", "http://a", "redis//x", "redis://", "rediss://a:1"] {
            let error = bad.parse::<RedisTarget>().unwrap_err().to_string();
            assert!(error.contains("is no Redis URL"), "{error}");
        }
    }
}
