//! Cancel requests: the key that a client was given stands for that of its session at the server.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use service_kit::ids;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Port;
use super::version::{CANCEL, NEWEST};

/// Limit of one request at the server.
const WITHIN: Duration = Duration::from_secs(5);

/// Keys of all sessions of the port.
#[derive(Clone, Debug, Default)]
pub(super) struct CancelKeys {
    /// By the process id and the secret that the client was given.
    sessions: Arc<Mutex<HashMap<(i32, Bytes), CancelTarget>>>,
}

/// A session as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CancelTarget {
    /// Number of the server's address.
    pub(super) at: usize,
    pub(super) pid: i32,
    pub(super) secret: Bytes,
}

/// Key of one session; it is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct CancelKey {
    keys: CancelKeys,
    key: (i32, Bytes),
}

impl CancelKeys {
    /// Makes a key for a session of the server, for a client of this version of the protocol.
    pub(super) fn add(&self, target: CancelTarget, version: u32) -> CancelKey {
        let secret = match version {
            NEWEST => ids::random_hex(16).into(),
            _ => {
                let random = u32::from_str_radix(&ids::random_hex(4), 16).unwrap_or_default();
                Bytes::copy_from_slice(&random.to_be_bytes())
            }
        };
        let key = (target.pid, secret);
        self.lock().insert(key.clone(), target);
        CancelKey { keys: self.clone(), key }
    }

    fn find(&self, pid: i32, secret: Bytes) -> Option<CancelTarget> {
        self.lock().get(&(pid, secret)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(i32, Bytes), CancelTarget>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a request on and waits until the server has received it; a wrong key has no effect.
    pub(super) async fn cancel(&self, port: &Port, pid: i32, secret: Bytes) {
        let Some(CancelTarget { at, pid, secret }) = self.find(pid, secret) else {
            tracing::debug!(pid, "a cancel request with a wrong key");
            return;
        };
        let target = &port.settings.upstream.target;
        let request = async {
            let mut stream = target.open(at, WITHIN).await.map_err(io::Error::other)?;
            stream.write_all(&request(pid, &secret)).await?;
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

/// Makes a CancelRequest. Keys are bounded where they are read.
fn request(pid: i32, secret: &[u8]) -> BytesMut {
    let mut packet = BytesMut::new();
    packet.put_i32(i32::try_from(secret.len() + 12).unwrap_or(i32::MAX));
    packet.put_u32(CANCEL);
    packet.put_i32(pid);
    packet.extend_from_slice(secret);
    packet
}

impl CancelKey {
    /// Process id and secret for the client.
    pub(super) fn of_client(&self) -> (i32, &[u8]) {
        (self.key.0, &self.key.1)
    }

    /// Lets the key stand for another session, which took the place of the first.
    pub(super) fn stand_for(&self, target: CancelTarget) {
        self.keys.lock().insert(self.key.clone(), target);
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
        for version in [3 << 16, NEWEST] {
            let keys = CancelKeys::default();
            let target = CancelTarget { at: 0, pid: 7, secret: Bytes::from_static(b"42") };
            let key = keys.add(target.clone(), version);
            let (pid, secret) = key.of_client();
            let secret = Bytes::copy_from_slice(secret);
            assert_eq!(secret.len() == 4, version == 3 << 16);
            assert_eq!(keys.find(pid, secret.clone()), Some(target));
            assert_eq!(keys.find(pid, secret.slice(1..)), None);
            assert_eq!(keys.find(pid + 1, secret.clone()), None);
            let other = CancelTarget { at: 1, pid: 8, secret: Bytes::from_static(b"43") };
            key.stand_for(other.clone());
            assert_eq!(keys.find(pid, secret.clone()), Some(other));
            drop(key);
            assert_eq!(keys.find(pid, secret), None);
        }
    }

    #[test]
    fn a_request_is_read_as_it_was_made() {
        use crate::doors::postgres::startup::FirstPacket;
        for len in [1, 4, 32, 256] {
            let secret = Bytes::from(vec![7; len]);
            let packet = request(-3, &secret);
            assert_eq!(packet.len(), len + 12);
            let read = FirstPacket::read(&packet[4..]);
            assert_eq!(read, Ok(FirstPacket::Cancel { pid: -3, secret }));
        }
    }
}
