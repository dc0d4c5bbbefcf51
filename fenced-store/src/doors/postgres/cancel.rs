//! Cancel requests: the key that a client was given stands for that of its session at the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use service_kit::ids;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Port;

/// Limit of one request at the server.
const WITHIN: Duration = Duration::from_secs(5);

/// Keys of all sessions of the port.
#[derive(Clone, Debug, Default)]
pub(super) struct CancelKeys {
    /// Secret of the server, by process id and the secret that the client was given.
    secrets: Arc<Mutex<HashMap<(i32, i32), i32>>>,
}

/// Key of one session; it is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct CancelKey {
    keys: CancelKeys,
    key: (i32, i32),
}

impl CancelKeys {
    /// Makes a key for a session of the server.
    pub(super) fn add(&self, pid: i32, server_secret: i32) -> CancelKey {
        let random = u32::from_str_radix(&ids::random_hex(4), 16).unwrap_or_default();
        let key = (pid, random.cast_signed());
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner).insert(key, server_secret);
        CancelKey { keys: self.clone(), key }
    }

    fn find(&self, pid: i32, secret: i32) -> Option<i32> {
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.get(&(pid, secret)).copied()
    }

    /// Passes a request on and waits until the server has received it; a wrong key has no effect.
    pub(super) async fn cancel(&self, port: &Port, pid: i32, secret: i32) {
        let Some(secret) = self.find(pid, secret) else {
            tracing::debug!(pid, "a cancel request with a wrong key");
            return;
        };
        let address = port.settings.upstream.address.clone();
        let request = async {
            let mut stream = TcpStream::connect(address).await?;
            let mut out = BytesMut::new();
            frontend::cancel_request(pid, secret, &mut out);
            stream.write_all(&out).await?;
            // The server closes the connection once it has sent the signal.
            stream.read(&mut [0]).await
        };
        let done: Result<std::io::Result<usize>, _> = tokio::time::timeout(WITHIN, request).await;
        match done {
            Ok(Ok(_)) => {
                port.counters.cancels.inc();
            }
            _ => tracing::debug!(pid, "a cancel request was not passed on"),
        }
    }
}

impl CancelKey {
    /// The secret for the client.
    pub(super) fn secret(&self) -> i32 {
        self.key.1
    }
}

impl Drop for CancelKey {
    fn drop(&mut self) {
        let mut secrets = self.keys.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_while_its_session_lives() {
        let keys = CancelKeys::default();
        let key = keys.add(7, 42);
        let (pid, secret) = key.key;
        assert_eq!(keys.find(pid, secret), Some(42));
        assert_eq!(keys.find(pid, secret.wrapping_add(1)), None);
        assert_eq!(keys.find(pid + 1, secret), None);
        drop(key);
        assert_eq!(keys.find(pid, secret), None);
    }
}
