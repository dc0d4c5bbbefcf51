//! Cancel requests: the key that a client was given stands for that of its session at the server.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use service_kit::ids;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Port;

/// Limit of one request at the server.
const WITHIN: Duration = Duration::from_secs(5);

/// Keys of all sessions of the port.
#[derive(Clone, Debug, Default)]
pub(super) struct CancelKeys {
    /// By the process id and the secret that the client was given.
    sessions: Arc<Mutex<HashMap<(i32, i32), CancelTarget>>>,
}

/// A session as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CancelTarget {
    /// Number of the server's address.
    pub(super) at: usize,
    pub(super) pid: i32,
    pub(super) secret: i32,
}

/// Key of one session; it is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct CancelKey {
    keys: CancelKeys,
    key: (i32, i32),
}

impl CancelKeys {
    /// Makes a key for a session of the server.
    pub(super) fn add(&self, target: CancelTarget) -> CancelKey {
        let random = u32::from_str_radix(&ids::random_hex(4), 16).unwrap_or_default();
        let key = (target.pid, random.cast_signed());
        self.lock().insert(key, target);
        CancelKey { keys: self.clone(), key }
    }

    fn find(&self, pid: i32, secret: i32) -> Option<CancelTarget> {
        self.lock().get(&(pid, secret)).copied()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(i32, i32), CancelTarget>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a request on and waits until the server has received it; a wrong key has no effect.
    pub(super) async fn cancel(&self, port: &Port, pid: i32, secret: i32) {
        let Some(CancelTarget { at, pid, secret }) = self.find(pid, secret) else {
            tracing::debug!(pid, "a cancel request with a wrong key");
            return;
        };
        let target = &port.settings.upstream.target;
        let request = async {
            let mut stream = target.open(at, WITHIN).await.map_err(io::Error::other)?;
            let mut out = BytesMut::new();
            frontend::cancel_request(pid, secret, &mut out);
            stream.write_all(&out).await?;
            stream.flush().await?;
            // The server closes the connection once it has sent the signal.
            stream.read(&mut [0]).await
        };
        let done: Result<io::Result<usize>, _> = tokio::time::timeout(WITHIN, request).await;
        match done {
            Ok(Ok(_)) => {
                port.counters.cancels.inc();
            }
            _ => tracing::debug!(pid, "a cancel request was not passed on"),
        }
    }
}

impl CancelKey {
    /// Process id and secret for the client.
    pub(super) fn of_client(&self) -> (i32, i32) {
        self.key
    }

    /// Lets the key stand for another session, which took the place of the first.
    pub(super) fn stand_for(&self, target: CancelTarget) {
        self.keys.lock().insert(self.key, target);
    }
}

impl Drop for CancelKey {
    fn drop(&mut self) {
        self.keys.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_while_its_session_lives() {
        let keys = CancelKeys::default();
        let target = CancelTarget { at: 0, pid: 7, secret: 42 };
        let key = keys.add(target);
        let (pid, secret) = key.of_client();
        assert_eq!(keys.find(pid, secret), Some(target));
        assert_eq!(keys.find(pid, secret.wrapping_add(1)), None);
        assert_eq!(keys.find(pid + 1, secret), None);
        let other = CancelTarget { at: 1, pid: 8, secret: 43 };
        key.stand_for(other);
        assert_eq!(keys.find(pid, secret), Some(other));
        drop(key);
        assert_eq!(keys.find(pid, secret), None);
    }
}
